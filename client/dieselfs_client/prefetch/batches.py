"""Prefetches extents in as few requests as possible.

If most of a chunk is needed, it is fetched whole: one checksum instead of many. Other extents share a request with
those of other chunks: one to each node of a job, or one for each chunk to a server.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import accumulate

import numpy as np
import trio

from dieselfs.arrays import Numbers
from dieselfs.cache.policy import PREFETCH_WHOLE_SHARE, is_worth_whole
from dieselfs.errors import DieselfsError, Unavailable
from dieselfs.limits import FETCHES_AT_ONCE_MAX, MIB
from dieselfs.prefetch.extent_table import Extents
from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.interface import ChunkResult, Slices, Source, Wanted
from dieselfs_client.memory.chunk_cache import ChunkCache

JOINED_BYTES_MAX = 1 * MIB
"""Extents of several chunks that arrive together are joined up to this: a copy of this size takes as long as a push."""

Content = tuple[memoryview, Numbers]
"""The bytes of extents, and the offset of each extent in them."""

Arrived = dict[int, Content | DieselfsError]
"""The content of each chunk that arrived with one reply, or its error."""

_log = logging.getLogger(__name__)


class Batch(dict[int, Extents]):
    """Extents of some chunks, by chunk. `is_shared_plan`: see `Wanted`."""

    def __init__(self, extents: Mapping[int, Extents] | None = None, is_shared_plan: bool = False) -> None:
        super().__init__(extents or {})
        self.is_shared_plan = is_shared_plan

    def of(self, chunks: Iterable[int]) -> "Batch":
        """The part for these chunks."""
        return Batch({chunk: self[chunk] for chunk in chunks}, self.is_shared_plan)


class FetchBatches:
    """Used from one trio thread. Whole chunks go through `chunk_cache`, in a single flight with readers."""

    def __init__(self, snapshot: Snapshot, chunk_cache: ChunkCache, source: Source) -> None:
        self._snapshot = snapshot
        self._chunk_cache = chunk_cache
        self._source = source
        self._largest_bytes = int(snapshot.column("chunk_payload_lengths").max(initial=0))

    def is_whole(self, chunk: int, extents: Extents) -> bool:
        """Whether the extents are a large enough part of a chunk to fetch it whole."""
        payload_bytes = self._snapshot.chunk_payload_length(chunk)
        return is_worth_whole(int(extents.lengths.sum()), payload_bytes, PREFETCH_WHOLE_SHARE)

    def batched(self, wanted: Batch) -> Iterator[Batch]:
        """The same extents in batches, in the order of the first chunk of each."""
        parts = [chunk for chunk, extents in wanted.items() if not self.is_whole(chunk, extents)]
        batches = {group[0]: group for group in self._source.together(parts)}
        companions = set(parts).difference(batches)
        for chunk in wanted:
            if chunk not in companions:
                yield wanted.of(batches.get(chunk, [chunk]))

    async def fetch(self, batch: Batch, arrived: Callable[[Arrived], Awaitable[None]]) -> None:
        """Fetch a batch. Chunks are passed to `arrived` as they arrive, each once. If cancelled, a request in flight is
        abandoned.
        """
        chunk = next(iter(batch))
        if self.is_whole(chunk, batch[chunk]):
            try:
                content = await self._chunk_cache.fetch(chunk), batch[chunk].offsets
            except DieselfsError as error:
                await arrived({chunk: error})
            else:
                await arrived({chunk: content})
            return
        left = await self._fetch_from_node(batch, arrived)
        arriving = self._arriving(left)
        while left and (came := await trio.to_thread.run_sync(next, arriving, None, abandon_on_cancel=True)):
            left = left.of(left.keys() - came)
            await arrived(came)

    async def _fetch_from_node(self, batch: Batch, arrived: Callable[[Arrived], Awaitable[None]]) -> Batch:
        """Read extents of this node's chunks in the node cache, a few chunks ahead; returns the others.

        Chunks that are in memory arrive together.
        """
        node_cache = self._chunk_cache.node_cache()
        if node_cache is None:
            return batch
        left = batch.of(batch)
        chunks = sorted(filter(node_cache.owns, batch), key=lambda chunk: node_cache.held(chunk) is None)
        came: Arrived = {}
        for place, chunk in enumerate(chunks):
            extents = batch[chunk]
            for ahead in chunks[place : place + FETCHES_AT_ONCE_MAX]:
                if batch.is_shared_plan or node_cache.has_room(ahead):
                    node_cache.start(ahead)
            if came and node_cache.held(chunk) is None:
                await arrived(came)
                came = {}
            ranges = np.column_stack((extents.offsets, extents.lengths))
            try:
                payload = await node_cache.read(chunk, ranges)
            except DieselfsError as error:
                came[chunk] = error
                del left[chunk]
            else:
                if payload is not None:
                    came[chunk] = payload, extents.offsets
                    del left[chunk]
        if came:
            await arrived(came)
        return left

    def joined(self, batch: Batch, came: Arrived) -> Iterator[tuple[Extents, Content]]:
        """The content that arrived without error, in order; small extents of several chunks are joined."""
        bytes_max = min(JOINED_BYTES_MAX, self._largest_bytes)
        together: list[tuple[Extents, Content]] = []
        together_bytes = 0
        for chunk, content in came.items():
            if isinstance(content, DieselfsError):
                continue
            if together and together_bytes + len(content[0]) > bytes_max:
                yield _join(together)
                together, together_bytes = [], 0
            together.append((batch[chunk], content))
            together_bytes += len(content[0])
        if together:
            yield _join(together)

    def _arriving(self, batch: Batch) -> Iterator[Arrived]:
        wanted = Wanted({chunk: extents.extents() for chunk, extents in batch.items()}, batch.is_shared_plan)
        left = set(wanted)
        try:
            for arrival in self._source.fetch_many(wanted):
                left.difference_update(arrival)
                yield {chunk: _content(brought) for chunk, brought in arrival.items()}
        except Exception as error:  # a bug in a source fails these extents, not the mount
            _log.exception("prefetch failed")
            yield {chunk: Unavailable(f"fetching failed: {error!r}") for chunk in left}


def _content(brought: ChunkResult) -> Content | DieselfsError:
    if isinstance(brought, Slices):
        return brought.content, np.array(brought.starts, np.int64)
    return brought


def _join(parts: list[tuple[Extents, Content]]) -> tuple[Extents, Content]:
    if len(parts) == 1:
        return parts[0]
    payloads = [payload for _, (payload, _) in parts]
    begins = accumulate(map(len, payloads), initial=0)
    starts = [of_part + begin for (_, (_, of_part)), begin in zip(parts, begins, strict=False)]
    extents = Extents.joined([extents for extents, _ in parts])
    return extents, (memoryview(b"".join(payloads)), np.concatenate(starts))
