"""Bytes of files from the disk of this node, else from a server. This module waits for threads that read files.

    on the disk                 whole, or the ranges that are needed; verified like bytes of a server
    missing, there is room      the whole chunk from a server, which is then written behind the reader
    missing, no room            what is needed, from a server

So each chunk comes from a server once, and later readers of it, jobs and mounts, find it here. A chunk that a server
sends compressed stays so on the disk.
"""

import mmap
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from blake3 import blake3

from dieselfs.chunk.blocks import block_checksums, bytes_of
from dieselfs.chunk.frames import is_packed
from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.disk.chunk_file import new_buffer
from dieselfs.disk.tier import DiskTier
from dieselfs.disk.write_behind import DISK_QUEUE_BYTES, UnwrittenPayload
from dieselfs.errors import Damaged
from dieselfs.forks import SingleFlight
from dieselfs.rpc.client import ServerClient
from dieselfs.snapshot.reader import ExtentRef, Snapshot
from dieselfs.sources.interface import Slices
from dieselfs.sources.server import ServerSource, first_damaged, is_intact
from dieselfs.telemetry.registry import Registry
from dieselfs.telemetry.stalls import METER

_ID = np.dtype(f"S{CHUNK_ID_BYTES}")

DISK_FLIGHT_WAIT_S = 10.0
"""A thread waits this long for a chunk that another one fetches for the disk, and then fetches it itself."""


