"""Reads chunks for clients: merges requests into few large reads of the object store (DIESEL, section 4).

Concurrent requests for one chunk, also of several clients, share reads. A request that the read in flight covers shares
it. All other requests wait, and the next read serves all of them. No request waits for others to arrive: a read starts
as soon as there is a token for it.

"Scalable Deep Learning via I/O Analysis and Optimization" (Pumma et al., TOPC 2019), section 4, has six. Three are ways
of the store, and here. A reader chooses the others by what it calls: one reader for a node (`share_payloads`), direct
placement (`open_payload`), and provenance (a snapshot, which has the place of each byte).
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import trio

from dieselfs.arrays import Ranges, distinct
from dieselfs.chunk.blocks import block_checksums
from dieselfs.chunk.format import PREAMBLE_BYTES, Preamble, check_payload, decode_header, decode_preamble
from dieselfs.chunk.frames import Frames
from dieselfs.chunk.ids import CHUNK_ID_BYTES, chunk_name
from dieselfs.errors import Damaged, DieselfsError, InvalidInput, NotFound, Unavailable
from dieselfs.limits import CHUNK_OBJECT_BYTES_MAX, KIB, MIB
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry
from dieselfs_server.admission.processor_time import in_thread
from dieselfs_server.reading.kept_checksums import KeptChecksums
from dieselfs_server.store.attached import Sources, open_referred
from dieselfs_server.store.compressed import CompressedStore
from dieselfs_server.store.interface import ObjectStore, OpenPayload

GAP_BYTES_MAX = 64 * KIB
"""Ranges with at most this gap are merged: reading the gap costs less than another read."""
INLINE_RANGES_MAX = 128
"""Requests of up to this many ranges are merged and cut in the event loop, in less than 0.2 ms; others in a thread."""
OPENED_CHECKSUMS_BYTES_MAX = 1 * MIB
"""Limit of the checksums in one reply, those of 512 chunks of 4 MiB."""
CUTS_MAX = 2
"""Requests of more ranges that are cut at the same time."""
JOINED_BYTES_MAX = 256 * KIB
JOINED_RANGES_MAX = 1_024
"""Limits of one buffer for small ranges; to make it takes less than 1 ms."""


def merge_ranges(ranges: Ranges, gap_bytes_max: int = GAP_BYTES_MAX) -> Ranges:
    """Ascending disjoint spans that cover `ranges`. Both have shape (n, 2), dtype int64: offset, length. With a
    `gap_bytes_max` of -1 only ranges that overlap are merged.
    """
    filled = _filled(ranges)
    if len(filled) == 0:
        return np.empty((0, 2), np.int64)
    offsets, lengths = filled[np.argsort(filled[:, 0], kind="stable")].T
    reached = np.maximum.accumulate(offsets + lengths)
    firsts = np.flatnonzero(offsets[1:] > reached[:-1] + gap_bytes_max) + 1
    spans = np.empty((len(firsts) + 1, 2), np.int64)
    spans[0, 0], spans[1:, 0] = offsets[0], offsets[firsts]
    spans[:-1, 1], spans[-1, 1] = reached[firsts - 1], reached[-1]
    spans[:, 1] -= spans[:, 0]
    return spans


def _filled(ranges: Ranges) -> Ranges:
    """The ranges that are not empty."""
    lengths = ranges[:, 1]
    return ranges if lengths.all() else ranges[lengths > 0]


def span_of(ranges: Ranges, spans: Ranges) -> npt.NDArray[np.int64]:
    """Index of the span of each range, shape (n,), if a span covers it; `spans` are ascending."""
    return np.searchsorted(spans[:, 0], ranges[:, 0], side="right") - 1


def covers(spans: Ranges, ranges: Ranges) -> bool:
    """Whether each non-empty range is within one of the ascending disjoint spans."""
    filled = ranges[ranges[:, 1] > 0]
    if len(filled) == 0 or len(spans) == 0:
        return len(filled) == 0
    owners = span_of(filled, spans)
    return bool(np.all(owners >= 0) and np.all(filled.sum(axis=1) <= spans.sum(axis=1)[owners]))


Cut = Callable[[Ranges, Ranges, list[bytes]], list[memoryview]]


def cut_ranges(ranges: Ranges, spans: Ranges, contents: list[bytes]) -> list[memoryview]:
    """The bytes of each non-empty range, in order, from the `contents` of the spans."""
    views = [memoryview(content) for content in contents]
    filled = _filled(ranges)
    if len(filled) == 0:
        return []
    owners = span_of(filled, spans)
    starts = filled[:, 0] - spans[owners, 0]
    ends = starts + filled[:, 1]
    places = zip(owners.tolist(), starts.tolist(), ends.tolist(), strict=True)
    return [views[owner][start:end] for owner, start, end in places]


def join_ranges(ranges: Ranges, spans: Ranges, contents: list[bytes]) -> list[memoryview]:
    """As `cut_ranges`, but with small ranges that follow each other in one buffer, which costs the sender less."""
    parts = cut_ranges(ranges, spans, contents)
    if len(parts) <= INLINE_RANGES_MAX:
        return parts
    joined: list[memoryview] = []
    small: list[memoryview] = []
    small_bytes = 0
    for part in parts:
        if small and (small_bytes + len(part) > JOINED_BYTES_MAX or len(small) == JOINED_RANGES_MAX):
            joined.append(small[0] if len(small) == 1 else memoryview(b"".join(small)))
            small, small_bytes = [], 0
        small.append(part)
        small_bytes += len(part)
    joined.append(small[0] if len(small) == 1 else memoryview(b"".join(small)))
    return joined


Outcome = bytes | DieselfsError


@dataclass(eq=False)
class SharedRead:
    """One read for several requests. `outcomes` has one for each span when it is done, None if it was cancelled."""

    spans: Ranges
    outcomes: list[Outcome] | None = None
    done: trio.Event = field(default_factory=trio.Event)

    def take(self, ranges: Ranges, cut: Cut) -> list[memoryview]:
        """The bytes of ranges that the spans cover. Raises the error of a span that they need."""
        assert self.outcomes is not None
        contents = [outcome for outcome in self.outcomes if isinstance(outcome, bytes)]
        if len(contents) < len(self.outcomes):
            for span in distinct(span_of(ranges[ranges[:, 1] > 0], self.spans)).tolist():
                failure = self.outcomes[span]
                if isinstance(failure, DieselfsError):
                    raise type(failure)(*failure.args) from failure
            contents = [outcome if isinstance(outcome, bytes) else b"" for outcome in self.outcomes]
        return cut(ranges, self.spans, contents)


Worked = TypeVar("Worked")


@dataclass(eq=False)
class _Request:
    ranges: Ranges
    shared: SharedRead | None = None


class ReadMetrics:
    def __init__(self, metrics: Registry) -> None:
        self.requests = metrics.declare(catalogue.READING_REQUESTS)
        self.ranges = metrics.counter("reading.ranges", "Ranges in the requests.")
        self.requested = metrics.counter("reading.requested_bytes", "Bytes in the requested ranges.")
        self.shared = metrics.declare(catalogue.READING_SHARED_REQUESTS)
        self.reads = metrics.counter("reading.store_reads", "Reads of the object store.")
        self.read = metrics.declare(catalogue.READING_STORE_BYTES)
        metrics.gauge(
            "reading.merged", "Ranges that one read of the object store served, on average.", self.merged
        )

    def merged(self) -> float | None:
        """None before the first read."""
        return round(self.ranges.value / self.reads.value, 3) if self.reads.value else None


@dataclass(eq=False)
class ReadQueue:
    """Reads of one object. `_read` blocks, and returns the bytes of one span; `_tokens` limit the reads in flight;
    `_gap_bytes_max` is for `merge_ranges`; `_cuts` limit the requests of many ranges that are cut at the same time.

    All state is changed only between checkpoints.
    """

    _read: Callable[[int, int], bytes]
    _tokens: trio.CapacityLimiter
    _threads: trio.CapacityLimiter
    _metrics: ReadMetrics
    _gap_bytes_max: int = GAP_BYTES_MAX
    _cuts: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(CUTS_MAX))

    def __post_init__(self) -> None:
        self._turn = trio.Lock()
        self._waiting: list[_Request] = []
        self._in_flight: SharedRead | None = None

    async def read(self, ranges: Ranges, cut: Cut = cut_ranges) -> list[memoryview]:
        """The bytes of each range, as `cut` returns them. Raises the store's error for a span that they need.

        If cancelled, a read in flight still finishes in its thread; the next request in the queue reads for the others.
        """
        self._metrics.requests.value += 1
        self._metrics.ranges.value += len(ranges)
        self._metrics.requested.value += int(ranges[:, 1].sum())
        shared = self._in_flight
        if shared is not None and await self._worked(len(ranges), partial(covers, shared.spans, ranges)):
            await shared.done.wait()
            if shared.outcomes is not None:
                self._metrics.shared.value += 1
                return await self._worked(len(ranges), partial(shared.take, ranges, cut))
        request = _Request(ranges)
        self._waiting.append(request)
        try:
            async with self._turn:
                if request.shared is None:
                    await self._read_all()
                else:
                    self._metrics.shared.value += 1
        finally:
            if request in self._waiting:
                self._waiting.remove(request)
        assert request.shared is not None
        return await self._worked(len(ranges), partial(request.shared.take, ranges, cut))

    async def _worked(self, count: int, work: Callable[[], Worked]) -> Worked:
        """The result of `work` on `count` ranges: in the event loop for few, in a thread for many."""
        if count <= INLINE_RANGES_MAX:
            return work()
        return await in_thread(work, limiter=self._cuts)

    async def _read_all(self) -> None:
        """Make one read for all requests in the queue."""
        try:
            self._tokens.acquire_nowait()  # without a checkpoint if one is free
        except trio.WouldBlock:
            await self._tokens.acquire()
        try:
            requests, self._waiting = self._waiting, []
            ranges = np.concatenate([request.ranges for request in requests])
            shared: SharedRead | None = None
            try:
                spans = await self._worked(len(ranges), partial(merge_ranges, ranges, self._gap_bytes_max))
                self._in_flight = shared = SharedRead(spans)
                for request in requests:
                    request.shared = shared
                shared.outcomes = await in_thread(_read_spans, self._read, spans, limiter=self._threads)
                self._metrics.reads.value += len(shared.outcomes)
                self._metrics.read.value += sum(len(o) for o in shared.outcomes if isinstance(o, bytes))
            finally:
                if shared is None or shared.outcomes is None:
                    for request in requests:
                        request.shared = None
                    self._waiting = requests + self._waiting
                self._in_flight = None
                if shared is not None:
                    shared.done.set()
        finally:
            self._tokens.release()


def _read_spans(read: Callable[[int, int], bytes], spans: Ranges) -> list[Outcome]:
    """Read each span on its own, so that damage in one fails only the requests that need it."""
    outcomes: list[Outcome] = []
    for start, length in spans.tolist():
        try:
            outcomes.append(read(start, length))
        except DieselfsError as failure:
            outcomes.append(failure)
    return outcomes


Key = TypeVar("Key")
Value = TypeVar("Value")


class InUse(Generic[Key, Value]):
    """The first user of a key makes its value, later ones share it, the last one drops it. For one event loop."""

    def __init__(self) -> None:
        self._entries: dict[Key, _Entry[Value]] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    @contextmanager
    def held(self, key: Key, make: Callable[[], Value]) -> Iterator[Value]:
        """The value of `key`, until the block ends."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(make())
        entry.users += 1
        try:
            yield entry.value
        finally:
            entry.users -= 1
            if not entry.users:
                del self._entries[key]


