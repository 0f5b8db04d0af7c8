"""The read path of a mount, for any kernel driver: bytes of files, from memory or fetched.

`at_once` answers from memory, without waiting; `fetch` waits for the bytes. Sequential reads are read ahead. A read
fetches blocks, an extent or the whole chunk: `_wanted` decides, by the rule in `dieselfs/cache/policy.py`.
"""

from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

import trio

from dieselfs.cache.policy import (
    BLOCK_REQUEST_BYTES,
    EVICTED_WHOLE_SHARE,
    LARGE_EXTENT_BYTES,
    LIBRARY_REQUEST_BYTES,
    WHOLE_SHARE,
    RecentRequests,
    is_small_part,
)
from dieselfs.chunk.blocks import BLOCK_BYTES, block_range
from dieselfs.errors import Damaged, Unavailable
from dieselfs.limits import CHUNK_TARGET_BYTES, KIB, MIB, READ_TIMEOUT_S
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry
from dieselfs_client.memory.chunk_cache import Blocks, ChunkCache
from dieselfs_client.mount.reading.core import ExtentPart, MountCore
from dieselfs_client.mount.reading.read_around import ReadAround
from dieselfs_client.prefetch.prefetcher import Prefetcher
from dieselfs_client.prefetch.runs import RUN_AHEAD_BYTES, RUN_HEAD_BYTES, RUN_WIRE_BYTES

READ_AHEAD_BYTES = 2 * CHUNK_TARGET_BYTES
"""How far ahead of a sequential reader of one file its chunks are fetched."""
BEHIND_BYTES = 2 * CHUNK_TARGET_BYTES
"""How far behind it chunks leave the memory of the daemon."""

Buffers = list[memoryview]
"""The bytes of one read, in order: exactly those that the file has in the requested range."""

HELD_BACK_S = 0.1
"""A reader of a plan waits at a tripwire for at most this time while the files after it are being pushed. Single reads
of these files take several times as long, and slow the push.
"""
LATE_S = 5.0
"""For this long after a read has timed out, further reads of the same bytes fail at once. The kernel asks for each
page of a failed read-ahead once more, on its own, and the program would wait twice as long.
"""
LATE_READS_MAX = 1024
SLOW_FAILURE_S = 1.0
"""A read that fails sooner may be tried again at once."""
WINDOW_BYTES = 256 * KIB
"""What is fetched around a small part of a chunk that will stay: as fast as less, and most programs come back to it."""
STAYING_SHARE = 0.5
"""A smaller part of an extent that will stay comes in blocks: around a page, the kernel asks for up to a MiB."""
RUN_BYTES = 512 * KIB
"""Reads that follow each other in the middle of a file are sequential from this length on."""
RUN_REACH_BYTES = 2 * MIB
"""Reads in any order are sequential if each is within this distance of the furthest, and together have as many bytes.
Each counts as RUN_WIRE_BYTES at most: around one page of a mapping, the kernel may ask for a MiB.
"""
FILES_REMEMBERED_MAX = 1024


@dataclass(slots=True)
class _Run:
    """Reads of one file. `begin`, `end`: of the last ones that follow each other; `furthest`: the furthest byte of all,
    which have `requested_bytes`; `pushed_end`: up to where chunks ahead are pushed.
    """

    begin: int
    end: int
    furthest: int
    requested_bytes: int = 0
    pushed_end: int = 0


class SequentialReads:
    """Detects sequential reads without file handles: keeps the last run of each file, for the `files_max` files that
    were read last.
    """

    def __init__(self, files_max: int = FILES_REMEMBERED_MAX) -> None:
        self._files_max = files_max
        self._runs: OrderedDict[int, _Run] = OrderedDict()

    def continues(self, inode: int, offset: int, end: int) -> bool:
        """Note a read from `offset` to `end`; True if it comes further than its run, which began with the file, or has
        RUN_BYTES, or RUN_REACH_BYTES in any order.

        The pages of one mapped record are read one after the other, too; `memcpy` reads those of a large one backwards.
        """
        run = self._runs.pop(inode, None)
        is_next = run is not None and run.end <= offset <= max(run.end, run.pushed_end)
        if run is None or not (is_next or abs(offset - run.furthest) <= RUN_REACH_BYTES):
            run = _Run(offset, end, offset)
        elif not is_next:
            run.begin = offset
        is_further = run.furthest < end
        run.end, run.furthest = end, max(run.furthest, end)
        run.requested_bytes += min(end - offset, RUN_WIRE_BYTES)
        self._runs[inode] = run
        if len(self._runs) > self._files_max:
            self._runs.popitem(last=False)
        is_run = is_next and (run.begin == 0 or end - run.begin >= RUN_BYTES)
        return is_run or (is_further and run.requested_bytes >= RUN_REACH_BYTES)

    def pushed(self, inode: int, end: int) -> None:
        """The file is pushed up to `end`: the next read of its run may come from anywhere before."""
        self._runs[inode].pushed_end = end

    def is_in_run(self, inode: int, offset: int) -> bool:
        """Whether the last read of a file, from `offset` on, continued another."""
        run = self._runs.get(inode)
        return run is not None and run.begin < offset


