"""One record of an imported source, as an entry to upload, and the bytes of values that are no files there.

No I/O of its own.
"""

import stat
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.errors import Damaged, InvalidInput

FILE_MODE = stat.S_IFREG | 0o644
FOLDER_MODE = stat.S_IFDIR | 0o755
LINK_MODE = stat.S_IFLNK | 0o777
PERMISSIONS = 0o777
"""What is taken of a mode in an archive: set-user-ID, set-group-ID and the sticky bit are dropped."""

COPIED_BYTES_MAX = 4 << 10
"""The largest value that `dlcmd attach` copies, because an import converts it, as a number to an .npy file."""

RECORD_BYTES_MAX = 1 << 30
"""The largest record of formats whose readers hold one in memory."""

PART_BYTES = 16 << 20
"""The smallest part of an archive for one of several processes."""

RATIO_MAX = 2_048
RATIO_FROM_BYTES = 64 << 20
"""From this size on, content that is compressed more than RATIO_MAX times is refused. Deflate reaches 1,032 times."""


def is_bomb(whole_bytes: int, stored_bytes: int) -> bool:
    """Whether content is far larger than what is stored of it."""
    return whole_bytes > RATIO_FROM_BYTES and whole_bytes > RATIO_MAX * stored_bytes


class Content(Protocol):
    """The content of a record, which is read once, from its begin."""

    def read(self, size: int, /) -> bytes: ...


class Place(NamedTuple):
    """Where the source has the content of a record, as it is: in `file`, a path or a URL, from `offset` on. `crc32`: of
    the content, if the source has it, and its reader has not compared it.
    """

    file: str
    offset: int
    crc32: int | None = None


class Range(NamedTuple):
    """Bytes of a source: `file` as in `Place`."""

    file: str
    offset: int
    length: int


class ArrayForm(NamedTuple):
    """How the arrays of a source become files. `is_by_row`: whether a row is a file, or the whole array; None: as the
    format has it. `is_in_place`: the files are ranges of the source, for `dlcmd attach`.
    """

    is_by_row: bool | None = None
    is_in_place: bool = False


@dataclass(slots=True, eq=False)
class Record:
    """A file, folder or link with its `name` in the source. `path` is its path in the dataset, once that is known.

    Its content is in memory (`content`), or `opened` opens it until the next record is taken from the source.
    `fields`: what a template can use beside the name. `fault`: why the record cannot be imported. `is_hard_link`: the
    target is right only if names stay as they are. `place`: for `dlcmd attach`; None if no
    range of the source has the content as it is; `pieces`: those that have it together. `is_contested`: it is stored in
    any case, because another source may have stored its path; `is_removal`: its path is deleted.
    """

    name: bytes
    mtime_ns: int
    size: int = 0
    content: bytes | None = None
    opened: Callable[[], Content] | None = None
    mode: int = FILE_MODE
    target: bytes = b""
    fields: Mapping[str, str] = field(default_factory=dict)
    fault: str = ""
    is_hard_link: bool = False
    origin: bytes = b""
    path: bytes = b""
    place: Place | None = None
    pieces: Sequence[Range] = ()
    is_contested: bool = False
    is_removal: bool = False

    @classmethod
    def of(cls, name: bytes, content: bytes, mtime_ns: int, place: Place | None = None) -> "Record":
        """A file whose content is in memory."""
        return cls(name, mtime_ns, len(content), content, place=place)

    @property
    def source(self) -> bytes:
        return self.origin + b": " + self.name

    @property
    def file_bytes(self) -> int:
        return self.size

    @property
    def ranges(self) -> Sequence[Range]:
        """Where the source has the content, in order; none if it has it in another form."""
        if self.place is None or not self.size:
            return self.pieces
        return (Range(self.place.file, self.place.offset, self.size),)

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_streamed(self) -> bool:
        return self.opened is not None or self.content is not None

    def is_same(self, mode: int, size: int, mtime_ns: int, target: bytes) -> bool:
        own = (
            self.mode,
            len(self.target) or self.size,
            self.mtime_ns,
            self.target,
        )  # a link has the size of its target
        return (mode, size, mtime_ns, target) == own and not self.is_contested and not self.is_removal

    def load(self) -> None:
        """Raises Damaged if the source has not all of its bytes."""
        if self.opened is not None:
            self.content = _exactly(self.opened(), self.size)

    def pack(self, builder: ChunkBuilder) -> None:
        if self.is_removal:
            builder.add_delete(self.path)
        elif self.content is not None:
            builder.add_file(self.path, self.content, self.mode, self.mtime_ns)
        elif self.is_folder:
            builder.add_directory(self.path, self.mode, self.mtime_ns)
        elif stat.S_ISLNK(self.mode):
            builder.add_symlink(self.path, self.target, self.mode, self.mtime_ns)
        else:
            raise InvalidInput("its content was not loaded")

    def contents(self, ranges: Iterable[tuple[int, int]]) -> Generator[bytes]:
        if self.opened is None:
            view = memoryview(self.content or b"")
            for place, length in ranges:
                yield bytes(view[place : place + length])
            return
        content = self.opened()
        for _, length in ranges:
            yield _exactly(content, length)


