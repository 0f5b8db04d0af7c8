"""A fast store as a cache of a slow one.

The slow store is the truth: it has every chunk before its put is acknowledged, and supplies lists, sizes and records.
The fast store may be lost, truncated, out of date, or contain foreign objects, at any time. So every read of it is
verified, against checksums of the copied content. A copy that was found at the start is verified as a whole when it is
first used. A damaged copy is dropped, and the slow store supplies the bytes.

Evictions take whole chunks: from the least recently used dataset, and in it the least recently used chunk. They take
nothing from the dataset that needs the room: an epoch reads each chunk once, so each would be evicted before it is read
again. They take nothing from a dataset that was read within BUSY_S, because two jobs would evict each other's chunks.
So chunks in use stay, and a part of a dataset that is too large is fast.
"""

import logging
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock

from xxhash import xxh3_64_intdigest

from dieselfs.chunk.bundle import decode_bundle, is_bundle
from dieselfs.chunk.format import decode_stored
from dieselfs.chunk.ids import chunk_name
from dieselfs.errors import AlreadyExists, Damaged, DieselfsError, NotFound
from dieselfs.limits import KIB
from dieselfs.telemetry.registry import Metric, Registry
from dieselfs_server.store.interface import Buffer, ObjectStore
from dieselfs_server.store.tier_filler import SLOW_SHARE, TierFiller
from dieselfs_server.store.wrapper import StoreWrapper

BUSY_S = 300.0
"""A dataset is in use for this time after a read; nothing of it is evicted."""

