"""The chunks of a snapshot that a process has in memory. This module maps memory and waits for sockets.

`dieselfs.cache.load` decides what becomes of a chunk that is not in memory: it is mapped from the daemon of this node,
in a job from the node master, or from a server that is a process of this user on this machine; or fetched whole; or
only extents of it are fetched, those of many chunks in one request to each node of the job.

The source is the nodes of the job if there is one, and a server otherwise. Shared chunks were verified by the
process that shares them.
"""

import mmap
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from operator import attrgetter
from threading import Lock
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from dieselfs.arrays import Numbers
from dieselfs.cache.load import Load, Missing, load_ahead, load_for
from dieselfs.cache.policy import LIBRARY_REQUEST_BYTES, CacheBudget, CachePolicy, RecentRequests
from dieselfs.chunk.segment import Memory, readonly_view
from dieselfs.cluster.holdings import FAR, HERE, decoded
from dieselfs.cluster.node_client import NodeClient
from dieselfs.errors import Damaged, DieselfsError, Unavailable, os_errors_as
from dieselfs.forks import SingleFlight, renew_after_fork
from dieselfs.limits import SHARED_PAYLOADS_MAX
from dieselfs.snapshot.reader import ExtentRef
from dieselfs.sources.interface import Arrival, RequestMetrics, Slices, Source, Wanted
from dieselfs.sources.plain import decrypted
from dieselfs.sources.server import ServerSource

if TYPE_CHECKING:  # imported in a job alone
    from dieselfs.cluster.attachment import Attachment

_Content = TypeVar("_Content", covariant=True)

SHARED_CHUNKS_MAX = 32_768
"""Limit of chunks in kept memory of a server: each is a mapping, of which Linux allows a process 65,530."""

FLIGHT_WAIT_S = 10.0
"""A thread waits this long for a chunk that another one loads, and then loads it itself."""


class HeldPayload(NamedTuple):
    """One verified payload. A slice of `memory` is `bytes`; a slice of `view` is read-only and no copy."""

    memory: Memory
    view: memoryview

    @classmethod
    def of(cls, memory: Memory) -> "HeldPayload":
        return cls(memory, readonly_view(memory))


class Sliceable(Protocol[_Content]):
    def __getitem__(self, part: slice, /) -> _Content: ...


class Form(NamedTuple, Generic[_Content]):
    """How callers get bytes: slices of `held(payload)`, and `made_of(fetched)`."""

    held: Callable[[HeldPayload], Sliceable[_Content]]
    made_of: Callable[[bytes | memoryview], _Content]


COPIES: Form[bytes] = Form(attrgetter("memory"), bytes)
VIEWS: Form[memoryview] = Form(attrgetter("view"), lambda fetched: memoryview(fetched).toreadonly())
"""Read-only, without a copy; each keeps its whole chunk in memory, or what was fetched in one request."""


class _Shared(NamedTuple):
    """A payload in memory of another process; `is_kept`: that one keeps it, so it takes no memory of this one."""

    payload: HeldPayload
    is_kept: bool


