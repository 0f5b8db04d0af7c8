"""The files that show the positions of the readers of plans. No I/O.

The daemon does not see reads from the page cache. So one file in `every` is a *tripwire*: it is not pushed, its bytes
are held here, and the read of it shows the position of its reader. Of a file that spans chunks, only the first extent
is not pushed, and is fetched when it is read. The choice depends only on the snapshot: it is the same in every epoch.
"""

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers, among
from dieselfs.prefetch.extent_table import Extents
from dieselfs.shuffle.order import mix
from dieselfs.snapshot.reader import Snapshot
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry

TRIPWIRE_EVERY_MAX = 512
TRIPWIRE_EVERY_MIN = 64
"""The bounds of `every`. A read through the daemon takes as long as about ten reads from the page cache."""
TRIPWIRE_CHUNKS = 4
"""Within these bounds, there is one tripwire for this many chunks."""
_AT_ONCE = 1 << 14


class Tripwires:
    """About one in `every` files that are not empty, and added files."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._sizes = snapshot.column("sizes")
        files_per_chunk = snapshot.header.files // max(snapshot.chunk_count, 1)
        self.every = min(max(TRIPWIRE_CHUNKS * files_per_chunk, TRIPWIRE_EVERY_MIN), TRIPWIRE_EVERY_MAX)
        self._added: set[int] = set()
        self._bytes: dict[int, memoryview] = {}
        self._bare: set[int] = set()  # those that span chunks
        self._sprung: set[int] = set()  # read, so that the kernel has them in the page cache

    # -- choice ------------------------------------------------------------------------------------------

    def usual(self, nodes: Numbers) -> npt.NDArray[np.bool_]:
        """Which of these files are tripwires in every epoch."""
        chosen: npt.NDArray[np.bool_] = mix(nodes.astype(np.uint64)) % np.uint64(self.every) == 0
        return chosen & self.could_be(nodes)

    def usual_of_all(self) -> npt.NDArray[np.bool_]:
        """`usual` of all nodes of the snapshot, in their order."""
        chosen = np.empty(len(self._sizes), np.bool_)
        for start in range(0, len(chosen), _AT_ONCE):
            part = chosen[start : start + _AT_ONCE]
            part[:] = self.usual(np.arange(start, start + len(part)))
        return chosen

    def could_be(self, nodes: Numbers) -> npt.NDArray[np.bool_]:
        """Which of these files can be a tripwire."""
        is_possible: npt.NDArray[np.bool_] = self._sizes[nodes] > 0
        return is_possible

    def add(self, nodes: Numbers) -> None:
        """Add tripwires, until they are released."""
        self._added.update(nodes.tolist())

    def among(self, nodes: Numbers) -> npt.NDArray[np.bool_]:
        """Which of these files are tripwires now."""
        return self.usual(nodes) | among(nodes, np.fromiter(self._added, np.int64, len(self._added)))

    # -- their bytes -------------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        return sum(map(len, self._bytes.values()))

    def hold(self, extents: Extents, payload: memoryview, starts: npt.NDArray[np.int64]) -> None:
        """Copy the bytes of tripwires from their first extents; extent `i` begins at `starts[i]` of `payload`."""
        is_whole = extents.lengths == extents.sizes
        self._bare.update(extents.nodes[~is_whole].tolist())
        extents, starts = extents[is_whole], starts[is_whole]
        columns = (extents.nodes.tolist(), starts.tolist(), extents.lengths.tolist())
        for node, start, length in zip(*columns, strict=True):
            self._bytes[node] = memoryview(bytes(payload[start : start + length]))

    def held(self, node: int) -> memoryview | None:
        """All bytes of a file, if it is a tripwire that was fetched."""
        return self._bytes.get(node)

    def is_set(self, node: int) -> bool:
        """Whether a file is a tripwire that was fetched."""
        return node in self._bytes or node in self._bare

    def spring(self, node: int) -> None:
        """Note that a file is read through the daemon, and so enters the page cache."""
        if self.is_set(node):
            self._sprung.add(node)

    def sprung(self) -> Numbers:
        """Tripwires that have entered the page cache, each once. They must be dropped from it to work again."""
        sprung, self._sprung = self._sprung, set()
        return np.fromiter(sprung, np.int64, len(sprung))

    def release(self, nodes: Numbers) -> None:
        """Note that files were dropped."""
        for node in nodes[self.among(nodes)].tolist():
            self._bytes.pop(node, None)
            self._bare.discard(node)
            self._added.discard(node)


class HitRate:
    """Counts the files of plans that were read from the page cache: those that a reader has passed, and that were not
    requested from the daemon since the reader began. Files after its last tripwire are counted at the next one.
    `sizes`: of the files of the snapshot, in bytes; takes 4 bytes for each.
    """

    def __init__(self, sizes: npt.NDArray[np.integer], metrics: Registry) -> None:
        self._sizes = sizes
        self._files = metrics.declare(catalogue.PAGE_CACHE_PLANNED_FILES)
        self._hits = metrics.declare(catalogue.PAGE_CACHE_HITS)
        self._hit_bytes = metrics.counter("page_cache.hit_bytes", "Bytes of planned files found there.")
        self._misses = metrics.counter("page_cache.misses", "Planned files that the daemon had to answer.")
        self._readers = 0
        self._requested = np.zeros(len(sizes), np.uint32)  # number of the latest reader at the last request

    def begin(self) -> int:
        """Note that a reader begins; returns its number."""
        self._readers += 1
        return self._readers

    def requested(self, node: int) -> None:
        """Note that a file was requested from the daemon."""
        self._requested[node] = self._readers

    def passed(self, reader: int, nodes: npt.NDArray[np.integer]) -> None:
        """Note that the reader with this number has read these files."""
        found = nodes[self._requested[nodes] < reader]
        self._files.value += len(nodes)
        self._misses.value += len(nodes) - len(found)
        self._hits.value += len(found)
        self._hit_bytes.value += int(self._sizes[found].sum(dtype=np.int64))
