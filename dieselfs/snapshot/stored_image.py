"""The image of a generation as a mount serves it: kept beside the snapshot, mapped. This module opens files.

What places the files is computed before a mount. The metadata area is not: a part of it is computed when it is first
needed, and is kept. The kernel keeps inodes and folders of an image for as long as it is mounted, so all daemons of a
mount must serve the same one: they hand its descriptor on, and a part has the same bytes in each of them.
"""

import logging
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple
from errno import EACCES, EPERM, EROFS
from fcntl import F_GETFL, fcntl
from functools import partial
from pathlib import Path
from stat import S_ISREG
from struct import Struct
from threading import Lock

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest, xxh3_128, xxh3_128_digest

from dieselfs.columns import I64, U8, U32, U64
from dieselfs.errors import Damaged
from dieselfs.snapshot.erofs_files import BLOCK_BYTES, FILE_GUARD_BLOCKS
from dieselfs.snapshot.erofs_image import (
    METADATA_GUARD_BLOCKS,
    PART_BYTES,
    ErofsImage,
    ImageOwner,
    ImagePlan,
    Serving,
)
from dieselfs.snapshot.reader import Snapshot

_MAGIC = b"dieselI2"
"""Daemons of several versions fill one image: whatever changes a byte of the metadata area changes this."""
_WHOLE_MAGIC = b"dieselI1"
"""Of an image whose metadata area is complete: without first blocks and marks, and its checksum is of all bytes."""
_HEADER = Struct("<8s16s16sQQQQQ")
"""Magic, checksum, key, bytes of the metadata area, files, bytes of the image, opening offset, nodes."""
_CHECKED_FROM = 24
_MADV_POPULATE_WRITE = 23
"""Maps all pages at once; faults of single ones would take a quarter of the time of the whole."""
_STAT_BLOCK_BYTES = 512
METADATA_OFFSET = 2 * BLOCK_BYTES
"""The place of the metadata area in the file. Before it: the header, and the opening block."""

_log = logging.getLogger(__name__)


def image_key(snapshot: Snapshot, ownership: ImageOwner, serving: Serving) -> bytes:
    """Digest of all that determines the bytes of an image; 16 bytes."""
    layout = (BLOCK_BYTES, FILE_GUARD_BLOCKS, METADATA_GUARD_BLOCKS)
    told = (_MAGIC, snapshot.header.digest, astuple(ownership), serving.control, layout)
    return xxh3_128_digest(repr(told).encode() + serving.is_guarded.tobytes())


def stored_image(snapshot: Snapshot, ownership: ImageOwner, serving: Serving) -> tuple[ErofsImage, int]:
    """The image and a descriptor of it, which the caller closes: from the file beside the snapshot, or a new one.

    A new one is kept there; in memory where the folder cannot be written, and for a snapshot without a file. One that
    cannot be written is used if it is complete. Raises InvalidInput as `ImagePlan`.
    """
    key = image_key(snapshot, ownership, serving)
    beside = Path(snapshot.source).with_suffix(f".{key.hex()[:8]}.erofs")
    with suppress(OSError, Damaged):
        descriptor = _opened(beside)
        try:
            _check_owner(descriptor, snapshot.source)
            image = open_image(descriptor, partial(ImagePlan, snapshot, ownership, serving=serving), key)
            _reserve(descriptor)
            return image, descriptor
        except BaseException:
            os.close(descriptor)
            raise
    plan = ImagePlan(snapshot, ownership, serving=serving)
    if Path(snapshot.source).is_file() and not str(beside).startswith("/proc/"):
        try:
            return _kept(beside, plan, key)
        except OSError as error:
            _log.warning("the image %s cannot be kept, so it is in memory: %s", beside, error.strerror)
    descriptor = os.memfd_create("dieselfs-image", os.MFD_CLOEXEC)
    return _new(descriptor, plan, key), descriptor


def _kept(beside: Path, plan: ImagePlan, key: bytes) -> tuple[ErofsImage, int]:
    """A new image in a file, and a descriptor of it. Raises OSError."""
    aside = beside.with_suffix(f".{os.getpid()}.tmp")
    aside.unlink(missing_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(aside, flags, 0o600)
    try:
        image = _new(descriptor, plan, key)
        os.rename(aside, beside)
    except BaseException:
        os.close(descriptor)
        aside.unlink(missing_ok=True)
        raise
    return image, descriptor


def _opened(path: Path) -> int:
    """A descriptor for reading, and for writing if that is allowed. Raises OSError. A FIFO does not block."""
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, os.O_RDWR | flags)
    except OSError as error:
        if error.errno not in (EACCES, EPERM, EROFS):
            raise
        return os.open(path, os.O_RDONLY | flags)


def _check_owner(descriptor: int, snapshot_file: str) -> None:
    """Raise Damaged unless it is a regular file of root, of this user, or of the owner of the snapshot."""
    status = os.fstat(descriptor)
    if not S_ISREG(status.st_mode):
        raise Damaged("the stored image is no regular file")
    if status.st_uid not in (0, os.geteuid()) and status.st_uid != os.stat(snapshot_file).st_uid:
        raise Damaged("the stored image belongs to another user than its snapshot")


