"""The important files: those of orders by importance that stay in the page cache behind their readers.

`ScoredFiles.read` chooses them, by the rule of the sampler's cache. Memory for pinned chunks is theirs from the first
such order on, if it is less than the dataset: chunks that were pinned become files of the cache.

In a job, its mounts keep them together (`JobFiles`), in memory of the node masters. From there they are stored in the
page cache ahead of their readers, as files that are fetched. Parts of files that span chunks, which are fetched at
different times, wait for each other here.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import trio

from dieselfs.arrays import Numbers, among, distinct
from dieselfs.importance.scored_files import ScoredFiles
from dieselfs.limits import PEER_ANSWER_BYTES_MAX
from dieselfs.prefetch.extent_table import PAGE_BYTES, Extents, ExtentTable
from dieselfs.rpc.wire import Buffer
from dieselfs_client.memory.budget import Allotment
from dieselfs_client.prefetch.batches import Arrived, Batch
from dieselfs_client.prefetch.budget import PrefetchBudget
from dieselfs_client.prefetch.tripwires import Tripwires

if TYPE_CHECKING:  # imported in a job alone
    from dieselfs_client.cluster.job_files import JobFiles

_PINNED, _ELSEWHERE, _HERE, _AT_PEER = range(4)
"""Where a file was that is in the page cache now, by its first extent. Reads of those that are pinned count as without
a job: not at all.
"""


class KeptFiles:
    """Used from one trio thread."""

    def __init__(
        self, table: ExtentTable, budget: PrefetchBudget, tripwires: Tripwires, allotment: Allotment
    ) -> None:
        self._table, self._budget, self._tripwires = table, budget, tripwires
        self._pinned_bytes = allotment.pinned
        self.scored: ScoredFiles | None = None
        """Set before the first order by importance; so is `job`."""
        self.job: JobFiles | None = None
        self._is_begun = False
        self._places = np.zeros(0, np.uint8)  # of each file, in a job
        self._wanted: set[int] = set()  # by their owners
        waiting_bytes = min(allotment.evictable, PEER_ANSWER_BYTES_MAX)
        self._found, self._came = _Parts(waiting_bytes), _Parts(waiting_bytes)  # of files that span chunks

    def begin(self) -> Extents:
        """An order by importance is about to be read; returns extents to drop."""
        table, budget, scored = self._table, self._budget, self.scored
        nothing = table.of_numbers(np.empty(0, np.int64))
        if self._is_begun or scored is None or self._pinned_bytes >= table.total_page_bytes:
            return nothing
        if self.job is not None and not self.job.is_master():
            return nothing
        self._is_begun = True
        chunks = budget.pinned()
        capacity = self._pinned_bytes // PAGE_BYTES
        if self.job is not None:
            self.job.open(capacity, -(-self.job.sizes() // PAGE_BYTES))
            return budget.unpin(chunks, nothing)
        pages = table.page_bytes(np.arange(len(table.snapshot)))
        pinned = Extents.joined([nothing, *map(table.of_chunk, chunks)])
        left = np.array(scored.left, np.int64)
        first = distinct(np.concatenate([pinned.nodes[budget.is_stored(pinned)], left]))
        kept = table.of_files(scored.keep(capacity, pages // PAGE_BYTES, first.tolist()))
        dropped = budget.unpin(chunks, kept)
        budget.keep(kept)
        # The bytes of tripwires are lost with the daemon that had them.
        budget.restore_stored(kept[among(kept.nodes, left) & ~self._tripwires.among(kept.nodes)])
        return dropped

    def passed(self, nodes: Numbers) -> Extents:
        """The readers of an order by importance have read files, in this order, which a plan still holds. Returns the
        extents to drop: of files that made room for them.
        """
        table, budget, scored = self._table, self._budget, self.scored
        if scored is not None and self.job is not None and len(self._places):
            places = self._places[nodes]
            scored.reads += int(np.count_nonzero(places != _PINNED))
            scored.hits += int(np.count_nonzero(places > _ELSEWHERE))
            scored.from_peers += int(np.count_nonzero(places == _AT_PEER))
        if not self._is_begun or scored is None or self.job is not None:
            return table.of_numbers(np.empty(0, np.int64))
        released = scored.read(nodes)
        budget.keep(table.of_files(distinct(nodes[~among(nodes, released)])))
        return budget.unkeep(table.of_files(released))

    @property
    def used_bytes(self) -> int:
        """The memory that they take."""
        if self.job is None or self.scored is None:
            return self._budget.kept_bytes
        return self.scored.used * PAGE_BYTES

    # -- in a job ------------------------------------------------------------------------------------------

    async def found(self, due: Batch) -> tuple[Batch, Arrived]:
        """The extents of a batch whose files the job keeps, and their content. The job is asked for a file when its
        first extent is due. If cancelled, requests in flight are abandoned.
        """
        if self.job is None or not due:
            return Batch(), {}
        extents = Extents.joined([*due.values()])
        is_pinned = np.array([self._budget.is_pinned(chunk) for chunk in extents.chunks.tolist()], np.bool_)
        if not len(self._places):
            self._places = np.zeros(len(self._table.snapshot), np.uint8)
        self._places[extents.nodes[is_pinned & (extents.places == 0)]] = _PINNED
        extents = extents[~is_pinned]
        asked = extents.nodes[extents.places == 0]
        fetched = await trio.to_thread.run_sync(self.job.fetch, asked.tolist(), abandon_on_cancel=True)
        self._places[asked] = _ELSEWHERE
        self._places[[*fetched.contents]] = _HERE
        self._places[[*fetched.from_peers]] = _AT_PEER
        self._wanted.difference_update(fetched.contents)
        self._wanted.update(fetched.wanted)
        parts = self._cut(fetched.contents, extents)
        found, came = Batch(), Arrived()
        for chunk, of_chunk in extents[among(extents.numbers, [*parts])].by_chunk():
            contents = [parts[number] for number in of_chunk.numbers.tolist()]
            found[chunk] = of_chunk
            came[chunk] = memoryview(b"".join(contents)), np.cumsum(of_chunk.lengths) - of_chunk.lengths
        return found, came

    def _cut(self, contents: Mapping[int, bytes], due: Extents) -> Mapping[int, Buffer]:
        """The extents of whole files that are due, by number, and those that are due of files that were found before.
        Those that plans will need soon wait.
        """
        extents = self._table.of_files(np.array([*contents], np.int64))
        columns = (extents.numbers, extents.nodes, extents.places, extents.places + extents.lengths)
        parts = {
            number: memoryview(contents[node])[place:end]
            for number, node, place, end in zip(*(column.tolist() for column in columns), strict=True)
        }
        others = extents[~among(extents.numbers, due.numbers)]
        others = self._budget.missing(others[self._budget.is_wanted(others)])
        self._found.add({number: bytes(parts[number]) for number in others.numbers.tolist()})
        return {**self._found.take(due.numbers.tolist()), **parts}

    def wanted(self, extents: Extents, payload: memoryview, starts: Numbers) -> Mapping[int, bytes]:
        """Files that came from elsewhere, and that their owners want: to be given to `job`. A file that spans chunks
        comes with its last extent.
        """
        is_part = (extents.lengths < extents.sizes) & (extents.sizes <= PEER_ANSWER_BYTES_MAX)
        if not len(self._places) or not (self._wanted or is_part.any()):  # the job was asked for no files yet
            return {}
        found = {}
        columns = (extents.numbers, extents.nodes, starts, extents.lengths, is_part)
        for number, node, at, length, is_one in zip(*(column.tolist() for column in columns), strict=True):
            if is_one or node in self._wanted:
                content = bytes(payload[at : at + length])
                whole = self._joined(node, number, content) if is_one else content
                if whole and node in self._wanted:
                    found[node] = whole
        self._wanted.difference_update(found)
        return found

    def _joined(self, node: int, number: int, content: bytes) -> bytes:
        """All bytes of a file, if this is its last part; before, nothing."""
        self._came.add({number: content})
        numbers = self._table.numbers(node)
        parts = self._came.take(numbers)
        if len(parts) == len(numbers):
            return b"".join(parts.values())
        self._came.add(parts)
        return b""


class _Parts:
    """The bytes of extents, by number; of more than `bytes_max`, the oldest are dropped."""

    def __init__(self, bytes_max: int) -> None:
        self._contents: dict[int, bytes] = {}
        self._bytes, self._bytes_max = 0, bytes_max

    def add(self, contents: Mapping[int, bytes]) -> None:
        self.take(contents)
        self._contents.update(contents)
        self._bytes += sum(map(len, contents.values()))
        while self._bytes > self._bytes_max:
            self.take([next(iter(self._contents))])

    def take(self, numbers: Iterable[int]) -> dict[int, bytes]:
        """Those that are there, in this order; they are here no longer."""
        found = {number: self._contents.pop(number) for number in numbers if number in self._contents}
        self._bytes -= sum(map(len, found.values()))
        return found
