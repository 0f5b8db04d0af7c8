"""The chunks of a snapshot that a process has in memory. This module maps memory and waits for sockets.

A chunk that is not in memory
    is mapped, if the daemon of this node shares it, or in a job the node master: to be held, or for this read only;
    is fetched whole, if much of it is requested;
    else only extents are fetched, those of many chunks in one request to each node of the job.

The source is the nodes of the job if there is one, and a server otherwise.
"""

import mmap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

from dieselfs.cache.policy import (
    LIBRARY_REQUEST_BYTES,
    CacheBudget,
    CachePolicy,
    RecentRequests,
    is_worth_whole,
)
from dieselfs.chunk.segment import Memory, readonly_view
from dieselfs.cluster.attachment import Attachment
from dieselfs.cluster.node_client import NodeClient
from dieselfs.cluster.pooled_source import RequestMetrics
from dieselfs.errors import Damaged, DieselfsError, Unavailable
from dieselfs.metrics import Registry
from dieselfs.process.forks import renew_after_fork
from dieselfs.snapshot.reader import ExtentRef
from dieselfs.sources.interface import Slices, Source
from dieselfs.sources.server import ServerSource, is_intact

ExtentsByChunk = Mapping[int, Sequence[ExtentRef]]
"""Extents by the chunk that they are in."""


class Payload(NamedTuple):
    """One verified payload. A slice of `memory` is `bytes`; a slice of `view` is read-only and no copy."""

    memory: Memory
    view: memoryview

    @classmethod
    def of(cls, memory: Memory) -> "Payload":
        return cls(memory, readonly_view(memory))


