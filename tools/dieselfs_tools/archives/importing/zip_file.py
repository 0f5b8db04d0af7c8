"""Members of zip and npz archives, in the order of their directory. This module opens files."""

import calendar
import errno
import lzma
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from dieselfs.errors import Damaged
from dieselfs_tools.archives.importing.inputs import Input
from dieselfs_tools.archives.importing.record import (
    FILE_MODE,
    FOLDER_MODE,
    LINK_MODE,
    PART_BYTES,
    PERMISSIONS,
    Place,
    Record,
)

_ENCRYPTED = 0x1
_LOCAL = struct.Struct("<4s22xHH")
_LOCAL_MAGIC = b"PK\x03\x04"
_UNIX = 3
_LINK_BYTES_MAX = 4095
_MEMBER_BYTES = 32 << 10
"""What a member costs besides its content, as bytes of content that take the same time."""

_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    IndexError,
    RuntimeError,  # also NotImplementedError, for versions and compressions of later times
    ValueError,
)


def read(source: Input) -> Iterator[Record]:
    """Raises Damaged if the directory at the end is; a damaged member fails alone."""
    path = source.file()
    with _translated(), zipfile.ZipFile(path) as archive:
        for member in archive.infolist()[source.begin : source.end or None]:
            yield _record(source, archive, member)


def starts(source: Input, jobs: int) -> Iterator[int]:
    """Numbers of members in the directory: one part for each process, because each reads the whole directory. None if
    that is damaged, of which `read` tells.
    """
    path, taken = source.file(), 0
    with suppress(Damaged), _translated(), zipfile.ZipFile(path) as archive:
        sizes = [member.file_size + _MEMBER_BYTES for member in archive.infolist()]
        step = max(PART_BYTES, sum(sizes) // jobs)
        for number, size in enumerate(sizes):
            if taken >= step:
                taken = 0
                yield number
            taken += size


@contextmanager
def _translated() -> Iterator[None]:
    """Raises Damaged for what `zipfile` raises for a damaged archive."""
    try:
        yield
    except _BROKEN as error:
        raise Damaged(f"damaged: {error}") from None
    except OSError as error:
        if error.errno != errno.EINVAL:  # of a place before the begin of the file
            raise
        raise Damaged("damaged: a member is outside of the file") from None


def _record(source: Input, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Record:
    name = member.filename.encode("utf-8", "surrogateescape")
    # A zip file has local times without a zone; as UTC, they are the same on all machines.
    mtime_ns = calendar.timegm((*member.date_time, 0, 0, 0)) * 10**9
    unix = member.external_attr >> 16 if member.create_system == _UNIX else 0
    if member.is_dir():
        return Record(name, mtime_ns, mode=stat.S_IFDIR | (unix & PERMISSIONS or stat.S_IMODE(FOLDER_MODE)))
    if member.flag_bits & _ENCRYPTED:
        return Record(
            name, mtime_ns, fault="it is encrypted; unpack it with its password, and put the folder"
        )
    if stat.S_ISLNK(unix):
        if member.file_size > _LINK_BYTES_MAX:
            return Record(name, mtime_ns, fault="the target of the link is too long")
        try:
            target = _Member(archive, member).read(member.file_size)
        except Damaged as error:
            return Record(name, mtime_ns, fault=str(error))
        return Record(name, mtime_ns, mode=LINK_MODE, target=target)
    mode = stat.S_IFREG | (unix & PERMISSIONS or stat.S_IMODE(FILE_MODE))
    place = _place(source, archive, member)
    return Record(
        name, mtime_ns, member.file_size, opened=partial(_Member, archive, member), mode=mode, place=place
    )


def _place(source: Input, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Place | None:
    """Behind the name in front of the member, which may have other extra fields than the directory has."""
    if member.compress_type != zipfile.ZIP_STORED or archive.fp is None or member.header_offset < 0:
        return None
    archive.fp.seek(member.header_offset)
    head = archive.fp.read(_LOCAL.size)
    if len(head) < _LOCAL.size:
        return None
    magic, name_bytes, extra_bytes = _LOCAL.unpack(head)
    if magic != _LOCAL_MAGIC:
        return None
    return source.place(member.header_offset + _LOCAL.size + name_bytes + extra_bytes, member.CRC)


class _Member:
    """The content of a member, whose checksum is verified at its end."""

    def __init__(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
        """Raises Damaged, also if its compression is not supported."""
        self._left_bytes = member.file_size
        with _translated():
            self._file = archive.open(member)

    def read(self, size: int, /) -> bytes:
        with _translated():
            content = self._file.read(size)
            self._left_bytes -= len(content)
            if not self._left_bytes:
                content += self._file.read(1)  # the end is seen, so the checksum is compared
            return content
