"""The node cache: the chunks that a node holds for its own processes and for the other nodes of its job.

Each chunk is a sealed segment, fetched in a single flight, and verified before it is used. The first chunks are
*pinned*, as many as fit. The others are *evictable*, and stay until all their readers have received them.

Each chunk takes a descriptor and a mapping. Pinned chunks are never evicted, so if either runs out, all later fetches
and connections fail. `usable_bytes` keeps a node cache below both limits; it sets a limit of the process.
"""

import logging
from collections.abc import Callable, Iterable
from functools import cached_property

import numpy as np
import numpy.typing as npt
import trio

from dieselfs.arrays import Ranges, among
from dieselfs.cache.policy import CachePolicy, RecentRequests
from dieselfs.chunk.ids import chunk_name
from dieselfs.chunk.segment import Segment
from dieselfs.cluster.warmth import Warmth
from dieselfs.errors import Damaged, DieselfsError, NoRoom
from dieselfs.limits import MIB, PEER_PATIENCE_S, READ_TIMEOUT_S
from dieselfs.process.system_limits import allow_descriptors
from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.interface import FetchMetrics, RequestMetrics
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry
from dieselfs_client.memory.trio_cache import Foreground, TrioCache
from dieselfs_client.supervision.supervisor_client import HandoverChunks

_log = logging.getLogger(__name__)

_BLOCK_EXTENTS = 1 << 20
"""Extents that are summed in one step: a snapshot may have many million."""


def usable_bytes(memory_bytes: int, snapshot: Snapshot) -> int:
    """The part of `memory_bytes` that a node cache of this process can use for chunks of `snapshot`; logs a warning if
    it is less. Called before the node cache is made.
    """
    segments = allow_descriptors()
    if not snapshot.chunk_count:
        return memory_bytes
    mean_bytes = float(snapshot.column("chunk_payload_lengths").mean())
    most_bytes = int(segments * mean_bytes)
    if memory_bytes <= most_bytes:
        return memory_bytes
    _log.warning(
        "%d of %d MiB are used for chunks: the limits of this process allow %d chunks; raise `ulimit -n` or "
        "vm.max_map_count for more",
        most_bytes // MIB,
        memory_bytes // MIB,
        segments,
    )
    return most_bytes


