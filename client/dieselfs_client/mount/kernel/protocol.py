"""The part of the FUSE kernel protocol (`<linux/fuse.h>`) for read-only filesystems. Bytes in, bytes out; no I/O.

The kernel sends one request per read of `/dev/fuse` and takes one reply per write; numbers are in the byte order of the
machine. The kernel caches everything for `FOREVER_S`, because a mount shows one frozen generation.
"""

import stat
import struct
from collections.abc import Sequence
from enum import IntEnum, IntFlag
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dieselfs.errors import ProtocolError
from dieselfs.limits import NAME_BYTES_MAX, READ_BYTES_MAX
from dieselfs_client.mount.reading.core import (
    FOLDER_BLOCK_BYTES,
    IO_BLOCK_BYTES,
    ROOT_INODE,
    STAT_BLOCK_BYTES,
    Attributes,
    Siblings,
)

MAJOR = 7
MINOR_MIN = 29
"""Linux 5.1, the first version that works without OPENDIR."""
MINOR = 38
FOREVER_S = 10 * 365 * 24 * 3600
PAGE_BYTES = 4096
REQUEST_BYTES_MAX = 128 << 10
"""Buffer for one request. Requests that change something may be larger; then the kernel fails them."""
WRITE_BYTES_MAX = PAGE_BYTES
"""The smallest size that the kernel accepts; only a file of the control tree is written to."""
REQUESTS_IN_BACKGROUND_MAX = 64
"""Limit of read-ahead requests in flight; other reads do not count."""