class _Entry(Generic[Value]):
    def __init__(self, value: Value) -> None:
        self.value = value
        self.users = 0


STORE_READS_MAX = 32
"""Limit of chunks that are being read, over all clients. It exceeds the store's limit of large reads, so that small
ones can overtake them."""

PREAMBLES_KEPT = 65_536
"""Limit of cached preambles; with its preamble, a chunk's payload needs one read."""

HASHING_MAX = 4
"""Limit of payloads that are verified at the same time."""


class RequestExecutor:
    """Reads ranges of chunks. If a read is cancelled, its worker thread still finishes, and nothing else is left."""

    def __init__(
        self,
        store: ObjectStore,
        metrics: Registry | None = None,
        sources: Sources | None = None,
        checksums: KeptChecksums | None = None,
        compressed: CompressedStore | None = None,
    ) -> None:
        """`sources`: of attached chunks, for `open_payload`; other reads leave them to the store. `checksums`: by
        default in memory. `compressed`: below `store`, for `stored_payload`.
        """
        self._store = store
        self._compressed = compressed
        self._sources = sources or Sources()
        self._tokens = trio.CapacityLimiter(STORE_READS_MAX)
        self._threads = trio.CapacityLimiter(math.inf)  # the tokens bound them
        metrics = metrics or Registry()
        self._metrics = ReadMetrics(metrics)
        metrics.declare(catalogue.READING_WAITING, self.waiting)
        # Queues in use; changed only between checkpoints.
        self._queues: InUse[tuple[bytes, bytes], ReadQueue] = InUse()
        self._preambles: dict[tuple[bytes, bytes], Preamble] = {}  # changed only between checkpoints
        self._checksums = checksums or KeptChecksums()
        self._cuts = trio.CapacityLimiter(CUTS_MAX)
        self._hashing = trio.CapacityLimiter(HASHING_MAX)

    def waiting(self) -> int:
        """The length of the queue of reads."""
        return self._tokens.statistics().tasks_waiting

    async def payload_length(self, dataset_id: bytes, chunk_id: bytes) -> int:
        """Bytes of the payload of a chunk. Raises as `payload`."""
        return (await self.preamble(dataset_id, chunk_id)).payload_length

    async def payload(self, dataset_id: bytes, chunk_id: bytes) -> memoryview:
        """The payload of a chunk. Raises NotFound, Damaged, Unavailable."""
        preamble = await self.preamble(dataset_id, chunk_id)
        whole = np.array([[preamble.payload_start, preamble.payload_length]], np.int64)
        return (await self._read(dataset_id, chunk_id, whole) or [memoryview(b"")])[0]

    async def stored_payload(self, dataset_id: bytes, chunk_id: bytes) -> tuple[Frames, bytes] | None:
        """The frames of a compressed chunk, as they are stored; None of another chunk. Raises as `payload`."""
        if self._compressed is None or not (await self.preamble(dataset_id, chunk_id)).compressed_length:
            return None
        async with self._tokens:
            read = self._compressed.stored_payload
            return await in_thread(read, dataset_id, chunk_id, limiter=self._threads)

    async def open_payload(self, dataset_id: bytes, chunk_id: bytes) -> OpenPayload | None:
        """The payload of a chunk as an open file, or None if this store has no files. Raises as `payload`.

        If cancelled, nothing is left open.
        """
        return (await self.open_with_checksums(dataset_id, chunk_id, False))[0]

    async def open_with_checksums(
        self, dataset_id: bytes, chunk_id: bytes, is_wanted: bool = True
    ) -> tuple[OpenPayload | None, bytes | None]:
        """As `open_payload`; and as `kept_checksums` if they are wanted, in the same thread."""
        _check_chunk_id(chunk_id)

        def opened() -> tuple[OpenPayload | None, bytes | None]:
            checksums = self._checksums.get(dataset_id, chunk_id) if is_wanted else None
            return open_payload(self._store, dataset_id, chunk_id, self._sources), checksums

        async with self._tokens:
            return await in_thread(opened, limiter=self._threads)

    async def open_ahead(self, dataset_id: bytes, chunk_ids: Sequence[bytes]) -> list[OpenPayload]:
        """As `open_payload`, of the chunks before the first that is not a whole file of this store. Raises nothing."""
        async with self._tokens:
            return await in_thread(open_ahead, self._store, dataset_id, chunk_ids, limiter=self._threads)

    async def ranges(
        self, dataset_id: bytes, chunk_id: bytes, ranges: Ranges, cut: Cut = cut_ranges
    ) -> list[memoryview]:
        """Ranges of a payload, in their order, as `cut` returns them. Raises InvalidInput for one outside of it, and as
        `payload`.
        """
        preamble = await self.preamble(dataset_id, chunk_id)
        if len(ranges) and int((ranges[:, 0] + ranges[:, 1]).max()) > preamble.payload_length:
            raise InvalidInput(
                f"a range ends after the end of the payload, which has {preamble.payload_length} bytes"
            )
        if int(ranges[:, 1].sum(dtype=np.int64)) > CHUNK_OBJECT_BYTES_MAX:
            raise InvalidInput(f"the ranges together exceed {CHUNK_OBJECT_BYTES_MAX} bytes")
        return await self._read(dataset_id, chunk_id, ranges + np.array([preamble.payload_start, 0]), cut)

    async def kept_checksums(self, dataset_id: bytes, chunk_id: bytes) -> bytes | None:
        """As `block_checksums`, but None if the payload must be read for it."""
        _check_chunk_id(chunk_id)
        return await in_thread(self._checksums.get, dataset_id, chunk_id, limiter=self._threads)

    async def kept_checksums_of(self, dataset_id: bytes, chunk_ids: Sequence[bytes]) -> list[bytes | None]:
        """As `kept_checksums`, of several chunks; None also for those beyond OPENED_CHECKSUMS_BYTES_MAX."""

        def kept() -> list[bytes | None]:
            found = [self._checksums.get(dataset_id, chunk_id) for chunk_id in chunk_ids]
            reached = accumulate(len(each or b"") for each in found)
            return [
                each if end <= OPENED_CHECKSUMS_BYTES_MAX else None
                for each, end in zip(found, reached, strict=True)
            ]

        return await in_thread(kept, limiter=self._threads)

    async def block_checksums(self, dataset_id: bytes, chunk_id: bytes) -> bytes:
        """The checksum (u64) of each block of a payload, which is read and verified unless they are kept.

        Raises NotFound, Damaged, Unavailable.
        """
        kept = await self.kept_checksums(dataset_id, chunk_id)
        if kept is not None:
            return kept
        preamble = await self.preamble(dataset_id, chunk_id)
        payload = await self.payload(dataset_id, chunk_id)
        checksums = await in_thread(_verified_checksums, preamble, payload, limiter=self._hashing)
        await in_thread(self._checksums.put, dataset_id, chunk_id, checksums, limiter=self._hashing)
        return checksums

    async def preamble(self, dataset_id: bytes, chunk_id: bytes) -> Preamble:
        """What a chunk says of its payload; remembered. Raises as `payload`."""
        _check_chunk_id(chunk_id)
        key = (dataset_id, chunk_id)
        if key not in self._preambles:
            (head,) = await self._read(dataset_id, chunk_id, np.array([[0, PREAMBLE_BYTES]], np.int64))
            if len(self._preambles) >= PREAMBLES_KEPT:
                self._preambles.clear()
            self._preambles[key] = decode_preamble(head, f"chunk {chunk_name(chunk_id)}", chunk_id)
        return self._preambles[key]

    async def _read(
        self, dataset_id: bytes, chunk_id: bytes, ranges: Ranges, cut: Cut = cut_ranges
    ) -> list[memoryview]:
        try:
            make = partial(self._queue, dataset_id, chunk_id)
            with self._queues.held((dataset_id, chunk_id), make) as queue:
                return await queue.read(ranges, cut)
        except (Damaged, NotFound):
            self._preambles.pop((dataset_id, chunk_id), None)
            raise

    def _queue(self, dataset_id: bytes, chunk_id: bytes, gap_bytes_max: int = GAP_BYTES_MAX) -> ReadQueue:
        read = partial(self._store.get_range, dataset_id, chunk_id)
        return ReadQueue(read, self._tokens, self._threads, self._metrics, gap_bytes_max, self._cuts)