class NodeCache(TrioCache[int, Segment]):
    """Used from one trio thread. `fetch_segment` returns a chunk, verified and sealed; it blocks, and raises
    DieselfsError.

    A segment must be used before the next checkpoint, or duplicated. A view of it stays readable while it is
    referenced. The chunks that the previous daemon handed over to the `keeper` are pinned at once. Pinned chunks are
    handed over to the next daemon in the same way.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        fetch_segment: Callable[[int], Segment],
        pinned_bytes: int,
        evictable_bytes: int,
        nursery: trio.Nursery,
        timeout_s: float = READ_TIMEOUT_S,
        foreground: Foreground | None = None,
        keeper: HandoverChunks | None = None,
        metrics: Registry | None = None,
        owns: Callable[[int], bool] = lambda chunk: True,
        is_on_disk: Callable[[int], bool] = lambda chunk: False,
    ) -> None:
        """`owns`: whether this node owns a chunk at the moment; `is_on_disk`: whether a chunk is on its disk, or would
        be after a fetch.
        """
        self.metrics = metrics = metrics or Registry()
        self._fetched = metrics.counter(
            "node_cache.fetched_chunks", "Chunks fetched from servers or the disk."
        )
        self._fetched_bytes = metrics.declare(catalogue.NODE_CACHE_FETCHED_BYTES)
        self.hits = metrics.counter("node_cache.hits", "Requests for a chunk that was in the cache.")
        self._inherited = metrics.counter("node_cache.inherited_chunks", "Chunks left by the daemon before.")
        metrics.gauge("node_cache.pinned_bytes", "Pinned bytes.", lambda: policy.pinned_bytes)
        metrics.gauge("node_cache.evictable_bytes", "Evictable bytes.", lambda: policy.evictable_bytes)
        self._requested = RequestMetrics(metrics)
        self._fetches = FetchMetrics(metrics)
        self.owns = owns
        self._is_on_disk = is_on_disk
        self._snapshot = snapshot
        self._recent = RecentRequests()
        self._keeper = keeper
        policy = CachePolicy[int, Segment](
            snapshot.chunk_payload_length,
            pinned_bytes,
            evictable_bytes,
            live_bytes=lambda chunk: int(self._live_bytes[chunk]),
        )
        super().__init__(
            policy,
            fetch_segment,
            lambda chunk: f"chunk {chunk_name(snapshot.chunk_id(chunk))}",
            nursery,
            timeout_s,
            foreground=foreground,
        )
        if keeper is not None:
            self._inherit(keeper)

    async def fetch(self, chunk: int, limiter: trio.CapacityLimiter | None = None) -> Segment:
        segment = self.held(chunk)
        if segment is not None:
            self.hits.value += 1
            return segment
        return await super().fetch(chunk, limiter)

    # -- readers in this process --------------------------------------------------------------------------

    def view(self, chunk: int, offset: int, length: int) -> memoryview | None:
        """A range of a chunk if that is in memory. Counts as a hit and as delivered."""
        segment = self.held(chunk)
        if segment is None:
            return None
        self.hits.value += 1
        if chunk not in self.policy.pinned:
            self.policy.handed_out(chunk, np.array([[offset, length]]))
        return segment.view[offset : offset + length]

    async def read(
        self,
        chunk: int,
        ranges: Ranges | None = None,
        limiter: trio.CapacityLimiter | None = None,
    ) -> memoryview | None:
        """The payload of a chunk that this node owns, for all of it or for `ranges`. None if the reader should use the
        source: the chunk is not owned, not worth fetching, damaged (perhaps outside of the ranges), in flight for
        longer than PEER_PATIENCE_S, or this process has no room for it.

        Raises and behaves as `fetch`. Counts as a request that the own node answered.
        """
        wanted_bytes = (
            self._snapshot.chunk_payload_length(chunk) if ranges is None else int(ranges[:, 1].sum())
        )
        if not self.owns(chunk):
            return None
        if ranges is not None and not self.is_worth_fetching(chunk, wanted_bytes):
            return None
        flight = self._in_flight.get(chunk)
        started_s = trio.current_time() if flight is None else flight.started_s
        extents = 1 if ranges is None else len(ranges)
        segment = None
        try:
            with trio.move_on_at(started_s + PEER_PATIENCE_S):
                segment = await self.fetch(chunk, limiter)
        except NoRoom:
            return None
        except DieselfsError as error:
            if ranges is not None and isinstance(error, Damaged):
                return None
            self._requested.count(self._requested.failed, extents, wanted_bytes)
            raise
        if segment is None:
            return None
        self._requested.count(self._requested.from_node, extents, wanted_bytes)
        if ranges is None:
            self._fetches.count_chunk(wanted_bytes)
        else:
            self._fetches.count_ranges(extents, wanted_bytes)
            self.policy.handed_out(chunk, ranges)
        return segment.view

    def is_worth_fetching(self, chunk: int, wanted_bytes: int) -> bool:
        """Whether to fetch the whole chunk for `wanted_bytes` of it: it is in memory or in flight, it would be pinned,
        or much of it was requested lately.
        """
        return (
            chunk in self.policy
            or chunk in self._in_flight
            or self.policy.would_pin(chunk)
            or self._recent.is_worth_whole(chunk, wanted_bytes, self._snapshot.chunk_payload_length(chunk))
        )

    def is_worth_sending(self, chunk: int, wanted_bytes: int) -> bool:
        """As `is_worth_fetching`, for another node. That one cannot read the disk of this node, so a chunk on it is
        always worth it.
        """
        return self.is_worth_fetching(chunk, wanted_bytes) or self._is_on_disk(chunk)

    def chunks(self) -> list[int]:
        """The pinned chunks."""
        return list(self.policy.pinned)

    def drop(self, chunks: Iterable[int]) -> None:
        """Stop holding chunks. A process that has mapped one keeps its memory."""
        for chunk in chunks:
            if self.policy.drop(chunk) and self._keeper is not None:
                self._keeper.drop(chunk)

    # -- warming: `warming.Warmable` -----------------------------------------------------------------------

    def lacks(self, chunk: int) -> bool:
        return chunk not in self.policy.pinned and chunk not in self.damaged

    def has_room(self, chunk: int) -> bool:
        return self.policy.would_pin(chunk)

    async def bring(self, chunk: int, limiter: trio.CapacityLimiter) -> None:
        """Fetch a chunk for which there is room, as `fetch`; an evictable chunk is pinned."""
        segment = self.policy.pin(chunk)
        if segment is not None:
            self._keep(chunk, segment)
        elif self.lacks(chunk):
            await self.fetch(chunk, limiter)

    def warmth(self, own: npt.NDArray[np.int64]) -> Warmth:
        """The pinned part of the chunks `own` that can be pinned. Other pinned chunks take room and are not counted:
        this node holds them in place of a suspected node, and drops them when that is healthy.
        """
        policy = self.policy
        here = np.fromiter([*policy.pinned, *self.damaged], np.int64)
        missing = own[~among(own, here)]
        lengths = self._snapshot.column("chunk_payload_lengths")
        pinned = own[among(own, np.fromiter(policy.pinned, np.int64))]
        pinned_bytes = int(lengths[pinned].sum(dtype=np.int64))
        pinned_max_bytes = policy.pinned_max_bytes - (policy.pinned_bytes - pinned_bytes)
        damaged = int(among(own, np.fromiter(self.damaged, np.int64)).sum())
        return Warmth.of(pinned_bytes, pinned_max_bytes, lengths[missing], damaged)

    # ----------------------------------------------------------------------------------------------------

    def _inherit(self, keeper: HandoverChunks) -> None:
        for chunk, segment in keeper.take():
            if self.policy.would_pin(chunk):
                self.policy.add(chunk, segment)
                self._inherited.value += 1
            else:
                keeper.drop(chunk)

    def _hold(self, chunk: int, segment: Segment) -> bool:
        self._fetched.value += 1
        self._fetched_bytes.value += len(segment)
        is_pinned = super()._hold(chunk, segment)
        if is_pinned:
            self._keep(chunk, segment)
        return is_pinned

    def _keep(self, chunk: int, segment: Segment) -> None:
        if self._keeper is not None:
            self._keeper.keep(chunk, segment)

    @cached_property
    def _live_bytes(self) -> npt.NDArray[np.int64]:
        """The bytes of each chunk that belong to files of the snapshot. Takes about 10 ms per million files, once."""
        chunks, lengths = self._snapshot.column("extent_chunks"), self._snapshot.column("extent_lengths")
        live_bytes = np.zeros(self._snapshot.chunk_count, np.int64)
        for first in range(0, len(chunks), _BLOCK_EXTENTS):
            block = slice(first, first + _BLOCK_EXTENTS)
            live_bytes += np.bincount(chunks[block], lengths[block], len(live_bytes)).astype(np.int64)
        return live_bytes
