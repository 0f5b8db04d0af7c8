"""What tells a good copy of a chunk from a damaged one: its length, and a checksum for each block. No I/O."""

from array import array
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from dieselfs.limits import KIB
from dieselfs_server.store.interface import Buffer

BLOCK_BYTES = 64 * KIB
"""A read is widened to whole blocks. A chunk of 4 MiB costs half a kilobyte of memory in checksums."""


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
        """Start and end of the whole blocks that hold a range, which must lie inside."""
        start = offset - offset % BLOCK_BYTES
        end = -(-(offset + length) // BLOCK_BYTES) * BLOCK_BYTES
        return start, min(end, self.length)

    def is_intact(self, start: int, data: Buffer) -> bool:
        """Whether `data` is what lies from `start` on, the first byte of a block. It ends with a block."""
        view, first = memoryview(data), start // BLOCK_BYTES
        return all(
            xxh3_64_intdigest(view[place : place + BLOCK_BYTES])
            == self.checksums[first + place // BLOCK_BYTES]
            for place in range(0, len(view), BLOCK_BYTES)
        )
