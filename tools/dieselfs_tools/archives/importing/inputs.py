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
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

from dieselfs.attached.web_url import is_web_url
from dieselfs.bucket.url import is_object_url, parse_object
from dieselfs.errors import Damaged, DieselfsError, InvalidInput, NotFound
from dieselfs.names import printable
from dieselfs_tools.archives.formats import FORMATS, IMPORTED, required
from dieselfs_tools.archives.importing.http_stream import HttpStream
from dieselfs_tools.archives.importing.record import Place
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


class Input:
    """One source, for one pass. `head`: its first bytes, decompressed; of a folder, none."""

    def __init__(
        self,
        name: str,
        stack: ExitStack,
        output: Output,
        is_packed: bool | None = None,
        open_remote: OpenRemote | None = None,
    ) -> None:
        """Raises NotFound, Unavailable (a URL), InvalidInput, Damaged. `stack` closes what is opened. `is_packed`:
        whether the bytes are compressed; None looks at the first ones. `open_remote` opens what is at a URL.
        """
        self.name = name
        self._open_remote = open_remote or _open_remote
        self._is_packed = is_packed
        self._is_compressed = False
        self.is_folder = False
        self.mtime_ns = 0
        self.path = ""
        self.head = b""
        self._stack = stack
        self._output = output
        self._stream: io.BufferedReader | None = None
        if is_object_url(name) and name.partition("?")[0].endswith("/"):
            self.is_folder = True
        elif is_object_url(name) or is_web_url(name):
            remote = self._open_remote(name)
            self.mtime_ns = remote.mtime_ns
            self._open(remote)
        elif name == STANDARD_INPUT:
            self._open(io.FileIO(sys.stdin.fileno(), closefd=False))
        else:
            self._open_local(name)

    def _open_local(self, name: str) -> None:
        try:
            status = os.stat(name)
            self.path, self.mtime_ns, self.is_folder = name, status.st_mtime_ns, stat.S_ISDIR(status.st_mode)
            if not self.is_folder:
                self._open(io.FileIO(name))
        except OSError as error:
            raise NotFound(f"{printable(os.fsencode(name))}: {error.strerror}") from None

    def _open(self, raw: io.RawIOBase) -> None:
        packed = self._stack.enter_context(raw)
        self._stream = io.BufferedReader(_Whole(packed.read), BUFFER_BYTES)
        unpack = _decompressor(self._stream.peek(MAGIC_BYTES)[:MAGIC_BYTES])
        if self._is_packed is not None and self._is_packed != (unpack is not None):
            if self._is_packed:
                raise Damaged(
                    f"{printable(os.fsencode(self.name))}: its compression is not known, or it is damaged"
                )
            unpack = None
        if unpack is not None:
            self._is_compressed = True
            self.path = ""  # readers of files need the content
            self._stream = io.BufferedReader(_Whole(_unpacked(unpack(self._stream))), BUFFER_BYTES)
        self.head = self._stream.peek(HEAD_BYTES)[:HEAD_BYTES]

    @property
    def label(self) -> str:
        """The name of the source without folder and suffix, for templates."""
        if self.name == STANDARD_INPUT:
            return "stdin"
        path = unquote(urlsplit(self.name).path) if is_web_url(self.name) else self.name
        if is_object_url(self.name):
            _, path = parse_object(self.name)
        base = os.path.basename(path.rstrip("/")) or "source"
        return _SUFFIX.sub("", base) or base

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

    def beside(self, base: str, stack: ExitStack, is_packed: bool | None = None) -> "Input | None":
        """The file of this name in a folder, as a part of this source; None if there is none."""
        if is_object_url(self.name):
            from dieselfs_tools.archives.importing.bucket_files import beside

            try:
                return Input(beside(self.name, base), stack, self._output, is_packed, self._open_remote)
            except NotFound:
                return None
        path = os.path.join(self.name, base)
        return Input(path, stack, self._output, is_packed) if os.path.exists(path) else None

    def file(self) -> str:
        """The path of a local file or folder with the bytes; of a stream, a temporary one."""
        if not self.path:
            self.path = self._stack.enter_context(spooled(self.stream(), self._output, self.name))
        return self.path


class _Whole(io.RawIOBase):
    """Fills each buffer, so that `peek` shows a whole head also of a pipe. After an error, the bytes before it come
    first.
    """

    def __init__(self, read: Callable[[int], bytes | None]) -> None:
        self._read = read
        self._error: Exception | None = None

    def readable(self) -> bool:
        return True

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
