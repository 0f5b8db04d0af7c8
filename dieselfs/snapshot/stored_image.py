"""The image of a generation as a mount serves it: computed once, kept beside the snapshot, mapped. This module opens
files.

The kernel keeps inodes and folders of an image for as long as it is mounted, so all daemons of
a mount must serve the same one: they hand its descriptor on.
"""

import mmap
import os
from contextlib import suppress
from dataclasses import astuple
from functools import partial
from pathlib import Path
from struct import Struct

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_128, xxh3_128_digest

from dieselfs.columns import I64, U8
from dieselfs.errors import Damaged
from dieselfs.snapshot.erofs_image import (
    BLOCK_BYTES,
    FILE_GUARD_BLOCKS,
    METADATA_GUARD_BLOCKS,
    ErofsImage,
    ImageOwner,
    ImagePlan,
    Serving,
)
from dieselfs.snapshot.reader import Snapshot

_MAGIC = b"dieselI1"
_HEADER = Struct("<8s16s16sQQQQ")
"""Magic, checksum of what follows it, key, bytes of the metadata area, files, bytes of the image, opening offset."""
_CHECKED_FROM = 24
_MADV_POPULATE_WRITE = 23
"""Maps all pages at once; faults of single ones would take a quarter of the time of the whole."""
METADATA_OFFSET = 2 * BLOCK_BYTES
"""The place of the metadata area in the file. Before it: the header, and the opening block."""


def image_key(snapshot: Snapshot, ownership: ImageOwner, serving: Serving) -> bytes:
    """Digest of all that determines the bytes of an image; 16 bytes."""
    layout = (BLOCK_BYTES, FILE_GUARD_BLOCKS, METADATA_GUARD_BLOCKS)
    told = (_MAGIC, snapshot.header.digest, astuple(ownership), serving.control, layout)
    return xxh3_128_digest(repr(told).encode() + serving.is_guarded.tobytes())


def stored_image(snapshot: Snapshot, ownership: ImageOwner, serving: Serving) -> int:
    """A descriptor of the image, which the caller closes: from the file beside the snapshot, or computed.

    A computed one is kept there; in memory where the folder cannot be written, and for a snapshot without a file.
    Raises InvalidInput as `ImagePlan`.
    """
    key = image_key(snapshot, ownership, serving)
    beside = Path(snapshot.source).with_suffix(f".{key.hex()[:8]}.erofs")
    with suppress(OSError, Damaged):
        descriptor = os.open(beside, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            open_image(descriptor, key)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor
    aside = beside.with_suffix(f".{os.getpid()}.tmp")
    with suppress(OSError):
        if not Path(snapshot.source).is_file() or str(beside).startswith("/proc/"):
            raise FileNotFoundError(beside)
        aside.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(aside, flags, 0o600)
        try:
            _write(descriptor, snapshot, ownership, serving, key)
            os.rename(aside, beside)
        except BaseException:
            os.close(descriptor)
            aside.unlink(missing_ok=True)
            raise
        return descriptor
    descriptor = os.memfd_create("dieselfs-image", os.MFD_CLOEXEC)
    _write(descriptor, snapshot, ownership, serving, key)
    return descriptor


def mapped_zeros(descriptor: int, offset: int, count: int) -> npt.NDArray[np.uint8]:
    """`count` bytes of an empty file from `offset` on, mapped: the kernel writes the pages out, so they are no memory
    of this process. Raises OSError.
    """
    os.posix_fallocate(descriptor, 0, offset + count)  # a full disk is an error here, a signal later
    mapped = mmap.mmap(descriptor, offset + count)
    with suppress(OSError):  # before Linux 5.14
        mapped.madvise(_MADV_POPULATE_WRITE)
    return np.frombuffer(mapped, U8)[offset:]


def _write(descriptor: int, snapshot: Snapshot, ownership: ImageOwner, serving: Serving, key: bytes) -> None:
    plan = ImagePlan(snapshot, ownership, serving=serving)
    image = plan.write(partial(mapped_zeros, descriptor, METADATA_OFFSET))
    counts = len(image.metadata), len(image.nodes), image.size_bytes, image.opening_offset
    rest = _HEADER.pack(b"", b"", key, *counts).ljust(BLOCK_BYTES, b"\0")[_CHECKED_FROM:]
    checksum = xxh3_128(rest)
    for column in (image.opening, image.metadata, image.nodes, image.starts):
        checksum.update(column.data.cast("B") if len(column) else b"")
    head = b"".join((_MAGIC, checksum.digest(), rest, image.opening.tobytes()))
    os.pwrite(descriptor, head, 0)


def open_image(descriptor: int, key: bytes | None = None) -> ErofsImage:
    """The image of a descriptor of `stored_image`, mapped; the descriptor may be closed.

    Checks it against its checksum, in about 0.01 s for a million files. Raises Damaged, also if it is not that of
    `key`; OSError if it cannot be mapped.
    """
    if os.fstat(descriptor).st_size < METADATA_OFFSET:
        raise Damaged("the stored image is cut off")
    data = np.frombuffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ), U8)
    magic, checksum, found, metadata, files, size_bytes, opening_offset = _HEADER.unpack_from(data.data)
    if magic != _MAGIC or xxh3_128_digest(data.data[_CHECKED_FROM:]) != checksum:
        raise Damaged("the stored image does not match its checksum")
    if key is not None and found != key:
        raise Damaged("the stored image is of another snapshot, owner or layout")
    nodes_start = METADATA_OFFSET + metadata
    if nodes_start + 2 * I64.itemsize * files != len(data):
        raise Damaged("the stored image has another length than its header says")
    nodes, starts = data[nodes_start:].view(I64).reshape(2, files)
    return ErofsImage(
        data[METADATA_OFFSET:nodes_start],
        nodes,
        starts,
        size_bytes,
        data[BLOCK_BYTES:METADATA_OFFSET],
        opening_offset,
    )