class LateReads:
    """Reads that timed out less than LATE_S ago; the last `reads_max` of them."""

    def __init__(self, reads_max: int = LATE_READS_MAX) -> None:
        self._reads: deque[tuple[float, int, int, int]] = deque(maxlen=reads_max)

    def note(self, inode: int, offset: int, end: int, now_s: float) -> None:
        self._reads.append((now_s, inode, offset, end))

    def covers(self, inode: int, offset: int, end: int, now_s: float) -> bool:
        """Whether a read of some of these bytes timed out lately."""
        while self._reads and now_s - self._reads[0][0] > LATE_S:
            self._reads.popleft()
        return any(
            inode == late_inode and offset < late_end and late_offset < end
            for _, late_inode, late_offset, late_end in self._reads
        )


class Reads(Protocol):
    """What a kernel driver asks for bytes of files. `ReadPath` has those of a dataset."""

    metrics: Registry

    def at_once(self, inode: int, offset: int, size: int) -> Buffers | None:
        """As `ReadPath.at_once`."""

    def is_read_around(self, inode: int, offset: int, size: int) -> bool:
        """As `ReadPath.is_read_around`."""

    async def fetch(self, inode: int, offset: int, size: int) -> Buffers:
        """As `ReadPath.fetch`."""

    def is_pushing(self) -> bool:
        """As `ReadPath.is_pushing`."""


class Wanted(Enum):
    """How much is fetched for a part of a read that is not in memory."""

    BLOCKS = auto()
    EXTENT = auto()
    CHUNK = auto()


