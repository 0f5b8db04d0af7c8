"""Members of tar archives and WebDataset shards, in their order, as a stream. No I/O of its own."""

import io
import posixpath
import stat
import struct
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, BinaryIO, TypeVar, cast

from dieselfs.errors import Damaged
from dieselfs_tools.archives.importing.inputs import Input
from dieselfs_tools.archives.importing.record import (
    LINK_MODE,
    PART_BYTES,
    PERMISSIONS,
    Content,
    Place,
    Record,
)

BLOCK_BYTES = 512
SKIP_BYTES = 1 << 20
PARTS_MAX = 256
"""Of one archive: what is listed ahead of its readers should not displace what they read from the page cache."""

HEADER_BYTES_MAX = 1 << 20
"""The largest long name, or fields of a pax header: `tarfile` reads them into memory."""

HEADERS_BYTES_MAX = 2 << 20
"""All headers of one member, with the map of a file with holes, of which `tarfile` makes lists: 86,000 parts in the
old format of GNU tar. Also of all headers for the whole archive, which `tarfile` keeps.
"""

_TIME_S_MAX = 1 << 40
_HEADER_TYPES = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)

_BROKEN = (tarfile.TarError, EOFError, IndexError, OverflowError, ValueError, RecursionError)
"""`tarfile` calls itself for each header that belongs to the next one."""


def recognizes(source: Input) -> bool:
    """Whether a file begins with the header of a member whose checksum is right, or is an empty archive."""
    block = source.head[:512]
    if len(block) < 512:
        return False
    if not any(block):
        return True
    digits = block[148:156].strip(b" \0")
    total = sum(block[:148]) + 8 * ord(" ") + sum(block[156:])
    return digits.isdigit() and int(digits, 8) == total if set(digits) <= set(b"01234567") else False


def read(source: Input) -> Iterator[Record]:
    """Raises Damaged at a damaged header or an early end; all members before are whole."""
    stream = _forward(source)

    def opened() -> Content:
        return stream  # which is at the content of the newest member

    with _translated():
        for archive, member in _members(stream):
            if source.end and member.offset >= source.end:
                return
            yield _record(archive, member, opened, source.place(stream.tell()))


