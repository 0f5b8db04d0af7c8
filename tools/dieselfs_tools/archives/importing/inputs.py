"""The sources of an import: local files and folders, URLs, standard input. This module opens files and sockets."""

import bz2
import gzip
import io
import lzma
import os
import re
import stat
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from dieselfs.attached.web_url import is_web_url
from dieselfs.bucket.url import is_object_url, parse_object
from dieselfs.errors import Damaged, DieselfsError, InvalidInput, NotFound, os_errors_as
from dieselfs.names import printable
from dieselfs_tools.archives.formats import FORMATS, IMPORTED, required
from dieselfs_tools.archives.importing.http_stream import HttpStream
from dieselfs_tools.archives.importing.record import ArrayForm, Place
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.progress import STANDARD_INPUT, spooled

if TYPE_CHECKING:
    from dieselfs_tools.archives.importing.bucket_files import RemoteStream

OpenRemote = Callable[[str], "HttpStream | RemoteStream"]

MAGIC_BYTES = 8
HEAD_BYTES = 1024
"""The first bytes of a source, enough to recognize its format."""

BUFFER_BYTES = 1 << 20

_PACKED = (".gz", ".zst", ".bz2", ".xz")
_SUFFIXES = [*_PACKED, *(suffix for name in IMPORTED for suffix in FORMATS[name].suffixes)]
_SUFFIX = re.compile(f"({'|'.join(map(re.escape, _SUFFIXES))})+$", re.IGNORECASE)

UNPACKED_BYTES_MAX = 256 << 10
"""What one call of a decompressor returns at most, so that less is lost at damage."""


class Found(NamedTuple):
    """What is at a name. `raw`: its bytes, not of a folder; `path`: of a local file or folder."""

    raw: io.RawIOBase | None
    mtime_ns: int = 0
    path: str = ""


class Opener(Protocol):
    """Opens the files of one source."""

    def find(self, base: str = "") -> Found:
        """The source, or the file `base` in its folder. Raises NotFound, Unavailable (a URL), InvalidInput."""

    def file(self, stream: BinaryIO, stack: ExitStack) -> str:
        """The path of a file with these bytes, until the stack is closed. Raises DieselfsError without room for it."""

    def maps(self) -> bytes:
        """Where this process has mapped files now: the content of MAPS, see proc_pid_maps(5)."""


MAPS = "/proc/self/maps"


class DirectOpener:
    """Opens files and sockets itself. `open_remote` opens what is at a URL."""

    def __init__(self, name: str, output: Output, open_remote: OpenRemote | None = None) -> None:
        self._name = name
        self._output = output
        self._open_remote = open_remote or _open_remote

    def maps(self) -> bytes:
        return Path(MAPS).read_bytes()

    def find(self, base: str = "") -> Found:
        name = name_beside(self._name, base) if base else self._name
        if is_object_url(name) and name.partition("?")[0].endswith("/"):
            return Found(None)
        if is_object_url(name) or is_web_url(name):
            remote = self._open_remote(name)
            return Found(remote, remote.mtime_ns)
        if name == STANDARD_INPUT:
            return Found(io.FileIO(sys.stdin.fileno(), closefd=False))
        with os_errors_as(NotFound, printable(os.fsencode(name))):
            status = os.stat(name)
            raw = None if stat.S_ISDIR(status.st_mode) else io.FileIO(name)
        return Found(raw, status.st_mtime_ns, name)

    def file(self, stream: BinaryIO, stack: ExitStack) -> str:
        return stack.enter_context(spooled(stream, self._output, self._name))


def name_beside(folder: str, base: str) -> str:
    """The name of the file `base` in a folder, which may be a URL."""
    if not is_object_url(folder):
        return os.path.join(folder, base)
    from dieselfs_tools.archives.importing.bucket_files import beside

    return beside(folder, base)


