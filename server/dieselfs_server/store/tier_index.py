"""The content of the fast tier, and its evictions. No I/O; for one thread at a time.

The policy evicts whole chunks: from the least recently used dataset, and in it the least recently used chunk. It never
evicts from the dataset that needs the room: an epoch reads each chunk once, so each would be evicted before it is read
again. It evicts nothing from a dataset that was read within BUSY_S, because two jobs would evict each other's chunks.
So chunks in use stay, and a part of a dataset that is too large is fast.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest

from dieselfs.limits import KIB
from dieselfs_server.store.interface import Buffer

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
    """`clock` counts seconds."""

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
