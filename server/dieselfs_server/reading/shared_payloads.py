"""Payloads in sealed memory, for the processes of the server's own user on this machine. This module reads files.

A payload is read and verified once for all of these processes, which map its memory. They do not map the files of the
store: truncating such a file would kill each process that has it mapped (SIGBUS), and writing to it would change
bytes that were verified. docs/reference/shared-memory.md has the details.
"""

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import trio
from blake3 import blake3

from dieselfs.cache.policy import CachePolicy, RecentRequests
from dieselfs.chunk.ids import chunk_name
from dieselfs.chunk.segment import Segment
from dieselfs.errors import Damaged, NoRoom, Unavailable
from dieselfs.limits import KIB, MIB
from dieselfs.process.system_limits import available_bytes
from dieselfs.telemetry.registry import Registry
from dieselfs_server.admission.processor_time import in_thread
from dieselfs_server.reading.executor import InUse, RequestExecutor
from dieselfs_server.store.interface import OpenPayload

MEMORY_SHARE = 0.25
"""Of the memory that the system allows: the default limit of shared payloads."""
EVICTABLE_SHARE = 0.25
"""Of the limit: for payloads that readers need whole when the others have taken the rest."""
AVAILABLE_BYTES_MIN = 256 * MIB
"""A payload is not shared if the machine had less memory left for programs."""
UNUSED_S = 600.0
"""The payloads of a dataset that nobody has asked for since then give way to those of others."""
FILLS_AT_ONCE_MAX = 4
PART_BYTES = 512 * KIB
"""A payload is copied in parts of this size, which are still in the processor's cache when hashed and written."""


log = logging.getLogger(__name__)


class _Key(NamedTuple):
    dataset_id: bytes
    chunk_id: bytes
    length_bytes: int


@dataclass(frozen=True, slots=True)
class SharedPayload:
    """A verified payload. `is_kept`: it is not evicted while its dataset is in use."""

    segment: Segment
    digest: bytes
    is_kept: bool


def default_bytes(room_bytes: int | None) -> int:
    """The limit of shared payloads on a machine that allows `room_bytes`; None: it does not say."""
    return int((room_bytes or 0) * MEMORY_SHARE)