def _verified_checksums(preamble: Preamble, payload: memoryview) -> bytes:
    check_payload(preamble, payload, f"chunk {chunk_name(preamble.chunk_id)}")
    return block_checksums(payload).astype("<u8").tobytes()


def open_ahead(store: ObjectStore, dataset_id: bytes, chunk_ids: Sequence[bytes]) -> list[OpenPayload]:
    """Open files as `open_payload`, up to the first chunk that has none, is foreign, or cannot be read. Blocks."""
    opened: list[OpenPayload] = []
    with ExitStack() as stack:
        with suppress(DieselfsError):
            for chunk_id in chunk_ids:
                payload = open_payload(store, dataset_id, chunk_id, None)
                if payload is None:
                    break
                opened.append(stack.enter_context(payload))
        stack.pop_all()
    return opened


def open_payload(
    store: ObjectStore, dataset_id: bytes, chunk_id: bytes, sources: Sources | None
) -> OpenPayload | None:
    """Open the file with the payload of a chunk, which is the source of an attached one; None if the store has no
    files, for a compressed chunk, or without `sources` for one that is attached to a foreign object. Blocks.

    Raises NotFound, Damaged, Unavailable, with nothing left open. Does not check that the payload is complete.
    """
    descriptor = store.open_chunk(dataset_id, chunk_id)
    if descriptor is None:
        return None
    source = f"chunk {chunk_name(chunk_id)}"
    try:
        preamble = decode_preamble(os.pread(descriptor, PREAMBLE_BYTES, 0), source, chunk_id)
        if not (preamble.is_attached or preamble.compressed_length):
            return OpenPayload(descriptor, preamble.payload_start, preamble.payload_length, source)
        if preamble.compressed_length:
            os.close(descriptor)
            return None
        packed = os.pread(descriptor, preamble.header_length, PREAMBLE_BYTES)
        attached = decode_header(preamble, packed, source, dataset_id).source
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, OSError):
            raise Unavailable(f"object store: {source}: {error.strerror or error}") from error
        raise
    os.close(descriptor)
    assert attached is not None  # by the decoder
    if attached.is_chunk:
        return open_referred(store, preamble, attached)
    if sources is None:
        return None
    return sources.open_payload(preamble, attached)


def _check_chunk_id(chunk_id: bytes) -> None:
    if len(chunk_id) != CHUNK_ID_BYTES:
        raise InvalidInput(f"a chunk ID of {len(chunk_id)} bytes; it must have {CHUNK_ID_BYTES}")