class ReadPath:
    """Used from one trio thread."""

    def __init__(
        self,
        core: MountCore,
        chunk_cache: ChunkCache,
        ahead: Prefetcher,
        timeout_s: float = READ_TIMEOUT_S,
        metrics: Registry | None = None,
        has_blocks: bool = True,
    ) -> None:
        """`has_blocks`: whether small parts of large extents may be fetched. In a job they come from the pooled memory,
        which holds whole chunks.
        """
        self.metrics = metrics = metrics or Registry()
        self._at_once = metrics.declare(catalogue.READS_AT_ONCE)
        self._waited = metrics.declare_histogram(catalogue.READS_WAITED_S)
        self._in_progress = metrics.declare(catalogue.READS_IN_PROGRESS)
        self._failed = metrics.declare(catalogue.READS_FAILED)
        self.core = core
        self._chunk_cache = chunk_cache
        self._ahead = ahead
        self._timeout_s = timeout_s
        self._sequential = SequentialReads()
        self._late = LateReads()
        self._read_around = ReadAround()
        self._refused = metrics.counter(
            "reads.refused_around",
            "Reads around a missing page of a mapped file, of which only the page is fetched.",
        )
        self._recent = RecentRequests()
        self._recent_blocks = RecentRequests(BLOCK_REQUEST_BYTES)
        self._recent_staying = RecentRequests(LIBRARY_REQUEST_BYTES)
        self._has_blocks = has_blocks
        self._from_blocks = metrics.counter(
            "reads.from_blocks", "Parts of reads answered from blocks in memory."
        )

    def at_once(self, inode: int, offset: int, size: int, is_ahead: bool = False) -> Buffers | None:
        """Up to `size` bytes at `offset` of a file if all of them are in memory; empty at its end. None also for a
        tripwire at which the reader must wait. `is_ahead`: no reader asks for these bytes yet.

        Raises NotFound or InvalidInput for an inode that is no file.
        """
        parts = self.core.parts(inode, offset, size)
        node = inode - 1
        if is_ahead:
            self._ahead.note_read_ahead(node)
        else:
            self._ahead.note_read(node)
        held = self._ahead.held(node)
        if held is not None:
            if offset == 0 and not is_ahead and self._ahead.is_starved(node):
                return None
            self._at_once.value += 1
            return [held[offset : offset + size]]
        buffers = self._held(parts)
        end = offset + size
        self._read_around.requested(inode, offset, end)
        if self._sequential.continues(inode, offset, end):
            self._read_ahead(inode, end, size)
            if self._is_early(parts):
                return None
        if buffers is not None:
            self._at_once.value += 1
        return buffers

    def _read_ahead(self, inode: int, offset: int, size: int) -> None:
        """Fetch what a sequential reader needs from `offset` on. Push it if the file spans chunks and
        `size`, for which the kernel asks, is small: a few large requests take less time than a push.
        """
        if offset > BEHIND_BYTES:
            for chunk in self.core.chunks_ahead(inode, offset - BEHIND_BYTES, 1):
                self._ahead.note_passed(chunk)
        if size > RUN_WIRE_BYTES or not self._has_blocks:
            for chunk in self.core.chunks_ahead(inode, offset, READ_AHEAD_BYTES):
                self._chunk_cache.prefetch(chunk)
            return
        chunks = self.core.chunks_ahead(inode, offset, RUN_AHEAD_BYTES)
        if len(chunks) > 1:
            for chunk in chunks:
                self._ahead.runs.bring(inode - 1, chunk)
            self._sequential.pushed(inode, offset + RUN_AHEAD_BYTES)
        elif chunks:
            self._chunk_cache.prefetch(chunks[0])

    def _is_early(self, parts: list[ExtentPart]) -> bool:
        """Whether a sequential reader comes to a chunk before it is pushed, and has asked for nothing that is pushed: a
        push waits for pages for which the kernel has asked.
        """
        return (
            len(parts) == 1
            and parts[0].start + parts[0].length <= RUN_HEAD_BYTES
            and self._ahead.runs.is_coming(parts[0].extent.chunk)
        )

    def _held(self, parts: list[ExtentPart]) -> Buffers | None:
        buffers: Buffers = []
        for part in parts:
            buffer = self._chunk_cache.held_extent(part.extent, part.start, part.length)
            if buffer is None and self._is_small(part):
                buffer = self._held_in_blocks(part)
                self._from_blocks.value += buffer is not None
            if buffer is None:
                return None
            buffers.append(buffer)
        return _checked(parts, buffers)

    def _is_small(self, part: ExtentPart) -> bool:
        """Whether blocks are fetched for it. Not at the start of a file that will stay: all of it will be read."""
        extent = part.extent
        if not self._has_blocks or not self._ahead.stays(extent.chunk):
            return self._has_blocks and is_small_part(part.length, extent.length)
        is_start = extent.place + part.start == 0
        return not is_start and is_small_part(part.length, extent.length, STAYING_SHARE)

    def _held_in_blocks(self, part: ExtentPart) -> memoryview | None:
        start = part.extent.offset + part.start
        first, end = block_range(start, part.length)
        content = self._chunk_cache.held_blocks(part.extent.chunk, first, end)
        within = start - first * BLOCK_BYTES
        return None if content is None else content[within : within + part.length]

    def is_read_around(self, inode: int, offset: int, size: int) -> bool:
        """Whether to refuse a read that `at_once` has not answered: the kernel wants more than a program does, and that
        will not stay in memory. Then the kernel asks for less, and no program sees an error.
        """
        if not self._has_blocks or self._sequential.is_in_run(inode, offset):
            return False
        parts = self.core.parts(inode, offset, size)
        if any(
            self._comes_whole(part.extent.chunk) or self._ahead.stays(part.extent.chunk) for part in parts
        ):
            return False
        is_large = any(part.extent.length >= LARGE_EXTENT_BYTES for part in parts)
        is_refused = is_large and self._read_around.is_unwanted(inode, offset, offset + size)
        self._refused.value += is_refused
        return is_refused

    def is_pushing(self) -> bool:
        """Whether chunks are on their way for a sequential reader, which comes to them later, or for a new plan."""
        return self._ahead.runs.is_busy or self._ahead.is_starting

    async def fetch(self, inode: int, offset: int, size: int) -> Buffers:
        """As `at_once`, but waits for bytes that are not in memory.

        Raises Unavailable after the timeout, or at once if a read of the same bytes has just timed out; and Damaged. If
        cancelled, fetches in flight continue, for the next reader.
        """
        began_s = trio.current_time()
        if self._late.covers(inode, offset, offset + size, began_s):
            self._failed.value += 1
            raise Unavailable(f"the bytes did not arrive within {self._timeout_s:g} s for the read before")
        is_done = False
        self._in_progress.value += 1
        try:
            parts = self.core.parts(inode, offset, size)
            if (held := await self._held_back(inode - 1)) is not None:
                is_done = True
                return [held[offset : offset + size]]
            self._prefetch(parts[1:])
            if self._is_early(parts):
                with trio.move_on_after(HELD_BACK_S):
                    await self._ahead.runs.arrival(parts[0].extent.chunk)
            with trio.move_on_after(self._timeout_s):
                buffers = _checked(parts, [await self._fetch_part(part) for part in parts])
                is_done = True
                return buffers
            raise Unavailable(f"the bytes did not arrive within {self._timeout_s:g} s")
        except Unavailable:
            if (now_s := trio.current_time()) - began_s > SLOW_FAILURE_S:
                self._late.note(inode, offset, offset + size, now_s)
            raise
        finally:
            self._in_progress.value -= 1
            self._waited.observe(trio.current_time() - began_s)
            self._failed.value += not is_done

    def fetch_ahead(self, inode: int, offset: int, size: int) -> None:
        """Begin to fetch the chunks of a range, for a read that follows; raises as `at_once`."""
        self._prefetch(self.core.parts(inode, offset, size))

    def _prefetch(self, parts: list[ExtentPart]) -> None:
        for part in parts:
            if not self._is_small(part):
                self._chunk_cache.prefetch(part.extent.chunk)

    async def _held_back(self, node: int) -> memoryview | None:
        """The bytes of a tripwire, once the next files of its reader were pushed; None for any other file."""
        held = self._ahead.held(node)
        if held is not None:
            with trio.move_on_after(HELD_BACK_S):
                while self._ahead.is_starved(node):
                    await self._ahead.moved.wait()
        return held

    async def _fetch_part(self, part: ExtentPart) -> memoryview:
        """Fetch what is wanted; less of it if that is damaged, as only some of its files may be."""
        extent = part.extent
        wanted = self._wanted(part)
        if wanted is Wanted.BLOCKS:
            with suppress(Damaged):
                return await self._fetch_blocks(part)
            self._chunk_cache.damaged.add(extent.chunk)
            wanted = self._wanted(part)
        if wanted is Wanted.CHUNK:
            with suppress(Damaged):
                payload = await self._chunk_cache.fetch(extent.chunk)
                self._ahead.note_fetched(extent.chunk, payload)
                first = extent.offset + part.start
                return payload[first : first + part.length]
        return (await self._chunk_cache.fetch(extent))[part.start : part.start + part.length]

    def _wanted(self, part: ExtentPart) -> Wanted:
        """What to fetch for a part that is not in memory. Notes the request: many of them make a chunk worth fetching.

        Blocks only of a chunk that is neither damaged, nor fetched whole for another reason.
        """
        chunk, length = part.extent.chunk, part.extent.length
        payload_bytes = self.core.snapshot.chunk_payload_length(chunk)
        if self._is_small(part) and chunk not in self._chunk_cache.damaged and not self._comes_whole(chunk):
            recent, share, wanted_bytes = self._recent_blocks, EVICTED_WHOLE_SHARE, part.length
            if self._ahead.stays(chunk):
                # What the kernel asks for around a page of a mapping says little about what the program needs.
                recent, share, wanted_bytes = (
                    self._recent_staying,
                    WHOLE_SHARE,
                    min(part.length, WINDOW_BYTES),
                )
            elif self._ahead.has_room(chunk):
                share = WHOLE_SHARE
            if not recent.is_worth_whole(chunk, wanted_bytes, payload_bytes, share=share):
                return Wanted.BLOCKS
        is_whole = (
            self._ahead.keeps(chunk)
            or self._ahead.expects(chunk)
            or self._recent.is_worth_whole(chunk, length, payload_bytes)
        )
        return Wanted.CHUNK if is_whole else Wanted.EXTENT

    def _comes_whole(self, chunk: int) -> bool:
        """Whether a chunk is fetched whole whatever is read of it."""
        return self._chunk_cache.is_coming(chunk) or self._ahead.expects(chunk)

    async def _fetch_blocks(self, part: ExtentPart) -> memoryview:
        """Fetch the missing blocks of a part, and those between them, with one request. Of a chunk that will stay,
        also those around them.
        """
        chunk, start = part.extent.chunk, part.extent.offset + part.start
        first, end = block_range(start, part.length)
        missing = [
            number
            for number in range(first, end)
            if self._chunk_cache.held_blocks(chunk, number, number + 1) is None
        ]
        if missing:
            low, high = missing[0], missing[-1] + 1
            if self._ahead.stays(chunk):
                low, high = self._window(chunk, low, high)
            await self._chunk_cache.fetch(Blocks(chunk, low, high))
        found = self._held_in_blocks(part)
        if found is None:  # evicted at once
            found = await self._chunk_cache.fetch(Blocks(chunk, first, end))
            within = start - first * BLOCK_BYTES
            found = found[within : within + part.length]
        return found

    def _window(self, chunk: int, low: int, high: int) -> tuple[int, int]:
        """The blocks of a chunk from `low` up to `high`, widened to multiples of WINDOW_BYTES."""
        blocks = WINDOW_BYTES // BLOCK_BYTES
        _, end = block_range(0, self.core.snapshot.chunk_payload_length(chunk))
        return low // blocks * blocks, min(-(-high // blocks) * blocks, end)


def _checked(parts: list[ExtentPart], buffers: Buffers) -> Buffers:
    """The buffers, if they have the length of the parts. Raises Damaged otherwise."""
    length = sum(map(len, buffers))
    if length != sum(part.length for part in parts):
        raise Damaged(f"the read returned {length} bytes in {len(parts)} parts: a chunk is too short")
    return buffers