class SharedPayloads:
    """Used from one trio thread. The memory of a payload is freed when the server and all readers have released it."""

    def __init__(
        self,
        executor: RequestExecutor,
        limit_bytes: int,
        segments_max: int,
        metrics: Registry,
        available_min_bytes: int = AVAILABLE_BYTES_MIN,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        """`limit_bytes` 0: nothing is shared. `segments_max`: the system allows no more."""
        evictable_bytes = int(limit_bytes * EVICTABLE_SHARE)
        self._executor = executor
        self._segments_max = segments_max
        self._clock = clock
        self._available_min_bytes = available_min_bytes
        self._limit_bytes = limit_bytes
        self._has_files = True  # as far as is known
        self._policy: CachePolicy[_Key, SharedPayload] = CachePolicy(
            lambda key: key.length_bytes, limit_bytes - evictable_bytes, evictable_bytes
        )
        self._kept: dict[tuple[bytes, bytes], SharedPayload] = {}  # by dataset and chunk
        self._recent = RecentRequests()
        self._fills: InUse[_Key, trio.Lock] = InUse()
        self._used_s: dict[bytes, float] = {}  # when a dataset was last asked for
        self._limiter = trio.CapacityLimiter(FILLS_AT_ONCE_MAX)
        self._filled = metrics.counter("shared.filled", "Payloads that were read into shared memory.")
        metrics.gauge("shared.kept_bytes", "Shared payloads that stay.", lambda: self._policy.pinned_bytes)
        metrics.gauge(
            "shared.evictable_bytes", "Other shared payloads.", lambda: self._policy.evictable_bytes
        )

    async def get(self, dataset_id: bytes, chunk_id: bytes, wanted_bytes: int) -> SharedPayload | None:
        """The payload of a chunk for a reader who needs `wanted_bytes` of it; None if it is not shared: there is no
        room, or it is not worth it. Raises NotFound, Damaged, Unavailable.

        If cancelled, a payload that is being read is held all the same.
        """
        if self._limit_bytes == 0:
            return None
        preamble = await self._executor.preamble(dataset_id, chunk_id)
        key = _Key(dataset_id, chunk_id, preamble.payload_length)
        self._used_s[dataset_id] = self._clock()
        if key not in self._policy and self._is_worth_filling(key, wanted_bytes):
            await self._fill(key, preamble.payload_digest)
        return self._policy.get(key)

    def kept(self, dataset_id: bytes, chunk_id: bytes) -> SharedPayload | None:
        """The payload of a chunk if it is in memory and kept."""
        return self._kept.get((dataset_id, chunk_id))

    def forget(self, dataset_id: bytes) -> None:
        """Release the payloads of a dataset. Processes that have mapped one keep its memory."""
        for key in [key for key in self._policy if key.dataset_id == dataset_id]:
            self._policy.drop(key)
            self._kept.pop((dataset_id, key.chunk_id), None)
        self._used_s.pop(dataset_id, None)

    def _is_worth_filling(self, key: _Key, wanted_bytes: int) -> bool:
        if not self._policy.would_pin(key):
            self._release_unused(key.dataset_id)
        if key.length_bytes == 0 or not self._policy.has_room(key):
            return False
        # Without files, a payload comes over a network: one small read does not fetch all of it.
        is_cheap = self._has_files or key in self._recent
        return (
            key in self._fills
            or (is_cheap and self._policy.would_pin(key))
            or self._recent.is_worth_whole(key, wanted_bytes, key.length_bytes)
        )

    def _release_unused(self, dataset_id: bytes) -> None:
        """Make room for `dataset_id`."""
        since_s = self._clock() - UNUSED_S
        for unused in [each for each, used_s in self._used_s.items() if used_s < since_s]:
            if unused != dataset_id:
                self.forget(unused)

    async def _fill(self, key: _Key, digest: bytes) -> None:
        """Hold a payload, unless there is no room. Concurrent calls read it once."""
        with self._fills.held(key, trio.Lock) as lock:
            async with lock:
                if key in self._policy or len(self._policy) >= self._segments_max:
                    return
                is_kept = self._policy.would_pin(key)
                self._policy.begin(key)
                try:
                    segment = await self._copied(key, digest)
                except NoRoom as error:
                    log.warning("chunk %s is not shared: %s", chunk_name(key.chunk_id), error)
                    return
                finally:
                    self._policy.end(key)
                self._hold(key, SharedPayload(segment, digest, is_kept))

    async def _copied(self, key: _Key, digest: bytes) -> Segment:
        """Raises as `sealed_copy`."""
        async with self._limiter:
            opened = await self._executor.open_payload(key.dataset_id, key.chunk_id)
            self._has_files = opened is not None
            if opened is not None:
                with opened:
                    return await in_thread(sealed_copy, opened, digest, self._available_min_bytes)
            payload = await self._executor.payload(key.dataset_id, key.chunk_id)
            copied = partial(sealed_parts, f"chunk {chunk_name(key.chunk_id)}", cut(payload), len(payload))
            return await in_thread(copied, digest, self._available_min_bytes)

    def _hold(self, key: _Key, payload: SharedPayload) -> None:
        self._filled.value += 1
        self._policy.add(key, payload)
        if payload.is_kept:
            self._kept[key.dataset_id, key.chunk_id] = payload


def sealed_copy(opened: OpenPayload, digest: bytes, available_min_bytes: int = 0) -> Segment:
    """As `sealed_parts`, of a payload in a file. Raises Unavailable for one that cannot be read."""
    try:
        return sealed_parts(
            f"{opened.name}: offset {opened.start}",
            _file_parts(opened),
            opened.length,
            digest,
            available_min_bytes,
        )
    except OSError as error:
        raise Unavailable(f"object store: {error.strerror}") from error


def _file_parts(opened: OpenPayload) -> Iterator[memoryview]:
    """Raises OSError, and Damaged at the end of a file that is too short."""
    room = memoryview(bytearray(min(PART_BYTES, opened.length)))
    offset = 0
    while offset < opened.length:
        size = os.preadv(opened.descriptor, [room[: opened.length - offset]], opened.start + offset)
        if size == 0:
            raise Damaged(
                f"{opened.name}: offset {opened.start + offset}: the file ends inside of the payload"
            )
        yield room[:size]
        offset += size


def cut(payload: memoryview) -> Iterator[memoryview]:
    """The parts of a payload in memory."""
    return (payload[start : start + PART_BYTES] for start in range(0, len(payload), PART_BYTES))


def sealed_parts(
    name: str, parts: Iterator[memoryview], length: int, digest: bytes, available_min_bytes: int = 0
) -> Segment:
    """A copy of a payload, verified against its `digest`. Blocks. Raises NoRoom, also if less memory than
    `available_min_bytes` is left; Damaged.
    """
    available = available_bytes()
    if available is not None and available < max(available_min_bytes, length):
        raise NoRoom(f"{available // MIB} MiB of memory are left")
    segment, hashed = Segment.create(length), blake3()
    try:
        offset = 0
        for part in parts:
            hashed.update(part)
            segment.write(offset, part)
            offset += len(part)
        if hashed.digest() != digest:
            raise Damaged(f"{name}: digest of the payload does not match")
        segment.seal()
    except BaseException:
        segment.close()
        raise
    return segment
