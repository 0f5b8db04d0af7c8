"""The files that tell how far the readers of plans have come. No I/O.

Reads from the page cache are invisible. So one file in so many is a *tripwire*: it never stays in the page cache, its
bytes are held here, and the read for it tells how far its reader has come. Of a file that spans chunks only the first
piece is left out, and not held but fetched when it is read. Which files these are depends on the snapshot alone, so
that they are the same in every epoch.
"""

import numpy as np
import numpy.typing as npt

from dieselfs.meta.snapshot import Snapshot
from dieselfs.shuffle.order import mix
from dieselfs_client.ahead.pieces import Pieces

TRIPWIRE_EVERY_MAX = 512
TRIPWIRE_EVERY_MIN = 64
"""One file in so many is read through the daemon, which costs as much as reading some ten files from the page cache."""
TRIPWIRE_CHUNKS = 4
"""Within these bounds, there is one for so many chunks."""

Nodes = npt.NDArray[np.int64]


class Tripwires:
    """About one file in `every` of those that are not empty; and others that are added."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._sizes = snapshot.column("sizes")
        files_per_chunk = snapshot.header.files // max(snapshot.chunk_count, 1)
        self.every = min(max(TRIPWIRE_CHUNKS * files_per_chunk, TRIPWIRE_EVERY_MIN), TRIPWIRE_EVERY_MAX)
        self._added: set[int] = set()
        self._bytes: dict[int, memoryview] = {}
        self._bare: set[int] = set()  # those that span chunks
        self._sprung: set[int] = set()  # the kernel has put them into the page cache since

    # -- which they are ----------------------------------------------------------------------------------

    def usual(self, nodes: Nodes) -> npt.NDArray[np.bool_]:
        """Which of some files are tripwires in every epoch."""
        chosen: npt.NDArray[np.bool_] = mix(nodes.astype(np.uint64)) % np.uint64(self.every) == 0
        return chosen & self.could_be(nodes)

    def could_be(self, nodes: Nodes) -> npt.NDArray[np.bool_]:
        """Which of some files have the form of a tripwire."""
        has_form: npt.NDArray[np.bool_] = self._sizes[nodes] > 0
        return has_form

    def add(self, nodes: Nodes) -> None:
        """More of them, until they are let go."""
        self._added.update(nodes.tolist())

    def among(self, nodes: Nodes) -> npt.NDArray[np.bool_]:
        """Which of some files are tripwires now."""
        return self.usual(nodes) | np.isin(nodes, np.fromiter(self._added, np.int64, len(self._added)))

    # -- their bytes -------------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        return sum(map(len, self._bytes.values()))

    def hold(self, pieces: Pieces, payload: memoryview, starts: npt.NDArray[np.int64]) -> None:
        """Copy the bytes of tripwires from their first pieces: those of piece `i` begin at `starts[i]` of `payload`."""
        is_whole = pieces.lengths == pieces.sizes
        self._bare.update(pieces.nodes[~is_whole].tolist())
        pieces, starts = pieces[is_whole], starts[is_whole]
        columns = (pieces.nodes.tolist(), starts.tolist(), pieces.lengths.tolist())
        for node, start, length in zip(*columns, strict=True):
            self._bytes[node] = memoryview(bytes(payload[start : start + length]))

    def held(self, node: int) -> memoryview | None:
        """All bytes of a file, if it is a tripwire that is in stock."""
        return self._bytes.get(node)

    def spring(self, node: int) -> None:
        """A file is read through the daemon, after which it is in the page cache."""
        if node in self._bytes or node in self._bare:
            self._sprung.add(node)

    def sprung(self) -> Nodes:
        """Those that are in the page cache by now, each once; they have to be dropped from it to work again."""
        sprung, self._sprung = self._sprung, set()
        return np.fromiter(sprung, np.int64, len(sprung))

    def let_go(self, nodes: Nodes) -> None:
        """Files that are not in stock any more."""
        for node in nodes[self.among(nodes)].tolist():
            self._bytes.pop(node, None)
            self._bare.discard(node)
            self._added.discard(node)