def _is_writable(descriptor: int) -> bool:
    return fcntl(descriptor, F_GETFL) & os.O_ACCMODE == os.O_RDWR


def _reserve(descriptor: int) -> None:
    """Give holes of a file room on the disk, as of one that was copied without its zeros. Raises OSError for a full
    disk, where a write to a mapped hole would be a signal.
    """
    status = os.fstat(descriptor)
    # Room that is reserved and not written counts as a hole, but has blocks; a compressed file has fewer, but no hole.
    may_lack = _is_writable(descriptor) and status.st_blocks * _STAT_BLOCK_BYTES < status.st_size
    if may_lack and os.lseek(descriptor, 0, os.SEEK_HOLE) < status.st_size:
        os.posix_fallocate(descriptor, 0, status.st_size)


def mapped_zeros(descriptor: int, count: int) -> npt.NDArray[np.uint8]:
    """An empty file of `count` bytes, mapped: the kernel writes the pages out, so they are no memory of this process.
    Raises OSError.
    """
    return np.frombuffer(_mapped(descriptor, count), U8)


def _mapped(descriptor: int, count: int, needed: int = 0) -> mmap.mmap:
    """As `mapped_zeros`; the pages from `needed` on are about to be written."""
    os.posix_fallocate(descriptor, 0, count)  # a full disk is an error here, a signal later
    mapped = mmap.mmap(descriptor, count)
    _populate(mapped, needed, count)
    return mapped


def _populate(mapped: mmap.mmap, first: int, end: int) -> None:
    first -= first % mmap.PAGESIZE
    with suppress(OSError):  # before Linux 5.14
        mapped.madvise(_MADV_POPULATE_WRITE, first, end - first)