def starts(source: Input, _jobs: int) -> Iterator[int]:
    """Offsets of members from which the archive can be read without what is before: none behind a header for all of it,
    or behind damage, which `read` reports.
    """
    step, last = max(PART_BYTES, source.size_bytes() // PARTS_MAX), 0
    with suppress(Damaged), _translated():
        for archive, member in _members(_forward(source)):
            if archive.pax_headers:
                return
            if member.offset - last >= step:
                last = member.offset
                yield last


def _forward(source: Input) -> "ForwardStream":
    stream = source.stream()
    if source.begin or source.end:
        stream.seek(source.begin)  # of a file, of which another part may have been read
    return ForwardStream(stream, stream.seekable(), source.begin)


@contextmanager
def _translated() -> Iterator[None]:
    """Raises Damaged for what `tarfile` raises for a damaged archive."""
    try:
        yield
    except _BROKEN as error:
        raise Damaged(f"damaged: {error or 'it ends early'}") from None


def _members(stream: "ForwardStream") -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """The members from here to the end, each with the stream at its content. Raises Damaged, and `_BROKEN`."""
    endings: list[Exception] = []
    # Not mode "r|", which copies its buffer at each read.
    with tarfile.open(
        fileobj=cast(BinaryIO, stream),
        mode="r:",
        tarinfo=_member_type(endings.append),
        encoding="utf-8",
        errors="surrogateescape",
    ) as archive:
        members = cast(list[tarfile.TarInfo], cast(Any, archive).members)
        while (member := stream.of_headers(archive.next)) is not None:
            members.clear()  # or the archive keeps all of them in memory
            yield archive, member
    position = stream.tell()
    if not endings or type(endings[-1]).__name__ != "EOFHeaderError":
        raise Damaged(
            f"cut off or damaged after {position} bytes: a header is damaged, or there is no end mark"
        )
    # `tarfile` takes one block of zeros for the end, GNU tar two. Behind the end there is only padding.
    while block := stream.read(SKIP_BYTES):
        if any(block):
            raise Damaged(
                f"damaged or joined archives: more data after the end mark at {position - BLOCK_BYTES}"
            )


_Found = TypeVar("_Found")


class ForwardStream:
    """A stream for `tarfile`, which seeks forwards only: skipped bytes are read, unless it `is_file`."""

    def __init__(self, stream: BinaryIO, is_file: bool = False, position: int = 0) -> None:
        self._read = stream.read
        self._seek = stream.seek if is_file else None
        self._position = position
        self._left_bytes = HEADERS_BYTES_MAX  # `tarfile.open` reads the first headers

    def of_headers(self, read_next: Callable[[], _Found]) -> _Found:
        """What `read_next` returns. It may read HEADERS_BYTES_MAX, besides what it seeks over; then it gets a
        `tarfile.ReadError`.
        """
        self._left_bytes = HEADERS_BYTES_MAX
        try:
            return read_next()
        finally:
            self._left_bytes = sys.maxsize

    def read(self, size: int, /) -> bytes:
        content = self._skip(size)
        self._left_bytes -= len(content)
        if self._left_bytes < 0:
            raise tarfile.ReadError(f"more than {HEADERS_BYTES_MAX} bytes of headers of one file")
        return content

    def _skip(self, size: int) -> bytes:
        content = self._read(size)
        self._position += len(content)
        return content

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> int:
        """Stops at the end of the stream; of a file, the next read does."""
        if self._seek is not None and self._position < position:
            self._seek(position - self._position, io.SEEK_CUR)  # standard input may have begun anywhere
            self._position = position
        while self._position < position and self._skip(min(position - self._position, SKIP_BYTES)):
            pass
        if self._position > position:
            raise tarfile.StreamError("seeking backwards is not allowed")
        return self._position


def _member_type(ended: Callable[[Exception], None]) -> type[tarfile.TarInfo]:
    """A type of members that passes each header that is none to `ended`: `tarfile` takes damage for the end."""

    global_bytes = 0

    class Member(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "Member":
            nonlocal global_bytes
            try:
                member = _plain_member(cls, buf) or super().frombuf(buf, encoding, errors)
                if member.type in _HEADER_TYPES and member.size > HEADER_BYTES_MAX:
                    raise tarfile.HeaderError(f"a header of {member.size} bytes")
                if member.type == tarfile.XGLTYPE:
                    global_bytes += member.size
                    if global_bytes > HEADERS_BYTES_MAX:
                        raise tarfile.HeaderError(f"{global_bytes} bytes of headers of the whole archive")
                return member
            except tarfile.HeaderError as error:
                ended(error)
                raise

    return Member


_Member = TypeVar("_Member", bound=tarfile.TarInfo)

_HEADER = struct.Struct("100s8s16x12s12s8sc100x8s80x155s12x")
_PLAIN_TYPES = (tarfile.REGTYPE, tarfile.DIRTYPE)
_PLAIN_MAGICS = (tarfile.POSIX_MAGIC, tarfile.GNU_MAGIC)


def _plain_member(kind: type[_Member], block: bytes | bytearray) -> _Member | None:
    """The header of a plain file or folder, without fields that nobody uses here: in a third of the time of `tarfile`.
    None if there is anything unusual, which `tarfile` knows.
    """
    if len(block) != tarfile.BLOCKSIZE:
        return None
    name, mode, size, mtime, checksum, type_, magic, prefix = _HEADER.unpack(block)
    if type_ not in _PLAIN_TYPES or magic not in _PLAIN_MAGICS:
        return None
    try:
        if int(checksum.strip(b" \0"), 8) != sum(block) - sum(checksum) + len(checksum) * ord(" "):
            return None
        member = kind(_text(name))
        member.mode, member.size, member.mtime = (
            int(field.strip(b" \0"), 8) for field in (mode, size, mtime)
        )
    except ValueError:  # large numbers are binary
        return None
    member.type = type_
    if type_ == tarfile.DIRTYPE:
        member.name = member.name.rstrip("/")
    if prefix[0]:
        member.name = f"{_text(prefix)}/{member.name}"
    return member


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _record(
    archive: tarfile.TarFile, member: tarfile.TarInfo, opened: Callable[[], Content], place: Place | None
) -> Record:
    name = _encoded(member.name)
    mode = member.mode & PERMISSIONS
    mtime_ns = _mtime_ns(member)
    if member.isreg():
        if member.sparse is not None:
            opened, place = partial(_Sparse, archive, member), None
        return Record(name, mtime_ns, member.size, None, opened, stat.S_IFREG | mode, place=place)
    if member.isdir():
        return Record(name, mtime_ns, mode=stat.S_IFDIR | mode)
    if member.issym():
        return Record(name, mtime_ns, mode=LINK_MODE, target=_encoded(member.linkname))
    if member.islnk():
        target = posixpath.relpath(_encoded(member.linkname), posixpath.dirname(name) or b".")
        return Record(name, mtime_ns, mode=LINK_MODE, target=target, is_hard_link=True)
    return Record(name, mtime_ns, fault="neither file nor folder nor link")


class _Sparse:
    """The content of a file with holes, whose map is in the archive."""

    def __init__(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        self._file = cast(Content, archive.extractfile(member))

    def read(self, size: int, /) -> bytes:
        """Raises Damaged if the map leads elsewhere, or the archive ends."""
        with _translated():
            return self._file.read(size)


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _mtime_ns(member: tarfile.TarInfo) -> int:
    """A pax header has fractions of a second as text, which a float would round. 0 for a time that cannot be."""
    if "mtime" in member.pax_headers:
        with suppress(InvalidOperation):
            time_s = Decimal(member.pax_headers["mtime"])
            # Any exponent may stand there, and `int` would write out all digits.
            is_possible = time_s.is_finite() and time_s.copy_abs() < _TIME_S_MAX
            return int(time_s * 10**9) if is_possible else 0
    return int(member.mtime) * 10**9
