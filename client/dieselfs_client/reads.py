"""What a mount reads through, whichever driver speaks to the kernel: bytes of files, from memory or from afar.

`at_once` answers from memory, without waiting; `fetch` waits until the bytes are there. A reader who reads a file in
order is read ahead for.
"""

import trio

from dieselfs.errors import Damaged, Unavailable
from dieselfs.limits import READ_AHEAD_BYTES, READ_TIMEOUT_S
from dieselfs_client.mount.core import MountCore, Piece
from dieselfs_client.read_order import ReadOrder
from dieselfs_client.residency import ChunkResidency

Buffers = list[memoryview]
"""The bytes of one read, in order; together exactly as many as the file has in the range that was asked for."""


class Reads:
    """Used from one trio thread."""

    def __init__(self, core: MountCore, residency: ChunkResidency, timeout_s: float = READ_TIMEOUT_S) -> None:
        self._core = core
        self._residency = residency
        self._timeout_s = timeout_s
        self._read_order = ReadOrder()

    def at_once(self, inode: int, offset: int, size: int) -> Buffers | None:
        """Up to `size` bytes at `offset` of a file if all of them are in memory; empty at its end.

        Raises NotFound or InvalidInput for an inode that is no file.
        """
        pieces = self._core.pieces(inode, offset, size)
        buffers = self._resident(pieces)
        end = offset + size
        if self._read_order.goes_on(inode, offset, end):
            for chunk in self._core.chunks_ahead(inode, end, READ_AHEAD_BYTES):
                self._residency.prefetch(chunk)
        return buffers

    def _resident(self, pieces: list[Piece]) -> Buffers | None:
        buffers: Buffers = []
        for piece in pieces:
            buffer = self._residency.resident_piece(piece.extent, piece.start, piece.length)
            if buffer is None:
                return None
            buffers.append(buffer)
        return _checked(pieces, buffers)

    async def fetch(self, inode: int, offset: int, size: int) -> Buffers:
        """As `at_once`, but waits for what is not in memory.

        Raises Unavailable when the bytes do not come within the limit, and Damaged. If cancelled, what is on its way
        is kept for the next reader.
        """
        pieces = self._core.pieces(inode, offset, size)
        for piece in pieces[1:]:
            self._residency.prefetch(piece.extent.chunk)
        with trio.move_on_after(self._timeout_s):
            fetch = self._residency.fetch_piece
            return _checked(
                pieces, [await fetch(piece.extent, piece.start, piece.length) for piece in pieces]
            )
        raise Unavailable(f"its bytes did not come within {self._timeout_s:g} s")


def _checked(pieces: list[Piece], buffers: Buffers) -> Buffers:
    """Exactly the bytes that were planned. Raises Damaged if there are not as many."""
    length = sum(map(len, buffers))
    if length != sum(piece.length for piece in pieces):
        raise Damaged(f"{length} bytes came of a read in {len(pieces)} pieces: a chunk is too short")
    return buffers