class Opcode(IntEnum):
    """The requests with a handler of their own, or without a reply. All others get ENOSYS."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    IOCTL = 39
    NOTIFY_REPLY = 41
    BATCH_FORGET = 42
    FALLOCATE = 43
    READDIRPLUS = 44
    RENAME2 = 45
    COPY_FILE_RANGE = 47
    TMPFILE = 51


class InitFlag(IntFlag):
    ASYNC_READ = 1 << 0
    EXPORT_SUPPORT = 1 << 4
    DO_READDIRPLUS = 1 << 13
    NO_OPEN_SUPPORT = 1 << 17
    PARALLEL_DIROPS = 1 << 18
    MAX_PAGES = 1 << 22
    CACHE_SYMLINKS = 1 << 23
    NO_OPENDIR_SUPPORT = 1 << 24


NEEDED = InitFlag.DO_READDIRPLUS | InitFlag.NO_OPEN_SUPPORT | InitFlag.NO_OPENDIR_SUPPORT
# Not wanted: READDIRPLUS_AUTO, because a walk before a training run must enter all files into the kernel's cache, so
# that an open sends no request; and ASYNC_DIO, because direct reads could not be interrupted.
WANTED = (
    NEEDED
    | InitFlag.ASYNC_READ
    | InitFlag.EXPORT_SUPPORT
    | InitFlag.PARALLEL_DIROPS
    | InitFlag.MAX_PAGES
    | InitFlag.CACHE_SYMLINKS
)

_IN_HEADER = struct.Struct("=IIQQIIII")
_OUT_HEADER = struct.Struct("=IiQ")
_ATTRIBUTES = "QQQqqqIIIIIIIIII"
_ENTRY_OUT = struct.Struct("=QQQQII" + _ATTRIBUTES)
_ATTR_OUT = struct.Struct("=QII" + _ATTRIBUTES)
_READ_IN = struct.Struct("=QQII")  # its first fields
_READ_LOCK_OWNER = 1 << 1
_WRITE_IN = struct.Struct("=QQIIQII")
_WRITE_OUT = struct.Struct("=II")
_SETATTR_IN = struct.Struct("=IIQQ")  # its first fields
_INIT_IN = struct.Struct("=IIII")
_INIT_OUT = struct.Struct("=IIIIHHIIHHI28x")
_STATFS_OUT = struct.Struct("=QQQQQIII28x")
_NUMBER_IN = struct.Struct("=Q")
_BATCH_FORGET_IN = struct.Struct("=II")
_FORGET_ONE = struct.Struct("=QQ")


def _fields(kind: str, names: str) -> list[tuple[str, str]]:
    """Fields of one type that follow each other."""
    return [(name, kind) for name in names.split()]


_DIRENT = np.dtype([*_fields("u8", "inode next_position"), *_fields("u4", "name_length type")])
_ATTRIBUTE_FIELDS = [
    *_fields("u8", "inode size blocks"),
    *_fields("i8", "atime_s mtime_s ctime_s"),
    *_fields("u4", "atime_ns mtime_ns ctime_ns mode links user group device block_size flags"),
]
_DIRENT_PLUS = np.dtype(
    [
        *_fields("u8", "node generation entry_valid_s attr_valid_s"),
        *_fields("u4", "entry_valid_ns attr_valid_ns"),
        ("attr", _ATTRIBUTE_FIELDS),
        ("dirent", _DIRENT),
    ]
)
IN_HEADER_BYTES = _IN_HEADER.size
_SIZE_VALID = 1 << 3
_OTHERS_VALID = 0b111 | 1 << 4 | 1 << 5
"""FATTR_MODE, FATTR_UID, FATTR_GID, FATTR_ATIME, FATTR_MTIME."""
_STORE = np.dtype(
    [("length", "u4"), ("code", "i4"), *_fields("u8", "unique inode offset"), *_fields("u4", "size padding")]
)
_NOTIFY_STORE = 4
OUT_HEADER_BYTES = _OUT_HEADER.size
DIRENT_BYTES = _DIRENT.itemsize
DIRENT_PLUS_BYTES = _DIRENT_PLUS.itemsize
assert _STORE.itemsize == 40
assert (IN_HEADER_BYTES, OUT_HEADER_BYTES, DIRENT_BYTES, DIRENT_PLUS_BYTES) == (40, 16, 24, 152)
assert (_ENTRY_OUT.size, _ATTR_OUT.size, _INIT_OUT.size, _STATFS_OUT.size) == (128, 104, 64, 80)

_S = 1_000_000_000
_FOLDER_TYPE = stat.S_IFDIR >> 12
_PADDING = tuple(bytes(-length % 8) for length in range(NAME_BYTES_MAX + 1))


class KernelRequest(NamedTuple):
    """One request. `unique` identifies it in the reply; `body`: the bytes after the header."""

    opcode: int
    unique: int
    inode: int
    body: memoryview


class InitRequest(NamedTuple):
    major: int
    minor: int
    max_readahead_bytes: int
    flags: int


class ReadRequest(NamedTuple):
    """The range of a READ in bytes. For READDIR and READDIRPLUS: a position, and the room for the reply in bytes.

    `is_direct`: the bytes bypass the page cache, so a program gets the error of the reply.
    """

    offset: int
    size: int
    is_direct: bool


def _unpack(layout: struct.Struct, body: memoryview, what: str) -> tuple[int, ...]:
    if len(body) < layout.size:
        raise ProtocolError(f"{what} of {len(body)} bytes from the kernel, expected {layout.size}")
    return layout.unpack_from(body)


def decode_request(packet: memoryview) -> KernelRequest:
    """`body` is a view of `packet`. Raises ProtocolError if the lengths do not match."""
    length, opcode, unique, inode, _user, _group, _process, _extensions = _unpack(
        _IN_HEADER, packet, "request"
    )
    if length != len(packet):
        raise ProtocolError(f"request of {len(packet)} bytes from the kernel announces {length}")
    return KernelRequest(opcode, unique, inode, packet[IN_HEADER_BYTES:])


def decode_init(body: memoryview) -> InitRequest:
    return InitRequest(*_unpack(_INIT_IN, body, "INIT"))


def decode_read(body: memoryview) -> ReadRequest:
    _handle, offset, size, flags = _unpack(_READ_IN, body, "READ")
    # Linux names the owner of file locks (fuse_direct_io) in direct reads alone, also in those of loop devices, of
    # which the flags of the open file say nothing.
    return ReadRequest(offset, size, bool(flags & _READ_LOCK_OWNER))


def decode_write(body: memoryview) -> tuple[int, memoryview]:
    """The offset of a WRITE, and its bytes, which are a view of `body`."""
    _handle, offset, size, *_ = _unpack(_WRITE_IN, body, "WRITE")
    content = body[_WRITE_IN.size :]
    if len(content) != size:
        raise ProtocolError(f"WRITE of {len(content)} bytes from the kernel announces {size}")
    return offset, content


def encode_written(size: int) -> bytes:
    """The reply to WRITE."""
    return _WRITE_OUT.pack(size, 0)


def decode_setattr(body: memoryview) -> int | None:
    """The new size that a SETATTR asks for; None if it changes others than the size."""
    valid, _, _handle, size = _unpack(_SETATTR_IN, body, "SETATTR")
    return size if valid & _SIZE_VALID and not valid & _OTHERS_VALID else None


def decode_number(body: memoryview) -> int:
    """INTERRUPT: the `unique` of the interrupted request. FORGET: how many lookups of its inode are released."""
    return _unpack(_NUMBER_IN, body, "INTERRUPT or FORGET")[0]


def decode_batch_forget(body: memoryview) -> list[tuple[int, int]]:
    """Inodes, and how many lookups of each are released."""
    count, _ = _unpack(_BATCH_FORGET_IN, body, "BATCH_FORGET")
    entries = body[_BATCH_FORGET_IN.size :]
    if len(entries) != count * _FORGET_ONE.size:
        raise ProtocolError(f"BATCH_FORGET of {len(entries)} bytes from the kernel announces {count} inodes")
    return list(_FORGET_ONE.iter_unpack(entries))


def decode_name(body: memoryview) -> bytes:
    """The name in LOOKUP: all bytes before the NUL."""
    return bytes(body).partition(b"\0")[0]


def encode_header(unique: int, payload_length: int, errno: int = 0) -> bytes:
    """The header of a reply. `errno` is positive, as in the module `errno`; an error has no payload."""
    return _OUT_HEADER.pack(OUT_HEADER_BYTES + payload_length, -errno, unique)


def encode_init(request: InitRequest) -> bytes:
    """The reply to INIT. Raises ProtocolError if the kernel is too old."""
    if request.major != MAJOR or request.minor < MINOR_MIN or request.flags & NEEDED != NEEDED:
        raise ProtocolError(
            f"the kernel has FUSE {request.major}.{request.minor} with features {request.flags:#x}; "
            f"dieselfs needs {MAJOR}.{MINOR_MIN} (Linux 5.1) or newer"
        )
    return _INIT_OUT.pack(
        MAJOR,
        min(MINOR, request.minor),
        READ_BYTES_MAX,
        request.flags & WANTED,
        REQUESTS_IN_BACKGROUND_MAX,
        REQUESTS_IN_BACKGROUND_MAX * 3 // 4,
        WRITE_BYTES_MAX,
        1,  # granularity of time stamps, ns
        READ_BYTES_MAX // PAGE_BYTES,
        0,
        0,
    )


NO_SUCH_ENTRY = _ENTRY_OUT.pack(0, 0, FOREVER_S, *([0] * 19))
"""The reply to LOOKUP of a name that does not exist; the kernel caches it."""


class Encoder:
    """Encodes attributes, with the owner and group of all files. `root_user` owns the root; None: the same user."""

    def __init__(self, user: int, group: int, root_user: int | None = None) -> None:
        self._user = user
        self._root_user = user if root_user is None else root_user
        self._group = group
        blank = np.zeros(1, _DIRENT_PLUS)
        blank["entry_valid_s"] = blank["attr_valid_s"] = FOREVER_S
        blank["attr"]["links"] = 1
        blank["attr"]["user"] = user
        blank["attr"]["group"] = group
        blank["attr"]["block_size"] = IO_BLOCK_BYTES
        self._blank = blank

    def _attribute_fields(self, of: Attributes) -> tuple[int, ...]:
        second, ns = divmod(of.mtime_ns, _S)
        user = self._root_user if of.inode == ROOT_INODE else self._user
        return (
            *(of.inode, of.size, of.blocks),
            *(second, second, second, ns, ns, ns),
            *(of.mode, 1, user, self._group, 0, of.io_block_bytes, 0),
        )

    def entry(self, of: Attributes, name_valid_s: int = FOREVER_S) -> bytes:
        """The reply to LOOKUP. The kernel caches the attributes for FOREVER_S, the name for `name_valid_s`."""
        return _ENTRY_OUT.pack(of.inode, 0, name_valid_s, FOREVER_S, 0, 0, *self._attribute_fields(of))

    def attributes(self, of: Attributes) -> bytes:
        """The reply to GETATTR."""
        return _ATTR_OUT.pack(FOREVER_S, 0, 0, *self._attribute_fields(of))

    def listing_plus(self, entries: Siblings, first_position: int) -> bytes:
        """Entries for READDIRPLUS; the first one is at `first_position` in its folder."""
        records = np.repeat(self._blank, len(entries.names))
        records["node"] = entries.inodes if entries.is_cacheable else 0
        attributes = records["attr"]
        attributes["inode"] = entries.inodes
        attributes["size"] = entries.sizes
        attributes["blocks"] = -(-entries.sizes.astype(np.int64) // STAT_BLOCK_BYTES)
        seconds, ns = np.divmod(entries.mtimes_ns, _S)
        for time in ("atime", "mtime", "ctime"):
            attributes[f"{time}_s"] = seconds
            attributes[f"{time}_ns"] = ns
        attributes["mode"] = entries.modes
        attributes["block_size"][entries.modes >> 12 == _FOLDER_TYPE] = FOLDER_BLOCK_BYTES
        _fill_dirents(records["dirent"], entries, first_position)
        return _join_names(records, entries.names)


def encode_listing(entries: Siblings, first_position: int) -> bytes:
    """Entries for READDIR; the first one is at `first_position` in its folder."""
    records = np.zeros(len(entries.names), _DIRENT)
    _fill_dirents(records, entries, first_position)
    return _join_names(records, entries.names)


def _fill_dirents(dirents: npt.NDArray[np.void], entries: Siblings, first_position: int) -> None:
    dirents["inode"] = entries.inodes
    dirents["next_position"] = np.arange(first_position + 1, first_position + 1 + len(entries.names))
    dirents["name_length"] = entries.name_lengths
    dirents["type"] = entries.modes >> 12


def _join_names(records: npt.NDArray[np.void], names: Sequence[bytes]) -> bytes:
    """Each record with its name behind it, padded to a multiple of eight bytes."""
    packed, step = records.tobytes(), records.itemsize
    parts = [b""] * (3 * len(names))
    parts[0::3] = [packed[start : start + step] for start in range(0, len(packed), step)]
    parts[1::3] = names
    parts[2::3] = [_PADDING[len(name)] for name in names]
    return b"".join(parts)


def count_that_fit(name_lengths: npt.NDArray[np.uint8], record_bytes: int, room_bytes: int) -> int:
    """How many of the first entries fit into a reply."""
    ends = np.cumsum(record_bytes + ((name_lengths.astype(np.int64) + 7) & ~7))
    return int(np.searchsorted(ends, room_bytes, side="right"))


def encode_stores(
    inodes: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.void]:
    """The headers of notices that store bytes of files in the page cache; each is followed by its bytes."""
    records = np.zeros(len(inodes), _STORE)
    records["length"] = lengths + _STORE.itemsize
    records["code"] = _NOTIFY_STORE
    records["inode"] = inodes
    records["offset"] = offsets
    records["size"] = lengths
    return records


def encode_statfs(total_bytes: int, entries: int) -> bytes:
    """No free space and no free inodes. Blocks have `STAT_BLOCK_BYTES`."""
    blocks = -(-total_bytes // STAT_BLOCK_BYTES)
    return _STATFS_OUT.pack(blocks, 0, 0, entries, 0, IO_BLOCK_BYTES, NAME_BYTES_MAX, STAT_BLOCK_BYTES)
