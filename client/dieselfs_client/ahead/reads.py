"""What a mount reads through, whichever driver speaks to the kernel: bytes of files, from memory or from afar.

`at_once` answers from memory, without waiting; `fetch` waits until the bytes are there. A reader who reads a file in
order is read ahead for. What is fetched for a reader is a whole chunk where that pays (it will be kept, is about to be
read by plan, or much of it was asked for lately), and just the file's own bytes where it does not.
"""

from collections import OrderedDict
from dataclasses import dataclass

import trio

from dieselfs.errors import Damaged, Unavailable
from dieselfs.limits import KIB, READ_AHEAD_BYTES, READ_TIMEOUT_S
from dieselfs_client.ahead.read_order import ReadOrder
from dieselfs_client.ahead.residency import ChunkResidency
from dieselfs_client.ahead.stock import Stock
from dieselfs_client.mount.core import MountCore, Piece

Buffers = list[memoryview]
"""The bytes of one read, in order; together exactly as many as the file has in the range that was asked for."""

WHOLE_SHARE = 4
"""When a quarter of a payload has been asked for, the whole is fetched."""
REQUEST_BYTES = 64 * KIB
"""What could be fetched in the time that a request takes by itself; counts as asked for."""
ASKED_CHUNKS_MAX = 1024
"""So many chunks are remembered as asked for."""
HELD_BACK_S = 0.1
"""A reader of a plan who comes to files that are just being pushed is held back at the tripwire before them, but no
longer than this. He would ask for them one by one, which costs several times as much, and slows the pushing.
"""


@dataclass(slots=True)
class ReadFigures:
    """Counts since the start; what the kernel answers from its page cache does not reach us."""

    at_once: int = 0
    waited: int = 0
    waited_s: float = 0.0
    """Added up over readers: several may wait at the same time."""
    failed: int = 0


class Reads:
    """Used from one trio thread. Without a `stock`, whole chunks are fetched."""

    def __init__(
        self,
        core: MountCore,
        residency: ChunkResidency,
        stock: Stock | None = None,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        self.figures = ReadFigures()
        self._core = core
        self._residency = residency
        self._stock = stock
        self._timeout_s = timeout_s
        self._read_order = ReadOrder()
        # Bytes asked for lately of chunks that are not in memory, the chunk asked for last at the end.
        self._asked_bytes: OrderedDict[int, int] = OrderedDict()

    def at_once(self, inode: int, offset: int, size: int) -> Buffers | None:
        """Up to `size` bytes at `offset` of a file if all of them are in memory; empty at its end. None as well for a
        tripwire at which a reader is to be held back.

        Raises NotFound or InvalidInput for an inode that is no file.
        """
        pieces = self._core.pieces(inode, offset, size)
        if self._stock is not None:
            node = inode - 1
            self._stock.noticed(node)
            held = self._stock.held(node)
            if held is not None:
                if offset == 0 and self._stock.is_outrun(node):
                    return None
                self.figures.at_once += 1
                return [held[offset : offset + size]]
        buffers = self._resident(pieces)
        end = offset + size
        if self._read_order.goes_on(inode, offset, end):
            for chunk in self._core.chunks_ahead(inode, end, READ_AHEAD_BYTES):
                self._residency.prefetch(chunk)
        if buffers is not None:
            self.figures.at_once += 1
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
        began_s = trio.current_time()
        is_done = False
        try:
            pieces = self._core.pieces(inode, offset, size)
            if (held := await self._held_back(inode - 1)) is not None:
                is_done = True
                return [held[offset : offset + size]]
            for piece in pieces[1:]:
                self._residency.prefetch(piece.extent.chunk)
            with trio.move_on_after(self._timeout_s):
                buffers = _checked(pieces, [await self._fetch_piece(piece) for piece in pieces])
                is_done = True
                return buffers
            raise Unavailable(f"its bytes did not come within {self._timeout_s:g} s")
        finally:
            self.figures.waited += 1
            self.figures.waited_s += trio.current_time() - began_s
            self.figures.failed += not is_done

    async def _held_back(self, node: int) -> memoryview | None:
        """The bytes of a tripwire, when what its reader reads next is in stock; None for any other file."""
        stock = self._stock
        held = stock.held(node) if stock else None
        if stock and held is not None:
            with trio.move_on_after(HELD_BACK_S):
                while stock.is_outrun(node):
                    await stock.moved.wait()
        return held

    async def _fetch_piece(self, piece: Piece) -> memoryview:
        extent = piece.extent
        chunk, stock = extent.chunk, self._stock
        if stock is None:
            return await self._residency.fetch_piece(extent, piece.start, piece.length)
        if stock.keeps(chunk) or stock.expects(chunk) or self._is_worth_whole(chunk, extent.length):
            buffer = await self._residency.fetch_piece(extent, piece.start, piece.length)
            payload = self._residency.resident(chunk)
            if payload is not None:
                stock.landed(chunk, payload)
            return buffer
        return await self._residency.fetch_alone(extent, piece.start, piece.length)

    def _is_worth_whole(self, chunk: int, length_bytes: int) -> bool:
        """Note that bytes of a chunk were asked for; True when that makes much of it."""
        asked_bytes = self._asked_bytes.pop(chunk, 0) + length_bytes + REQUEST_BYTES
        if asked_bytes * WHOLE_SHARE >= self._core.snapshot.chunk_payload_length(chunk):
            return True
        self._asked_bytes[chunk] = asked_bytes
        if len(self._asked_bytes) > ASKED_CHUNKS_MAX:
            self._asked_bytes.popitem(last=False)
        return False


def _checked(pieces: list[Piece], buffers: Buffers) -> Buffers:
    """Exactly the bytes that were planned. Raises Damaged if there are not as many."""
    length = sum(map(len, buffers))
    if length != sum(piece.length for piece in pieces):
        raise Damaged(f"{length} bytes came of a read in {len(pieces)} pieces: a chunk is too short")
    return buffers
