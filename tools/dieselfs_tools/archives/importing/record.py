"""One record of an imported source, as an entry to upload. No I/O of its own."""

import stat
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.errors import Damaged, InvalidInput

FILE_MODE = stat.S_IFREG | 0o644
FOLDER_MODE = stat.S_IFDIR | 0o755
LINK_MODE = stat.S_IFLNK | 0o777
PERMISSIONS = 0o777
"""Of the mode in an archive: set-user-ID, set-group-ID and the sticky bit are dropped."""

SKIP_BYTES = 1 << 20


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


@dataclass(slots=True, eq=False)
class Record:
    """A file, folder or link with its `name` in the source. `path` is its path in the dataset, once that is known.

    Its content is in memory (`content`), or `opened` opens it until the next record is taken from the source.
    `fields`: what a template can use beside the name. `fault`: why the record cannot be imported. `is_hard_link`: the
    target is right only if names stay as they are. `place`: for `dlcmd attach`; None if no
    range of the source has the content as it is.
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
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_streamed(self) -> bool:
        return self.opened is not None

    def is_same(self, mode: int, size: int, mtime_ns: int, target: bytes) -> bool:
        return (mode, size, mtime_ns, target) == (self.mode, self.size, self.mtime_ns, self.target)

    def load(self) -> None:
        """Raises Damaged if the source has not all of its bytes."""
        if self.opened is not None:
            self.content = _exactly(self.opened(), self.size)

    def pack(self, builder: ChunkBuilder) -> None:
        if self.content is not None:
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
        content, position = self.opened(), 0
        for place, length in ranges:
            while position < place:  # stored by an interrupted import
                position += len(_exactly(content, min(place - position, SKIP_BYTES)))
            yield _exactly(content, length)
            position += length


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