class DiskSource(ServerSource):
    """As `ServerSource`, with the disk tier of the dataset before the server. `close` closes the tier."""

    def __init__(
        self,
        client: ServerClient,
        snapshot: Snapshot,
        disk: str,
        disk_size_bytes: int = 0,
        metrics: Registry | None = None,
        processes: int = 1,
    ) -> None:
        """`disk`, `disk_size_bytes`: see `DiskTier`. `processes`: that share the memory for chunks to be written."""
        super().__init__(client, snapshot, metrics)
        # As far as is known, shared with forks; elements change in one step.
        self._is_on_disk = np.frombuffer(mmap.mmap(-1, snapshot.chunk_count + 1), bool)[:-1]
        self._tier = DiskTier(
            disk,
            disk_size_bytes,
            snapshot.header.dataset_id,
            self._names,
            self.metrics,
            on_open=self._note_names,
            name=snapshot.dataset,
            queue_bytes=DISK_QUEUE_BYTES // processes,
        )
        self._flights = SingleFlight(DISK_FLIGHT_WAIT_S)

    @property
    def disk_bytes(self) -> int:
        """As `ServerSource.disk_bytes`."""
        return self._tier.capacity_bytes

    def keeps(self, chunk: int) -> bool:
        """As `ServerSource.keeps`."""
        return bool(self._is_on_disk[chunk]) or self._tier.has_room

    def hold(self) -> int | None:
        """As `ServerSource.hold`."""
        return self._tier.hold()

    def share(self, hold: int) -> None:
        """As `ServerSource.share`."""
        self._tier.share(hold)

    def _names(self) -> frozenset[str]:
        """File names of all chunks of the snapshot."""
        return frozenset(self.snapshot.chunk_id(chunk).hex() for chunk in range(self.snapshot.chunk_count))

    def _note_names(self, names: list[str]) -> None:
        ids = np.frombuffer(self.snapshot.column("chunk_ids"), _ID)
        here = [*map(bytes.fromhex, names)]
        self._is_on_disk |= np.isin(ids, np.array(here, _ID))

    def close(self) -> None:
        """As `ServerSource.close`; chunks that wait are written, for DISK_CLOSE_TIMEOUT_S at most."""
        self._tier.close()

    def fetch_parts(self, chunk: int, parts: Callable[[], Iterator[memoryview]], digest: blake3) -> None:
        """As `ServerSource.fetch_parts`."""
        chunk_id = self.snapshot.chunk_id(chunk)
        with METER.timed("disk"):
            payload = self._tier.read(chunk_id, self.snapshot.chunk_payload_length(chunk))
        if payload is not None:
            start = 0
            for part in parts():
                part[:] = payload[start : start + len(part)]
                start += len(part)
            if digest.digest() == self.snapshot.chunk_digest(chunk):
                self._is_used(chunk, len(payload), True)
                return
            self._is_used(chunk, 0, False)
        self._tier.count_miss()
        length_bytes = self.snapshot.chunk_payload_length(chunk)
        if not length_bytes or not self._tier.has_room:
            self._receive(chunk, parts, digest)
            return
        # Takes memory when it is written to.
        kept = plain = UnwrittenPayload(new_buffer(length_bytes), length_bytes)
        packed: UnwrittenPayload | None = None

        def room_of(packed_bytes: int) -> memoryview:
            nonlocal packed
            packed = UnwrittenPayload(new_buffer(packed_bytes), packed_bytes)
            return packed.buffer[:packed_bytes]

        def copied() -> Iterator[memoryview]:
            nonlocal kept, packed
            # One that is not shorter would be taken for the plain payload. A retry may bring the plain one.
            is_right = packed and packed.length_bytes < length_bytes and is_packed(packed.buffer)
            kept, packed = packed if packed and is_right else plain, None
            start = 0
            for part in parts():
                yield part
                if kept is plain:
                    plain.buffer[start : start + len(part)] = part
                start += len(part)

        self._receive(chunk, copied, digest, room_of)
        self._tier.store(chunk_id, kept)
        self._is_on_disk[chunk] = True

    def fetch_joined(self, chunk: int, extents: Sequence[ExtentRef]) -> Slices:
        """As `ServerSource.fetch_joined`."""
        found = self._ranges_on_disk(chunk, [(each.offset, each.length) for each in extents])
        if found is not None:
            slices = Slices.joined(found, extents)
            with METER.timed("verification"):
                is_right = first_damaged(extents, slices) is None
            if self._is_used(chunk, len(found), is_right):
                return slices
        payload = self._fetched_for_disk(chunk)
        if payload is None:
            return super().fetch_joined(chunk, extents)
        # Copied: views would hold the whole payload in memory.
        joined = b"".join([payload[each.offset : each.offset + each.length] for each in extents])
        return Slices.joined(memoryview(joined), extents)

    def fetch_blocks(self, chunk: int, first: int, end: int) -> memoryview:
        """As `ServerSource.fetch_blocks`. The checksums are those of a payload that was verified as a whole."""
        start, length = bytes_of(first, end, self.snapshot.chunk_payload_length(chunk))
        checksums = self.known_checksums(chunk)
        found = None if checksums is None else self._ranges_on_disk(chunk, [(start, length)])
        if found is not None and checksums is not None:
            with METER.timed("verification"):
                is_right = np.array_equal(block_checksums(found), checksums[first:end])
            if self._is_used(chunk, length, is_right):
                return found
        payload = self._payload_on_disk(chunk) if checksums is None else None
        if payload is None:
            payload = self._fetched_for_disk(chunk)
        if payload is None:
            return super().fetch_blocks(chunk, first, end)
        self.keep_checksums(chunk, block_checksums(payload))
        return memoryview(bytes(payload[start : start + length]))

    def _payload_on_disk(self, chunk: int) -> memoryview | None:
        """A verified payload."""
        payload = self._ranges_on_disk(chunk, [(0, self.snapshot.chunk_payload_length(chunk))])
        if payload is None:
            return None
        is_right = is_intact(self.snapshot, chunk, Slices.of_payload(payload))
        return payload if self._is_used(chunk, len(payload), is_right) else None

    def _fetched_for_disk(self, chunk: int) -> memoryview | None:
        """A verified payload that is not on the disk, and will be; None if there is no room, or it is damaged."""
        if not self._tier.has_room:
            self._tier.count_miss()
            return None
        try:
            with self._flights.of(chunk):
                return memoryview(self.fetch_chunk(chunk))  # of the queue of the disk, after a wait
        except Damaged:  # perhaps not where it is read
            return None

    def _ranges_on_disk(self, chunk: int, ranges: Sequence[tuple[int, int]]) -> memoryview | None:
        with METER.timed("disk"):
            return self._tier.read_ranges(
                self.snapshot.chunk_id(chunk), self.snapshot.chunk_payload_length(chunk), ranges
            )

    def _is_used(self, chunk: int, length_bytes: int, is_right: bool) -> bool:
        """Count a hit, or drop a damaged chunk; returns `is_right`."""
        self._is_on_disk[chunk] = is_right
        if is_right:
            self._tier.count_hit(length_bytes)
        else:
            self._tier.drop(self.snapshot.chunk_id(chunk))
        return is_right