def _exactly(content: Content, size: int) -> bytes:
    """Raises Damaged at an early end."""
    found = content.read(size)
    if len(found) < size:
        parts = [found]
        missing = size - len(found)
        while missing and (part := content.read(missing)):
            parts.append(part)
            missing -= len(part)
        if missing:
            raise Damaged(f"the source ends {missing} bytes early")
        found = b"".join(parts)
    return found


DIGITS = 8
"""The digits of the number in the name of a record."""

_MAGICS: tuple[tuple[bytes, int, str], ...] = (
    (b"\xff\xd8\xff", 0, ".jpg"),
    (b"\x89PNG\r\n\x1a\n", 0, ".png"),
    (b"GIF8", 0, ".gif"),
    (b"WEBP", 8, ".webp"),
    (b"WAVE", 8, ".wav"),
    (b"fLaC", 0, ".flac"),
    (b"OggS", 0, ".ogg"),
    (b"ID3", 0, ".mp3"),
    (b"ftyp", 4, ".mp4"),
    (b"BM", 0, ".bmp"),
    (b"II*\0", 0, ".tif"),
    (b"MM\0*", 0, ".tif"),
    (b"\x93NUMPY", 0, ".npy"),
    (b"%PDF", 0, ".pdf"),
)


def suffix_of(content: bytes) -> str:
    """The suffix of images, sound and arrays, by their first bytes; empty for anything else."""
    for magic, place, suffix in _MAGICS:
        if content.startswith(magic, place):
            return suffix
    return ""


def number(index: int) -> str:
    """The number of a record in names."""
    return format(index, f"0{DIGITS}")


def npy(array: npt.NDArray[Any]) -> bytes:
    """An array, which may be a scalar, as the bytes of an .npy file. Raises ValueError for arrays of objects."""
    written, array = BytesIO(), np.asanyarray(array)
    if array.dtype.metadata and array.dtype.names is None:  # of h5py; an .npy file has none
        array = array.view(array.dtype.str)
    np.lib.format.write_array(written, array, allow_pickle=False)
    return written.getvalue()


def npy_rows(rows: npt.NDArray[Any]) -> Callable[[int], bytes]:
    """The function from the number of a row, of shape rows.shape[1:], to the bytes of its .npy file. The rows have one
    header, so it is made once.
    """
    if not len(rows):
        return lambda _: b""
    rows = np.ascontiguousarray(rows)
    first = rows[:1].reshape(rows.shape[1:])  # not rows[0], which may be a scalar in another byte order
    whole = npy(first)
    head = whole[: len(whole) - first.nbytes]
    return lambda row: head + rows[row : row + 1].tobytes()