class Input:
    """One source, for one pass. `head`: its first bytes, decompressed; of a folder, none. `begin` and `end`: the part
    of it that is read, as of `starts` of its format; 0: all that follows.
    """

    def __init__(
        self, name: str, stack: ExitStack, opener: Opener, base: str = "", is_packed: bool | None = None
    ) -> None:
        """Raises what `opener` does, Damaged. `stack` closes what is opened. `base`: a file in the folder `name`.
        `is_packed`: whether the bytes are compressed; None looks at the first ones.
        """
        self.name = name_beside(name, base) if base else name
        self._opener = opener
        self._is_packed = is_packed
        self._is_compressed = False
        self.form = ArrayForm()
        self.begin = self.end = 0
        self.head = b""
        self._stack = stack
        self._file: io.FileIO | None = None
        self._stream: io.BufferedReader | None = None
        raw, self.mtime_ns, self.path = opener.find(base)
        self.is_folder = raw is None
        if raw is not None:
            self._open(raw)

    def _open(self, raw: io.RawIOBase) -> None:
        packed = self._stack.enter_context(raw)
        if isinstance(raw, io.FileIO) and stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
            self._file = raw
        seek = None if self._file is None else self._file.seek
        self._stream = io.BufferedReader(_Whole(packed.read, seek), BUFFER_BYTES)
        unpack = _decompressor(self._stream.peek(MAGIC_BYTES)[:MAGIC_BYTES])
        if self._is_packed is not None and self._is_packed != (unpack is not None):
            if self._is_packed:
                raise Damaged(
                    f"{printable(os.fsencode(self.name))}: its compression is not known, or it is damaged"
                )
            unpack = None
        if unpack is not None:
            self._is_compressed = True
            self.path, self._file = "", None  # readers of files need the content
            self._stream = io.BufferedReader(_Whole(_unpacked(unpack(self._stream))), BUFFER_BYTES)
        self.head = self._stream.peek(HEAD_BYTES)[:HEAD_BYTES]

    def maps(self) -> bytes:
        """As of the opener."""
        return self._opener.maps()

    def place(self, offset: int, crc32: int | None = None) -> Place | None:
        """Where a byte of the stream is in the source; None if that is compressed, or standard input."""
        return Place(self.name, offset, crc32) if self.is_plain else None

    @property
    def is_plain(self) -> bool:
        """Whether the source has the bytes of the stream: it is neither compressed nor standard input."""
        return not self._is_compressed and self.name != STANDARD_INPUT

    def stream(self) -> BinaryIO:
        """The bytes, decompressed, from their begin; once."""
        if self._stream is None:
            raise InvalidInput(f"{printable(os.fsencode(self.name))} is a folder, not a file")
        return self._stream

    def size_bytes(self) -> int:
        """Of the file with the bytes, as of `file`."""
        return os.fstat(self._opened().fileno()).st_size

    def read_at(self, offset: int, length: int) -> bytes:
        """Bytes of that file, as far as it has them."""
        return os.pread(self._opened().fileno(), length, offset)

    def _opened(self) -> io.FileIO:
        if self._file is None:
            self._file = self._stack.enter_context(io.FileIO(self.file()))
        return self._file

    def beside(self, base: str, stack: ExitStack, is_packed: bool | None = None) -> "Input | None":
        """The file of this name in a folder, as a part of this source; None if there is none."""
        try:
            return Input(self.name, stack, self._opener, base, is_packed)
        except NotFound:
            return None

    def file(self) -> str:
        """The path of a local file or folder with the bytes; of a stream, a temporary one."""
        if not self.path:
            self.path = self._opener.file(self.stream(), self._stack)
        return self.path


def base_of(name: str) -> str:
    """The name of a source without its folder."""
    if name == STANDARD_INPUT:
        return "stdin"
    path = unquote(urlsplit(name).path) if is_web_url(name) else name
    if is_object_url(name):
        _, path = parse_object(name)
    return os.path.basename(path.rstrip("/")) or "source"


def label_of(name: str) -> str:
    """The name of a source without folder and suffix, for templates."""
    base = base_of(name)
    return _SUFFIX.sub("", base) or base


class _Whole(io.RawIOBase):
    """Fills each buffer, so that `peek` shows a whole head also of a pipe. After an error, the bytes before it come
    first. `seek`: of a file.
    """

    def __init__(
        self, read: Callable[[int], bytes | None], seek: Callable[[int, int], int] | None = None
    ) -> None:
        self._read = read
        self._seek = seek
        self._error: Exception | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._seek is not None

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return super().seek(offset, whence) if self._seek is None else self._seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if self._error is not None:
            raise self._error
        filled = 0
        try:
            while filled < len(view) and (part := self._read(len(view) - filled)):
                view[filled : filled + len(part)] = part
                filled += len(part)
        except Exception as error:  # sources raise errors of their own; raised by the next read
            if not filled:
                raise
            self._error = error
        return filled


def _open_remote(name: str) -> "HttpStream | RemoteStream":
    if is_web_url(name):
        return HttpStream(name)
    from dieselfs_tools.archives.importing.bucket_files import BucketFile

    return BucketFile(name)


class _Unpacking(Protocol):
    """A decompressor. `read1` returns what it has, up to `size` bytes."""

    def read1(self, size: int, /) -> bytes: ...


def _decompressor(magic: bytes) -> Callable[[BinaryIO], _Unpacking] | None:
    """The decompressor of a gzip, zstandard, bzip2 or xz stream; None for others."""
    if magic.startswith(b"\x1f\x8b\x08"):
        return lambda stream: gzip.GzipFile(fileobj=stream)
    if magic.startswith(b"BZh"):
        return bz2.BZ2File
    if magic.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMAFile
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        return _zstandard
    return None


def _zstandard(stream: BinaryIO) -> _Unpacking:
    unpacking: _Unpacking = (
        required("zstandard").ZstdDecompressor().stream_reader(stream, read_across_frames=True)
    )
    return unpacking


def _unpacked(unpacking: _Unpacking) -> Callable[[int], bytes]:
    def read(size: int) -> bytes:
        try:
            return unpacking.read1(min(size, UNPACKED_BYTES_MAX))
        except DieselfsError:
            raise
        except Exception as error:  # each of them has several of its own
            raise Damaged(f"the compressed data is cut off or damaged: {error}") from None

    return read