BLOCK_BYTES = 64 * KIB
"""Unit of checksums: a read is extended to whole blocks. The checksums of a chunk of 4 MiB take 512 bytes of memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Fingerprint:
    length: int
    checksums: "array[int]"
    """xxh3, 64 bits, of each block; the last block may be shorter."""

    @classmethod
    def of(cls, content: Buffer) -> "Fingerprint":
        view = memoryview(content)
        blocks = range(0, len(view), BLOCK_BYTES)
        return cls(
            len(view), array("Q", (xxh3_64_intdigest(view[start : start + BLOCK_BYTES]) for start in blocks))
        )

    def blocks_around(self, offset: int, length: int) -> tuple[int, int]:
        """Start and end of the whole blocks that contain a range, which must be inside the content."""
        start = offset - offset % BLOCK_BYTES
        end = -(-(offset + length) // BLOCK_BYTES) * BLOCK_BYTES
        return start, min(end, self.length)

    def is_intact(self, start: int, data: Buffer) -> bool:
        """Whether `data`, whole blocks from `start` on, matches the checksums."""
        view, first = memoryview(data), start // BLOCK_BYTES
        return all(
            xxh3_64_intdigest(view[place : place + BLOCK_BYTES])
            == self.checksums[first + place // BLOCK_BYTES]
            for place in range(0, len(view), BLOCK_BYTES)
        )


@dataclass(slots=True)
class Copy:
    """A chunk in the fast tier. Without a fingerprint it was found there at the start, and is not verified yet."""

    length: int
    fingerprint: Fingerprint | None


@dataclass(slots=True)
class _Dataset:
    read_s: float
    copies: OrderedDict[bytes, Copy] = field(default_factory=OrderedDict)  # least recently read first


class TierIndex:
    """The content of the fast tier. For one thread at a time; `clock` counts seconds."""

    def __init__(self, capacity_bytes: int, clock: Callable[[], float]) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._clock = clock
        self._datasets: OrderedDict[bytes, _Dataset] = OrderedDict()  # least recently read first

    def add(self, dataset_id: bytes, chunk_id: bytes, copy: Copy) -> None:
        """Enter a copy; one that was found at the start does not count as a read of its dataset."""
        self.remove(dataset_id, chunk_id)
        read_s = self._clock() - (BUSY_S if copy.fingerprint is None else 0)
        copies = self._datasets.setdefault(dataset_id, _Dataset(read_s)).copies
        copies[chunk_id] = copy
        self.used_bytes += copy.length

    def read(self, dataset_id: bytes, chunk_id: bytes) -> Copy | None:
        """The copy of a chunk, None if there is none; counts as a read of the dataset."""
        dataset = self._datasets.get(dataset_id)
        if dataset is None:
            return None
        dataset.read_s = self._clock()
        self._datasets.move_to_end(dataset_id)
        if chunk_id in dataset.copies:
            dataset.copies.move_to_end(chunk_id)
        return dataset.copies.get(chunk_id)

    def holds(self, dataset_id: bytes, chunk_id: bytes) -> bool:
        dataset = self._datasets.get(dataset_id)
        return dataset is not None and chunk_id in dataset.copies

    def remove(self, dataset_id: bytes, chunk_id: bytes) -> None:
        """Remove a copy, if there is one."""
        dataset = self._datasets.get(dataset_id)
        copy = dataset.copies.pop(chunk_id, None) if dataset else None
        if dataset is not None and copy is not None:
            self.used_bytes -= copy.length
            if not dataset.copies:
                del self._datasets[dataset_id]

    def remove_dataset(self, dataset_id: bytes) -> None:
        dataset = self._datasets.pop(dataset_id, None)
        if dataset is not None:
            self.used_bytes -= sum(copy.length for copy in dataset.copies.values())

    def victims(self, dataset_id: bytes, length: int) -> list[tuple[bytes, bytes]] | None:
        """Dataset and chunk ID of the copies to evict, to make room for `length` bytes of a dataset; None if evictions
        cannot make enough room.
        """
        missing = self.used_bytes + length - self.capacity_bytes
        leaving = []
        for candidate in self._candidates(dataset_id):
            if missing <= 0:
                break
            leaving.append(candidate[:2])
            missing -= candidate[2]
        return leaving if missing <= 0 else None

    def _candidates(self, dataset_id: bytes) -> Iterator[tuple[bytes, bytes, int]]:
        idle_since_s = self._clock() - BUSY_S
        for other_id, dataset in self._datasets.items():
            if other_id != dataset_id and dataset.read_s <= idle_since_s:
                yield from ((other_id, chunk_id, copy.length) for chunk_id, copy in dataset.copies.items())


log = logging.getLogger(__name__)


def check_chunk(dataset_id: bytes, chunk_id: bytes, content: Buffer) -> None:
    """Raise Damaged unless `content` is this whole object of this dataset: a chunk, an attached one's header, or a
    bundle of such headers.
    """
    for each, part in decode_bundle(content, chunk_id) if is_bundle(chunk_id) else ((chunk_id, content),):
        decode_stored(part, f"chunk {chunk_name(each)}", each, dataset_id)


class TieredStore(StoreWrapper):
    """The `ObjectStore` `slow`, with copies of up to `capacity_bytes` in `fast`, which must have no other user.

    `check` raises Damaged for content that must not be copied. Starts a thread, which ends with `close`.
    """

    def __init__(
        self,
        fast: ObjectStore,
        slow: ObjectStore,
        capacity_bytes: int,
        check: Callable[[bytes, bytes, Buffer], None] = check_chunk,
        slow_share: float = SLOW_SHARE,
        clock: Callable[[], float] = time.monotonic,
        metrics: Registry | None = None,
    ) -> None:
        super().__init__(slow)
        self._fast = fast
        self._check = check
        self._lock = Lock()  # guards the two below
        self._index = TierIndex(capacity_bytes, clock)
        self._arriving: set[tuple[bytes, bytes]] = set()  # being copied, and not deleted meanwhile
        self._metrics = metrics = metrics or Registry()
        self._hits = metrics.counter("tier.hits", "Reads that the fast one of two stores answered.")
        self._hit_bytes = metrics.counter("tier.hit_bytes", "Bytes of these reads.")
        self._misses = metrics.counter("tier.misses", "Reads that the slow one of two stores answered.")
        self._missed_bytes = metrics.counter("tier.missed_bytes", "Bytes of these reads.")
        self._filled = metrics.counter("tier.filled_chunks", "Chunks copied into the fast store.")
        self._filled_bytes = metrics.counter("tier.filled_bytes", "Bytes of these chunks.")
        self._evicted = metrics.counter("tier.evicted_chunks", "Chunks that made room in the fast store.")
        self._lost = metrics.counter("tier.lost_chunks", "Damaged or missing chunks of the fast store.")
        metrics.gauge("tier.used_bytes", "Bytes in the fast store.", lambda: self._index.used_bytes)
        metrics.gauge("tier.size_bytes", "Limit of the fast store.", lambda: self._index.capacity_bytes)
        self._enter_found()
        self._filler = TierFiller(self._admit, self._lacking, self._fetch, slow_share, clock)

    def put(self, dataset_id: bytes, chunk_id: bytes, parts: Sequence[Buffer]) -> None:
        self.store.put(dataset_id, chunk_id, parts)
        self._filler.offer(dataset_id, chunk_id, b"".join(parts))

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        if (data := self._from_copy(dataset_id, chunk_id, offset, length)) is not None:
            self._count(self._hits, self._hit_bytes, length)
            return data
        data = self.store.get_range(dataset_id, chunk_id, offset, length)
        self._count(self._misses, self._missed_bytes, length)
        self._filler.want(dataset_id)
        return data

    def open_chunk(self, dataset_id: bytes, chunk_id: bytes) -> None:
        """None: copies are verified here before they are sent, and the reads decide what is copied."""

    def delete(self, dataset_id: bytes, chunk_id: bytes) -> None:
        self.store.delete(dataset_id, chunk_id)
        self._drop(dataset_id, chunk_id)

    def delete_dataset(self, dataset_id: bytes) -> None:
        self._filler.forget(dataset_id)
        self.store.delete_dataset(dataset_id)
        with self._lock:
            self._index.remove_dataset(dataset_id)
            self._arriving = {chunk for chunk in self._arriving if chunk[0] != dataset_id}
        with suppress(DieselfsError):  # a copy that stays is out of date; its verification fails
            self._fast.delete_dataset(dataset_id)

    def wait_until_idle(self) -> None:
        """Wait until nothing is left to copy."""
        self._filler.wait_until_idle()

    def close(self) -> None:
        self._filler.close()
        self._fast.close()
        self.store.close()

    def _count(self, events: Metric, total: Metric, length: int) -> None:
        with self._metrics.lock:
            events.value += 1
            total.value += length

    # -- reading -----------------------------------------------------------------------------------------

    def _from_copy(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes | None:
        """A range from the fast tier; None if the slow one must supply it."""
        with self._lock:
            copy = self._index.read(dataset_id, chunk_id)
        if copy is None or length == 0 or offset + length > copy.length:
            return None
        fingerprint = copy.fingerprint or self._verify_found(dataset_id, chunk_id)
        if fingerprint is None:
            return None
        start, end = fingerprint.blocks_around(offset, length)
        with suppress(DieselfsError):
            data = self._fast.get_range(dataset_id, chunk_id, start, end - start)
            if fingerprint.is_intact(start, data):
                return data if len(data) == length else data[offset - start : offset - start + length]
        log.warning("fast tier: the copy of chunk %s is damaged or missing", chunk_name(chunk_id))
        self._replace(dataset_id, chunk_id)
        return None

    def _verify_found(self, dataset_id: bytes, chunk_id: bytes) -> Fingerprint | None:
        """Verify a copy that was found at the start. Drop it, and return None, unless it is the whole chunk, and the
        slow tier still has that.
        """
        try:
            length = self.store.size(dataset_id, chunk_id)
        except NotFound:
            self._drop(dataset_id, chunk_id)
            return None
        try:
            content = self._fast.get_range(dataset_id, chunk_id, 0, length)
            if self._fast.size(dataset_id, chunk_id) != length:
                raise Damaged(f"chunk {chunk_name(chunk_id)}: the copy is longer than {length} bytes")
            self._check(dataset_id, chunk_id, content)
        except DieselfsError as error:
            log.warning("fast tier: an invalid copy is dropped: %s", error)
            self._replace(dataset_id, chunk_id)
            return None
        fingerprint = Fingerprint.of(content)
        with self._lock:
            if self._index.holds(dataset_id, chunk_id):
                self._index.add(dataset_id, chunk_id, Copy(length, fingerprint))
        return fingerprint

    def _replace(self, dataset_id: bytes, chunk_id: bytes) -> None:
        self._metrics.add(self._lost)
        self._drop(dataset_id, chunk_id)
        self._filler.copy_again(dataset_id, chunk_id)

    # -- copying -----------------------------------------------------------------------------------------

    def _enter_found(self) -> None:
        """Enter the copies that the fast tier already has, as far as there is room, and remove the rest."""
        for dataset_id in list(self._fast.list_datasets()):
            for chunk_id in list(self._fast.list_chunks(dataset_id)):
                with suppress(NotFound):
                    length = self._fast.size(dataset_id, chunk_id)
                    if self._index.used_bytes + length <= self._index.capacity_bytes:
                        self._index.add(dataset_id, chunk_id, Copy(length, None))
                    else:
                        self._fast.delete(dataset_id, chunk_id)

    def _lacking(self, dataset_id: bytes) -> Iterator[bytes]:
        for chunk_id in self.store.list_chunks(dataset_id):
            with self._lock:
                is_there = self._index.holds(dataset_id, chunk_id)
            if not is_there:
                yield chunk_id

    def _fetch(self, dataset_id: bytes, chunk_id: bytes) -> bool:
        try:
            length = self.store.size(dataset_id, chunk_id)
            if not self._make_room(dataset_id, length):
                return False
            content = self.store.get_range(dataset_id, chunk_id, 0, length)
            self._admit(dataset_id, chunk_id, content)
        except (NotFound, Damaged) as error:
            log.warning("fast tier: not copied: %s", error)
        return True

    def _make_room(self, dataset_id: bytes, length: int) -> bool:
        with self._lock:
            victims = self._index.victims(dataset_id, length)
        for victim in victims or ():
            self._drop(*victim)
            self._metrics.add(self._evicted)
        return victims is not None

    def _admit(self, dataset_id: bytes, chunk_id: bytes, content: bytes) -> None:
        """Copy a chunk into the fast tier, if there is room. Raises Damaged, and the errors of the fast store."""
        self._check(dataset_id, chunk_id, content)
        if not self._make_room(dataset_id, len(content)):
            return
        chunk = (dataset_id, chunk_id)
        with self._lock:
            self._arriving.add(chunk)
        is_there = False
        try:
            try:
                self._fast.put(dataset_id, chunk_id, [content])
            except AlreadyExists:  # a foreign object: the index has no such copy
                self._fast.delete(dataset_id, chunk_id)
                self._fast.put(dataset_id, chunk_id, [content])
            is_there = True
        finally:
            with self._lock:
                is_wanted = chunk in self._arriving
                self._arriving.discard(chunk)
                if is_there and is_wanted:
                    self._index.add(dataset_id, chunk_id, Copy(len(content), Fingerprint.of(content)))
        if is_wanted:
            self._count(self._filled, self._filled_bytes, len(content))
        else:
            self._fast.delete(dataset_id, chunk_id)

    def _drop(self, dataset_id: bytes, chunk_id: bytes) -> None:
        """Remove a copy from the fast tier; one that is being made is removed at its end."""
        with self._lock:
            self._index.remove(dataset_id, chunk_id)
            self._arriving.discard((dataset_id, chunk_id))
        with suppress(DieselfsError):  # a copy that stays is out of date; its verification fails
            self._fast.delete(dataset_id, chunk_id)