class ThreadCache:
    """Blocks; safe to use from several threads, and after a fork."""

    def __init__(
        self, reader: ServerSource, memory_bytes: int, daemon: NodeClient | Attachment | None = None
    ) -> None:
        """`daemon`: the client of this node's daemon, or the attachment to a job; `close` closes it."""
        self._reader = reader
        self._snapshot = reader.snapshot
        self._daemon = daemon
        self._job = daemon if isinstance(daemon, Attachment) else None
        self._memory_bytes = memory_bytes
        dataset_bytes = int(self._snapshot.column("chunk_payload_lengths").sum(dtype="int64"))
        self.budget = CacheBudget.of(memory_bytes, dataset_bytes)
        self.lock = Lock()  # guards all below; lookups in pinned chunks, `memories` and `views` need no lock
        self.policy: CachePolicy[int, Payload] = CachePolicy(
            self._snapshot.chunk_payload_length, self.budget.pinned, self.budget.evictable
        )
        self.slots: dict[int, int] = {}
        """The place of each pinned chunk in `memories` and `views`."""
        self.memories: list[Memory] = []
        self.views: list[memoryview] = []
        self._in_flight: dict[int, Lock] = {}  # held by the thread that fetches the chunk
        self._recent = RecentRequests(LIBRARY_REQUEST_BYTES)
        self.metrics = metrics = self._job.metrics if self._job else Registry()
        self._requested = RequestMetrics(metrics)
        self._mapped = metrics.counter("chunk_cache.shared_chunks", "Chunks mapped from the daemon.")
        self._fetched_chunks = metrics.counter("chunk_cache.fetched_chunks", "Chunks fetched whole.")
        self._fetched_bytes = metrics.counter("chunk_cache.fetched_chunk_bytes", "Bytes of whole chunks.")
        self._extent_bytes = metrics.counter("chunk_cache.extent_bytes", "Bytes of extents fetched alone.")
        metrics.gauge("chunk_cache.pinned_bytes", "Pinned bytes.", lambda: self.policy.pinned_bytes)
        metrics.gauge("chunk_cache.evictable_bytes", "Evictable bytes.", lambda: self.policy.evictable_bytes)
        metrics.gauge("chunk_cache.memory_bytes", "Limit of chunks and lookups.").value = memory_bytes
        renew_after_fork(self)
        metrics.gauge("job.nodes", "Known nodes.", lambda: len(self._job.members) if self._job else 0)

    def after_fork(self) -> None:
        """Threads of the parent may have held the locks."""
        self.lock, self._in_flight = Lock(), {}

    def close(self) -> None:
        """Release all memory and the connection to the daemon. Reads in flight end normally."""
        if self._daemon is not None:
            self._daemon.close()
        with self.lock:  # no slot is reused: there is no room for anything from now on
            self.policy.clear()
            self.memories.clear()
            self.views.clear()

    # -- extents ------------------------------------------------------------------------------------------

    def contents(
        self, wanted: ExtentsByChunk, is_shared_plan: bool = False
    ) -> tuple[dict[ExtentRef, bytes], set[int]]:
        """The bytes of extents, and the chunks of them that were not in memory. Each chunk is requested once.

        `is_shared_plan`: other processes of the job will soon request the rest of these chunks.
        Raises Damaged, Unavailable.
        """
        contents: dict[ExtentRef, bytes] = {}
        missed: set[int] = set()
        left: dict[int, Sequence[ExtentRef]] = {}
        for chunk, extents in wanted.items():
            with self.lock:
                payload = self.policy.get(chunk)
            if payload is None:
                missed.add(chunk)
                with suppress(Damaged):  # damage elsewhere in the chunk: the extents may still be whole
                    payload = self._load(chunk, extents, is_shared_plan)
            if payload is None:
                left[chunk] = extents
            else:
                memory = payload.memory
                for extent in extents:
                    contents[extent] = memory[extent.offset : extent.offset + extent.length]
        if left:
            self._fetch_extents(left, is_shared_plan, contents)
        return contents, missed

    def _fetch_extents(
        self, wanted: ExtentsByChunk, is_shared_plan: bool, contents: dict[ExtentRef, bytes]
    ) -> None:
        """Add the bytes of extents to `contents`. Raises the first error after all that succeeded are there."""
        job = self._job
        if job is None:
            error = self._take_extents(self._reader, wanted, is_shared_plan, contents)
        else:
            # The node master has refused its chunks that there is room for here.
            with self.lock:
                roomy = [*filter(self.policy.has_room, wanted)]
            refused = {*filter(job.is_own, roomy)}
            pooled = {chunk: extents for chunk, extents in wanted.items() if chunk not in refused}
            error = self._take_extents(job.source, pooled, is_shared_plan, contents)
            of_server = {chunk: wanted[chunk] for chunk in refused}
            error = self._take_extents(self._reader, of_server, is_shared_plan, contents) or error
        if error is not None:
            raise error

    def _take_extents(
        self, source: Source, wanted: ExtentsByChunk, is_shared_plan: bool, contents: dict[ExtentRef, bytes]
    ) -> DieselfsError | None:
        """As `_fetch_extents`, from one source; returns the first error."""
        came_bytes = 0
        error: DieselfsError | None = None
        for arrival in source.fetch_many(wanted, is_shared_plan):
            for chunk, result in arrival.items():
                length_bytes = sum(extent.length for extent in wanted[chunk])
                is_failed = isinstance(result, DieselfsError)
                self._count_from(source, is_failed, len(wanted[chunk]), length_bytes)
                if isinstance(result, DieselfsError):
                    error = error or result
                else:
                    came_bytes += length_bytes
                    contents.update(zip(wanted[chunk], map(bytes, result), strict=True))
        self.metrics.add(self._extent_bytes, came_bytes)
        return error

    # -- whole chunks ------------------------------------------------------------------------------------

    def _load(self, chunk: int, extents: Sequence[ExtentRef], is_shared_plan: bool) -> Payload | None:
        """The payload of a chunk, loaded by this thread or by another; None if it is not worth having whole.

        In a mapped chunk that will not be held, only the extents are verified. Raises as `ServerSource`.
        """
        with self.lock:
            if not self.policy.has_room(chunk):
                return None
            flight = self._in_flight.setdefault(chunk, Lock())
        with flight:
            with self.lock:
                payload = self.policy.get(chunk)
            if payload is not None:
                return payload
            try:
                shared = self._map(chunk, extents, is_shared_plan)
                with self.lock:
                    is_whole = self._is_worth_whole(chunk, extents, is_shared_plan, shared is not None)
                if shared is not None:
                    payload = self._verify(shared, chunk, () if is_whole else extents)
                if payload is None and is_whole:
                    payload = self._fetch(chunk)
                if payload is not None and is_whole:
                    with self.lock:
                        self._hold(chunk, payload)
            finally:
                with self.lock:
                    self._in_flight.pop(chunk, None)
        return payload

    def _hold(self, chunk: int, payload: Payload) -> None:
        """Hold a payload if there is still room for it. Called under the lock."""
        if self.policy.would_pin(chunk):
            self.slots[chunk] = len(self.memories)
            self.memories.append(payload.memory)
            self.views.append(payload.view)
        if self.policy.has_room(chunk):
            self.policy.add(chunk, payload)

    def _map(self, chunk: int, extents: Sequence[ExtentRef], is_shared_plan: bool) -> Payload | None:
        """A chunk that the daemon of this node shares, not verified yet."""
        if self._daemon is None:
            return None
        length_bytes = self._snapshot.chunk_payload_length(chunk)
        is_whole = is_shared_plan and self._job is not None
        wanted_bytes = length_bytes if is_whole else sum(extent.length for extent in extents)
        memory = self._daemon.memory(chunk, length_bytes, wanted_bytes)
        return None if memory is None else Payload.of(memory)

    def _verify(self, shared: Payload, chunk: int, extents: Sequence[ExtentRef]) -> Payload | None:
        """The shared payload if these extents match their checksums, or for none the whole. To verify a chunk takes as
        long as a hundred of its small files.
        """
        slices = Slices.of_payload(shared.view, extents)
        if not is_intact(self._snapshot, chunk, slices, extents):
            return None
        size_bytes = sum(slices.lengths)
        self._requested.count(self._requested.from_node, len(slices), size_bytes)
        if extents:
            self.metrics.add(self._extent_bytes, size_bytes)
        else:
            self.metrics.add(self._mapped)
        return shared

    def _fetch(self, chunk: int) -> Payload:
        length_bytes = self._snapshot.chunk_payload_length(chunk)
        memory = _new_memory(length_bytes)
        source: Source = self._reader if self._job is None else self._job.source
        try:
            with memoryview(memory) as destination:
                source.fetch_chunk_into(chunk, destination)
        except DieselfsError:
            self._count_from(source, True, 1, length_bytes)
            raise
        self._count_from(source, False, 1, length_bytes)
        self.metrics.add(self._fetched_chunks)
        self.metrics.add(self._fetched_bytes, length_bytes)
        return Payload.of(memory)

    def _is_worth_whole(
        self, chunk: int, extents: Sequence[ExtentRef], is_shared_plan: bool, is_shared: bool
    ) -> bool:
        """Whether to hold a chunk whole that is not in memory, and for which there is room. Called under the lock.

        `is_shared`: it does not have to be fetched, only verified.
        """
        payload_bytes = self._snapshot.chunk_payload_length(chunk)
        wanted_bytes = sum(extent.length for extent in extents)
        would_pin = self.policy.would_pin(chunk)
        if is_shared and (would_pin or is_shared_plan):
            return True
        if is_shared_plan and self._job is not None:
            # Each of n readers needs an n-th of it. If all fetched it whole, each chunk would be sent n times.
            return is_worth_whole(wanted_bytes, payload_bytes)
        if would_pin and chunk in self._recent:
            self._recent.forget(chunk)
            return True
        # A group that does not fit is read by the extent: its chunks would evict each other.
        soon_bytes = self._memory_bytes if would_pin else self.budget.evictable
        return self._recent.is_worth_whole(
            chunk, wanted_bytes, payload_bytes, soon_bytes // max(payload_bytes, 1)
        )

    def _count_from(self, source: Source, is_failed: bool, extents: int, length_bytes: int) -> None:
        """Count a request to the server. The source of a job counts its own."""
        if source is self._reader:
            requested = self._requested
            requested.count(requested.failed if is_failed else requested.from_servers, extents, length_bytes)


def _new_memory(length_bytes: int) -> mmap.mmap:
    """Anonymous memory, in huge pages where the kernel has them. Raises Unavailable if there is none.

    A page fault for 4 KB costs about as much time as reading 4 KB over a network.
    """
    try:
        memory = mmap.mmap(-1, length_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise Unavailable(f"no memory for a chunk of {length_bytes} bytes: {error.strerror}") from None
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
