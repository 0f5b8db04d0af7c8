"""The books of a node's stock: which pieces are in it, who holds them, and what memory that takes. No I/O.

A piece is in stock for one of two reasons: its chunk is *kept* for good, or a number of plans *hold* it for a while.
Nothing is in stock for both.
"""

import numpy as np
import numpy.typing as npt

from dieselfs_client.ahead.pieces import Pieces, PieceTable
from dieselfs_client.memory import Allotment


class Holdings:
    """Bytes are counted in whole pages, as the page cache takes them."""

    def __init__(self, table: PieceTable, extents: int, chunks: int, allotment: Allotment) -> None:
        self.kept_bytes = 0
        self.window_bytes = 0
        self._table = table
        self._allotment = allotment
        self._is_kept = np.zeros(chunks, np.bool_)
        self._in_stock = np.zeros(extents, np.bool_)
        self._is_charged = np.zeros(extents, np.bool_)
        self._holders = np.zeros(extents, np.uint16)

    # -- for good ----------------------------------------------------------------------------------------

    def is_kept(self, chunk: int) -> bool:
        return bool(self._is_kept[chunk])

    def kept(self) -> list[int]:
        """The chunks that are kept."""
        chunks: list[int] = np.flatnonzero(self._is_kept).tolist()
        return chunks

    def can_keep(self, chunk: int) -> bool:
        """Whether `keep` would take it."""
        if self._is_kept[chunk] or self.kept_bytes >= self._allotment.kept:
            return bool(self._is_kept[chunk])
        return self.kept_bytes + int(self._table.chunk_page_bytes()[chunk]) <= self._allotment.kept

    def keep(self, chunk: int) -> bool:
        """Take a chunk among the kept ones if there is room; whether it is one of them now."""
        if self._is_kept[chunk]:
            return True
        if not self.can_keep(chunk):
            return False
        pieces = self._table.of_chunk(chunk)
        self.kept_bytes += pieces.page_bytes()
        self._uncharge(pieces)
        self._holders[pieces.numbers] = 0
        self._is_kept[chunk] = True
        return True

    # -- for plans ---------------------------------------------------------------------------------------

    def hit_bytes(self, pieces: Pieces) -> int:
        """What part of some pieces is in stock for good."""
        is_hit = self._is_kept[pieces.chunks] & self._in_stock[pieces.numbers]
        return pieces[is_hit].page_bytes()

    def hold(self, pieces: Pieces) -> Pieces:
        """One more plan wants pieces; returns those that are neither in stock nor on their way for another plan."""
        self._holders[pieces[~self._is_kept[pieces.chunks]].numbers] += 1
        return pieces[self._is_missing(pieces)]

    def _is_missing(self, pieces: Pieces) -> npt.NDArray[np.bool_]:
        is_missing: npt.NDArray[np.bool_] = (
            ~self._is_charged[pieces.numbers] & ~self._in_stock[pieces.numbers]
        )
        return is_missing

    def has_room(self, page_bytes: int) -> bool:
        """Whether the window may take so much more; an empty one takes anything."""
        return not self.window_bytes or self.window_bytes + page_bytes <= self._allotment.window

    def charge(self, pieces: Pieces) -> Pieces:
        """Count pieces that are about to be fetched for a plan; returns them, without those that plans have done with
        or that others have begun to fetch since they were held.
        """
        pieces = pieces[(self._holders[pieces.numbers] > 0) & self._is_missing(pieces)]
        self._is_charged[pieces.numbers] = True
        self.window_bytes += pieces.page_bytes()
        return pieces

    def release(self, pieces: Pieces) -> Pieces:
        """A plan has done with pieces; returns those to be dropped, which nobody else has in stock."""
        pieces = pieces[self._holders[pieces.numbers] > 0]
        self._holders[pieces.numbers] -= 1
        pieces = pieces[self._holders[pieces.numbers] == 0]
        self._uncharge(pieces)
        pieces = pieces[self._in_stock[pieces.numbers]]
        self._in_stock[pieces.numbers] = False
        return pieces

    def _uncharge(self, pieces: Pieces) -> None:
        pieces = pieces[self._is_charged[pieces.numbers]]
        self._is_charged[pieces.numbers] = False
        self.window_bytes -= pieces.page_bytes()

    # -- what is there -----------------------------------------------------------------------------------

    def is_wanted(self, pieces: Pieces) -> npt.NDArray[np.bool_]:
        """Which of some pieces are kept, or held by a plan."""
        is_wanted: npt.NDArray[np.bool_] = self._is_kept[pieces.chunks] | (self._holders[pieces.numbers] > 0)
        return is_wanted

    def put(self, pieces: Pieces) -> npt.NDArray[np.bool_]:
        """Pieces have arrived: which of them are to go into stock, because they are wanted and not there yet."""
        is_new: npt.NDArray[np.bool_] = self.is_wanted(pieces) & ~self._in_stock[pieces.numbers]
        self._in_stock[pieces.numbers[is_new]] = True
        return is_new

    def lose(self, pieces: Pieces) -> None:
        """Pieces are not there any more: the kernel took their pages back."""
        self._in_stock[pieces.numbers] = False