class ThreadCache:
    """Blocks; safe to use from several threads, and after a fork."""

    def __init__(
        self, reader: ServerSource, memory_bytes: int, daemon: "NodeClient | Attachment | None" = None
    ) -> None:
        """`daemon`: the client of this node's daemon, or the attachment to a job; `close` closes it."""
        self._reader = reader
        self._snapshot = reader.snapshot
        self._daemon = daemon
        self._job = None if daemon is None or isinstance(daemon, NodeClient) else daemon
        job = self._job
        self._decrypted = decrypted(lambda: job.source, reader) if job is not None else None
        self._memory_bytes = memory_bytes
        dataset_bytes = int(self._snapshot.column("chunk_payload_lengths").sum(dtype="int64"))
        self.budget = CacheBudget.of(memory_bytes, dataset_bytes)
        self._flights = SingleFlight(FLIGHT_WAIT_S)
        self.lock = Lock()  # guards all below; lookups in pinned chunks, `memories` and `views` need no lock
        self.policy: CachePolicy[int, HeldPayload] = CachePolicy(
            self._snapshot.chunk_payload_length, self.budget.pinned, self.budget.evictable
        )
        self.slots: dict[int, int] = {}
        """The place of each pinned chunk in `memories` and `views`."""
        self.memories: list[Memory] = []
        self.views: list[memoryview] = []
        self._refused: set[int] = set()  # chunks that the server did not share
        self._expected: set[int] = set()  # those that the look-ahead will load whole
        self._ahead = 0
        self._recent = RecentRequests(LIBRARY_REQUEST_BYTES)
        self.metrics = metrics = self._job.metrics if self._job else reader.metrics
        self._requested = RequestMetrics(metrics)
        self._mapped = metrics.counter(
            "chunk_cache.shared_chunks", "Chunks mapped from the daemon or the server."
        )
        self._fetched_chunks = metrics.counter("chunk_cache.fetched_chunks", "Chunks fetched whole.")
        self._fetched_bytes = metrics.counter("chunk_cache.fetched_chunk_bytes", "Bytes of whole chunks.")
        self._extent_bytes = metrics.counter("chunk_cache.extent_bytes", "Bytes of extents fetched alone.")
        metrics.gauge("chunk_cache.pinned_bytes", "Pinned bytes.", lambda: self.policy.pinned_bytes)
        metrics.gauge("chunk_cache.evictable_bytes", "Evictable bytes.", lambda: self.policy.evictable_bytes)
        metrics.gauge("chunk_cache.memory_bytes", "Limit of chunks and lookups.").value = memory_bytes
        renew_after_fork(self)
        metrics.gauge("job.nodes", "Known nodes.", lambda: len(self._job.members) if self._job else 0)

    def after_fork(self) -> None:
        """Threads of the parent may have held the locks, and have been in the middle of `_hold`."""
        self.lock, self._expected = Lock(), set()
        self.policy.reserved_bytes = 0
        count = min(len(self.memories), len(self.views))
        del self.memories[count:], self.views[count:]

    def close(self) -> None:
        """Release all memory and the connection to the daemon. Reads in flight end normally."""
        if self._daemon is not None:
            self._daemon.close()
        with self.lock:  # no slot is reused: there is no room for anything from now on
            self.policy.clear()
            self.memories.clear()
            self.views.clear()

    # -- extents ------------------------------------------------------------------------------------------

    def contents(self, wanted: Wanted, form: Form[_Content]) -> tuple[dict[ExtentRef, _Content], set[int]]:
        """The bytes of extents, and the chunks of them that were not in memory. Each chunk is requested once.

        Raises Damaged, Unavailable.
        """
        contents: dict[ExtentRef, _Content] = {}
        missed: set[int] = set()
        left: list[int] = []
        own = self._own_among(wanted)
        payloads, in_parts = self._held_and_in_parts(wanted, own)
        for chunk, extents in wanted.items():
            payload = payloads.get(chunk)
            if payload is None:
                missed.add(chunk)
                with suppress(Damaged):  # damage elsewhere in the chunk: the extents may still be whole
                    payload = None if chunk in in_parts else self._load(wanted, chunk)
            if payload is None:
                left.append(chunk)
            else:
                held = form.held(payload)
                for extent in extents:
                    contents[extent] = held[extent.offset : extent.offset + extent.length]
        if left:
            self._fetch_extents(wanted.of(left), own, contents, form)
        return contents, missed

    def _own_among(self, chunks: Iterable[int]) -> set[int]:
        """Those that the node master may share: it owns them, and they are not encrypted."""
        return self._job.own_among(chunks) if self._job is not None and self._decrypted is None else set()

    def _held_and_in_parts(self, wanted: Wanted, own: set[int]) -> tuple[dict[int, HeldPayload], set[int]]:
        """The chunks in memory, and those of which only extents are to be fetched; both need no turn (`_flights`)."""
        payloads: dict[int, HeldPayload] = {}
        in_parts: set[int] = set()
        with self.lock:
            for chunk in wanted:
                payload = self.policy.get(chunk)
                if payload is not None:
                    payloads[chunk] = payload
                    continue
                length_bytes = wanted.length_bytes(chunk)
                missing = self._missing(chunk, length_bytes, wanted.is_shared_plan, len(wanted))
                load = load_for(missing)
                may_share = load.asks_server or (load.asks_daemon and (self._job is None or chunk in own))
                if not (load.fetches_whole or may_share or self._flights.is_taken(chunk)):
                    self._note(missing, load)
                    in_parts.add(chunk)
        return payloads, in_parts

    def _fetch_extents(
        self, wanted: Wanted, own: set[int], contents: dict[ExtentRef, _Content], form: Form[_Content]
    ) -> None:
        """Add the bytes of extents to `contents`. Raises the first error after all that succeeded are there. `own`:
        see `_own_among`.
        """
        if self._job is None:
            error = self._take_extents(self._reader, wanted, contents, form)
        else:
            # The node master has refused its chunks that there is room for here.
            with self.lock:
                refused = {chunk for chunk in own & wanted.keys() if self.policy.has_room(chunk)}
            pooled = wanted.of(chunk for chunk in wanted if chunk not in refused) if refused else wanted
            error = self._take_extents(self._source, pooled, contents, form)
            if refused:
                error = self._take_extents(self._reader, wanted.of(refused), contents, form) or error
        if error is not None:
            raise error

    def _take_extents(
        self,
        source: Source,
        wanted: Wanted,
        contents: dict[ExtentRef, _Content],
        form: Form[_Content],
    ) -> DieselfsError | None:
        """Add the bytes of extents from one source to `contents`; returns the first error."""
        error: DieselfsError | None = None
        for arrival in self._counted(source, wanted):
            for chunk, result in arrival.items():
                if isinstance(result, DieselfsError):
                    error = error or result
                else:
                    contents.update(zip(wanted[chunk], map(form.made_of, result), strict=True))
        return error

    def _counted(self, source: Source, wanted: Wanted) -> Iterator[Arrival]:
        for arrival in source.fetch_many(wanted):
            came = [result for result in arrival.values() if isinstance(result, Slices)]
            self.metrics.add(self._extent_bytes, sum([sum(slices.lengths) for slices in came]))
            if source is self._reader:
                for chunk, result in arrival.items():
                    is_failed = isinstance(result, DieselfsError)
                    self._count_from(source, is_failed, len(wanted[chunk]), wanted.length_bytes(chunk))
            yield arrival

    @property
    def fetches(self) -> int:
        """Extents and whole chunks that came from servers and from other nodes."""
        return int(self._requested.from_servers[0].value + self._requested.from_peers[0].value)

    # -- for the look-ahead ------------------------------------------------------------------------------

    def bring(self, chunk: int, wanted_bytes: int, is_whole: bool, is_shared_plan: bool) -> bool:
        """Load a chunk that another process shares or, for `is_whole`, any; False if its files are to be fetched. It is
        held if there is room. Raises as `ServerSource`.
        """
        with self._flights.of(chunk):
            with self.lock:
                if self.policy.get(chunk) is not None:
                    return True
                missing = self._missing(chunk, wanted_bytes, is_shared_plan, 1)
            return self._loaded(missing, load_ahead(missing, is_whole)) is not None

    def expect(self, chunks: Iterable[int], is_expected: bool) -> None:
        """Whether these chunks will be loaded whole: then readers of them load them whole."""
        with self.lock:
            (self._expected.update if is_expected else self._expected.difference_update)(chunks)

    def distances_of_daemons(self) -> Numbers:
        """As `Attachment.distances`; without a job, those of the daemon of this node. Chunks of none are FAR."""
        if self._job is not None:
            return self._job.distances()
        count = self._snapshot.chunk_count
        found = np.full(count, FAR)
        held = self._daemon.held(count) if isinstance(self._daemon, NodeClient) and count else None
        if held is not None:
            found[decoded(count, held[0 : len(held)])] = HERE
        return found

    def together(self, chunks: Iterable[int]) -> list[list[int]]:
        """The same chunks, grouped by the request that will fetch their files."""
        return self._source.together(chunks)

    def fetch_many(self, wanted: Wanted) -> Iterator[Arrival]:
        """As `Source.fetch_many`."""
        return self._counted(self._source, wanted)

    def reserve(self, length_bytes: int) -> None:
        """Reserve `length_bytes` for files outside of chunks, which leaves less room for evictable chunks; a negative
        number releases them.
        """
        with self.lock:
            self.policy.reserve(length_bytes)

    @property
    def _source(self) -> Source:
        if self._job is None:
            return self._reader
        return self._decrypted or self._job.source

    # -- whole chunks ------------------------------------------------------------------------------------

    def _load(self, wanted: Wanted, chunk: int) -> HeldPayload | None:
        """The payload of a chunk, loaded by this thread or by another; None if it is not worth having whole.

        Raises as `ServerSource`.
        """
        with self._flights.of(chunk):
            with self.lock:
                payload = self.policy.get(chunk)
                if payload is not None:
                    return payload
                wanted_bytes = wanted.length_bytes(chunk)
                missing = self._missing(chunk, wanted_bytes, wanted.is_shared_plan, len(wanted))
            return self._loaded(missing, load_for(missing), len(wanted[chunk]))

    def _missing(self, chunk: int, wanted_bytes: int, is_shared_plan: bool, together: int) -> Missing:
        """What decides how to load a chunk, requested with others: `together` chunks. Called under the lock."""
        would_pin = self.policy.would_pin(chunk)
        return Missing(
            chunk,
            payload_bytes=self._snapshot.chunk_payload_length(chunk),
            wanted_bytes=wanted_bytes,
            requested_bytes=self._recent.requested_bytes(chunk, wanted_bytes, together),
            together=together,
            is_expected=chunk in self._expected,
            has_room=would_pin or self.policy.has_room(chunk),
            would_pin=would_pin,
            is_known=chunk in self._recent,
            is_refused=chunk in self._refused,
            is_in_job=self._job is not None,
            is_shared_plan=is_shared_plan,
        )

    def _loaded(self, missing: Missing, load: Load, extents: int = 1) -> HeldPayload | None:
        """The payload of a chunk, mapped or fetched as was decided; None if only extents are to be fetched. `extents`:
        how many are wanted.
        """
        chunk = missing.chunk
        shared = self._map(chunk, load)
        if shared is not None and shared.is_kept:
            return shared.payload
        is_held = load.fetches_whole if shared is None else load.holds_shared
        payload = None
        if shared is not None:
            payload = shared.payload
            if is_held:
                self._count_mapped(len(payload.memory))
            else:
                self._requested.count(self._requested.from_node, extents, missing.wanted_bytes)
                self.metrics.add(self._extent_bytes, missing.wanted_bytes)
        elif is_held:
            payload = self._fetch(chunk)
        with self.lock:
            if is_held and payload is not None:
                self._recent.forget(chunk)
                self._hold(chunk, payload)
            else:
                self._note(missing, load)
        return payload

    def _note(self, missing: Missing, load: Load) -> None:
        """A chunk is not held: the request counts for later ones. Called under the lock."""
        if load.is_noted:
            # A group that does not fit is read by the extent: its chunks would evict each other.
            soon_bytes = self._memory_bytes if missing.would_pin else self.budget.evictable
            chunks_max = soon_bytes // max(missing.payload_bytes, 1)
            self._recent.note(missing.chunk, missing.wanted_bytes, chunks_max, missing.together)

    def _hold(self, chunk: int, payload: HeldPayload, is_kept: bool = False) -> None:
        """Hold a payload if there is still room for it. Called under the lock."""
        if is_kept or self.policy.would_pin(chunk):
            self.memories.append(payload.memory)
            self.views.append(payload.view)
            self.slots[chunk] = len(self.views) - 1  # last: see `after_fork`
        if is_kept:
            self.policy.keep(chunk, payload)
        elif self.policy.has_room(chunk):
            self.policy.add(chunk, payload)

    def _map(self, chunk: int, load: Load) -> _Shared | None:
        """A chunk that the daemon of this node shares, or the server; one that is kept there is held here."""
        memory = None
        if self._daemon is not None and load.asks_daemon and self._decrypted is None:  # else it is ciphertext
            length_bytes = self._snapshot.chunk_payload_length(chunk)
            memory = self._daemon.memory(chunk, length_bytes, load.asked_bytes)
        if memory is not None:
            return _Shared(HeldPayload.of(memory), False)
        return self._map_from_server(chunk, load.asked_bytes) if load.asks_server else None

    def _map_from_server(self, chunk: int, wanted_bytes: int) -> _Shared | None:
        """With a chunk, the server passes others that it keeps, more of them each time: a reader who needs this one is
        likely to need them, and a mapping costs less than a request.
        """
        with self.lock:
            others = range(chunk + 1, self._snapshot.chunk_count)
            ahead = [each for each in others[: self._ahead] if each not in self.policy.pinned]
        found = self._reader.shared([chunk, *ahead], wanted_bytes)
        with self.lock:
            has_room = len(self.memories) + len(found) <= SHARED_CHUNKS_MAX
            self._ahead = min(2 * self._ahead + 1, SHARED_PAYLOADS_MAX - 1) if len(found) > len(ahead) else 0
            for each, (memory, is_kept) in found.items():
                if is_kept and has_room and each not in self.policy.pinned:
                    self._count_mapped(len(memory))
                    self._hold(each, HeldPayload.of(memory), is_kept=True)
            if chunk not in found:
                self._refused.add(chunk)
                return None
            self._refused.discard(chunk)
        memory, is_kept = found[chunk]
        held = self.policy.pinned.get(chunk)
        return _Shared(held or HeldPayload.of(memory), held is not None)

    def _count_mapped(self, length_bytes: int) -> None:
        self._requested.count(self._requested.from_node, 1, length_bytes)
        self.metrics.add(self._mapped)

    def _fetch(self, chunk: int) -> HeldPayload:
        length_bytes = self._snapshot.chunk_payload_length(chunk)
        memory = _new_memory(length_bytes)
        source = self._source
        try:
            with memoryview(memory) as destination:
                source.fetch_chunk_into(chunk, destination)
        except DieselfsError:
            self._count_from(source, True, 1, length_bytes)
            raise
        self._count_from(source, False, 1, length_bytes)
        self.metrics.add(self._fetched_chunks)
        self.metrics.add(self._fetched_bytes, length_bytes)
        return HeldPayload.of(memory)

    def _count_from(self, source: Source, is_failed: bool, extents: int, length_bytes: int) -> None:
        """Count a request to the server. The source of a job counts its own."""
        if source is self._reader:
            requested = self._requested
            requested.count(requested.failed if is_failed else requested.from_servers, extents, length_bytes)


def _new_memory(length_bytes: int) -> mmap.mmap:
    """Anonymous memory, in huge pages where the kernel has them. Raises Unavailable if there is none.

    A page fault for 4 KB costs about as much time as reading 4 KB over a network.
    """
    with os_errors_as(Unavailable, f"no memory for a chunk of {length_bytes} bytes"):
        memory = mmap.mmap(-1, length_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