class _Places:
    """Where the columns of a stored image lie, which begins with header, opening block and metadata area. `whole_end`:
    the end of one of _WHOLE_MAGIC.
    """

    def __init__(self, metadata: int, files: int, nodes: int) -> None:
        self.nodes = METADATA_OFFSET + metadata
        self.whole_end = self.nodes + 2 * I64.itemsize * files
        self.first_blocks = self.nodes + 2 * U32.itemsize * files
        self.marks = -(-(self.first_blocks + U32.itemsize * nodes) // U64.itemsize) * U64.itemsize
        self.end = self.marks + U64.itemsize * -(-metadata // PART_BYTES)


def _new(descriptor: int, plan: ImagePlan, key: bytes) -> ErofsImage:
    counts = plan.metadata_bytes, plan.files, plan.size_bytes, plan.opening_offset, len(plan.snapshot)
    places = _Places(plan.metadata_bytes, plan.files, len(plan.snapshot))
    mapped = _mapped(descriptor, places.end, places.nodes)
    data = np.frombuffer(mapped, U8)
    data[: _HEADER.size] = np.frombuffer(_HEADER.pack(_MAGIC, b"", key, *counts), U8)
    nodes, blocks = data[places.nodes : places.first_blocks].view(U32).reshape(2, plan.files)
    first_blocks = data[places.first_blocks : places.marks].view(U32)[: len(plan.snapshot)]
    plan.place_files(nodes, blocks, first_blocks)
    opening = plan.opening(first_blocks)
    data[BLOCK_BYTES : BLOCK_BYTES + len(opening)] = opening
    data[_CHECKED_FROM - 16 : _CHECKED_FROM] = np.frombuffer(checksum_of(data.data), U8)
    return _image(mapped, lambda: plan)


def checksum_of(data: memoryview) -> bytes:
    """That of a stored image, whose header has its magic and counts: of all but the metadata area and the marks."""
    magic, _, _, metadata, files, _, _, nodes = _HEADER.unpack_from(data)
    if magic == _WHOLE_MAGIC:
        return xxh3_128_digest(data[_CHECKED_FROM:])
    places = _Places(metadata, files, nodes)
    checksum = xxh3_128(data[_CHECKED_FROM:METADATA_OFFSET])
    checksum.update(data[places.nodes : places.marks])
    return checksum.digest()


def open_image(
    descriptor: int, plan: Callable[[], ImagePlan] | None = None, key: bytes | None = None
) -> ErofsImage:
    """The image of a descriptor of `stored_image`, mapped; the descriptor may be closed. `plan`: makes that of the same
    image, if a part of the metadata area must be computed.

    Checks it against its checksum, in about 0.01 s for a million files; each part of the metadata area when it is first
    needed, or at once if `key` is given and the descriptor is for reading alone. Raises Damaged, also if it is not that
    of `key`, or then lacks a part that cannot be written; OSError if it cannot be mapped.
    """
    if os.fstat(descriptor).st_size < METADATA_OFFSET:
        raise Damaged("the stored image is cut off")
    is_whole = os.pread(descriptor, len(_WHOLE_MAGIC), 0) == _WHOLE_MAGIC
    is_fixed = is_whole or not _is_writable(descriptor)
    access = mmap.ACCESS_READ if is_fixed else mmap.ACCESS_WRITE
    mapped = mmap.mmap(descriptor, 0, access=access)
    magic, checksum, found, metadata, files, _, _, nodes = _HEADER.unpack_from(mapped)
    places = _Places(metadata, files, nodes)
    if len(mapped) != (places.whole_end if is_whole else places.end):
        raise Damaged("the stored image has another length than its header says")
    if magic not in (_MAGIC, _WHOLE_MAGIC) or checksum_of(memoryview(mapped)) != checksum:
        raise Damaged("the stored image does not match its checksum")
    if key is not None and found != key:
        raise Damaged("the stored image is of another snapshot, owner or layout")
    image = _image(mapped, plan)
    if key is not None and is_fixed:
        image.fill(0, len(image.metadata))
    return image


def _image(mapped: mmap.mmap, plan: Callable[[], ImagePlan] | None) -> ErofsImage:
    magic, _, key, length, files, size_bytes, opening_offset, count = _HEADER.unpack_from(mapped)
    places, data = _Places(length, files, count), np.frombuffer(mapped, U8)
    metadata = data[METADATA_OFFSET : places.nodes]
    opening = data[BLOCK_BYTES:METADATA_OFFSET]
    if magic == _WHOLE_MAGIC:
        numbers, starts = data[places.nodes :].view(I64).reshape(2, files)
        columns = numbers.astype(U32), (starts // BLOCK_BYTES).astype(U32), np.empty(0, U32)
        return ErofsImage(metadata, *columns, size_bytes, opening, opening_offset)
    nodes, blocks = data[places.nodes : places.first_blocks].view(U32).reshape(2, files)
    first_blocks = data[places.first_blocks : places.marks].view(U32)[:count]
    parts = _Parts(mapped, metadata, data[places.marks :].view(U64), first_blocks, key, plan)
    return ErofsImage(
        metadata, nodes, blocks, first_blocks, size_bytes, opening, opening_offset, parts.has, parts.fill
    )


class _Parts:
    """The parts of the metadata area of a stored image. A mark is the checksum of a part that is there, else 0.

    The bytes come before the mark, so a daemon can be killed at any time; a part without a right mark is computed
    again, to the same bytes.
    """

    def __init__(
        self,
        mapped: mmap.mmap,
        metadata: npt.NDArray[np.uint8],
        marks: npt.NDArray[np.uint64],
        first_blocks: npt.NDArray[np.uint32],
        key: bytes,
        plan: Callable[[], ImagePlan] | None,
    ) -> None:
        self._mapped = mapped
        self._metadata = metadata
        self._marks = marks
        self._first_blocks = first_blocks
        self._key = key
        self._lock = Lock()  # guards what follows, and a part that is being computed
        self._make_plan = plan
        self._plan: ImagePlan | None = None
        self._computed = np.empty(0, U8)
        self._is_there = bytearray(len(marks))
        self._missing = len(marks)

    def has(self, first: int, end: int) -> bool:
        """`ErofsImage.has`."""
        return 0 not in self._is_there[first // PART_BYTES : -(-end // PART_BYTES)]

    def fill(self, first: int, end: int) -> None:
        """`ErofsImage.fill`. Raises Damaged if another version has begun the image, and would compute other bytes, and
        if a part is missing that cannot be written.
        """
        for part in range(first // PART_BYTES, min(-(-end // PART_BYTES), len(self._marks))):
            with self._lock:
                if not self._is_there[part]:
                    self._have(part)

    def _place(self, part: int) -> slice:
        return slice(part * PART_BYTES, min((part + 1) * PART_BYTES, len(self._metadata)))

    def _is_right(self, part: int) -> bool:
        mark = int(self._marks[part])
        return mark != 0 and xxh3_64_intdigest(self._metadata[self._place(part)].data) == mark

    def _have(self, part: int) -> None:
        place = self._place(part)
        content = self._metadata[place]
        if not self._is_right(part):
            if not content.flags.writeable:
                raise Damaged("a part of the stored image is missing, and it cannot be written")
            if self._plan is None:
                self._plan, self._computed = self._planned(), np.empty(PART_BYTES, U8)
            # Not in place: another mount may serve this part, which it has computed meanwhile.
            computed = self._computed[: len(content)]
            computed[:] = 0
            self._plan.write_part(computed, place.start, self._first_blocks)
            _populate(self._mapped, METADATA_OFFSET + place.start, METADATA_OFFSET + place.stop)
            content[:] = computed
            self._marks[part] = xxh3_64_intdigest(computed.data)
        self._is_there[part] = True
        self._missing -= 1
        if not self._missing:
            self._plan = self._make_plan = None  # it has memory for each folder
            self._computed = np.empty(0, U8)

    def _planned(self) -> ImagePlan:
        plan = None if self._make_plan is None else self._make_plan()
        if plan is None or plan.serving is None:
            raise Damaged("a part of the stored image is missing")
        if image_key(plan.snapshot, plan.ownership, plan.serving) != self._key:
            raise Damaged("a part of the stored image is missing, and this version would compute another")
        return plan
