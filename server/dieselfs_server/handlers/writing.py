"""Handlers for writing: versions, chunks, single small files, and interrupted uploads."""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import trio

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.cost import check_attached
from dieselfs.chunk.format import PREAMBLE_BYTES, ChunkHeader, Preamble, decode_preamble
from dieselfs.chunk.ids import CHUNK_ID_BYTES, ChunkIdSource, chunk_name
from dieselfs.errors import AccessDenied, AlreadyExists, InvalidInput
from dieselfs.limits import INLINE_FILE_BYTES_MAX, VERSIONS_PER_REQUEST_MAX
from dieselfs.names import check_path
from dieselfs.records import DatasetRecord
from dieselfs.rpc.messages import thrift
from dieselfs.telemetry.registry import Registry
from dieselfs_server.admission.processor_time import in_thread
from dieselfs_server.admission.quotas import QUOTA_WAIT_S, Quotas, RoomAwaited
from dieselfs_server.call import Call
from dieselfs_server.datasets.commit import Admission, store_chunk, verified_chunk
from dieselfs_server.datasets.dataset_keys import DatasetKeys
from dieselfs_server.datasets.mirrors import Mirrors
from dieselfs_server.datasets.own_reference import completed, read_bytes
from dieselfs_server.datasets.refresh import Refresh
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.reading.kept_checksums import KeptChecksums
from dieselfs_server.store.attached import Sources, source_of
from dieselfs_server.store.interface import ObjectStore

STORE_WRITES_MAX = 16
"""Limit of chunks that are being stored, over all clients."""

STORE_WRITES_OF_USER_MAX = 12
"""Limit of those of one user, so that the chunks of others do not wait behind all of them."""

ROOM_WAIT_S = 1.0
"""A chunk that waits for room in a quota is tried again when this server has stored another one, and after this time:
other servers give room back as well.
"""

Result = TypeVar("Result")


@dataclass(eq=False)
class WriteCalls:
    store: ObjectStore
    metadata: MetadataStore
    ids: ChunkIdSource
    quotas: Quotas
    refresh: Refresh
    metrics: Registry
    sources: Sources
    keys: DatasetKeys
    checksums: KeptChecksums
    mirrors: Mirrors
    last_attached: dict[bytes, tuple[str, bytes]] = field(default_factory=dict)
    """By dataset ID: user and source, for the audit log."""

    def __post_init__(self) -> None:
        self._writes = trio.CapacityLimiter(STORE_WRITES_MAX)
        self._writes_of = defaultdict[str, trio.CapacityLimiter](
            lambda: trio.CapacityLimiter(STORE_WRITES_OF_USER_MAX)
        )
        self._awaiting_room = trio.lowlevel.ParkingLot()
        self.metrics.gauge(
            "writing.waiting",
            "Chunks that wait to be stored.",
            lambda: self._writes.statistics().tasks_waiting,
        )

    async def reserve_versions(self, call: Call) -> int:
        count = call.arguments.count

        def reserved(dataset: DatasetRecord) -> int:
            if not 0 < count <= VERSIONS_PER_REQUEST_MAX:
                raise InvalidInput(f"{count} versions are out of range (1 to {VERSIONS_PER_REQUEST_MAX})")
            return self.metadata.reserve_versions(dataset.dataset_id, count, time.time_ns())

        return await call.on_dataset(reserved)

    def _writable(self, key_id: bytes, dataset: DatasetRecord) -> DatasetRecord:
        """The dataset, if what was encrypted with this key may be stored in it. Raises InvalidInput."""
        self.keys.check(dataset, key_id)
        return dataset

    def _entries_allowed(self, key_id: bytes, dataset: DatasetRecord) -> tuple[DatasetRecord, bool]:
        """As `_writable`, and whether chunks may have entries: those of a mirror have none."""
        return self._writable(key_id, dataset), not self.mirrors.is_mirror(dataset)

    async def put_chunk(self, call: Call) -> int:
        chunk_id = call.arguments.chunk_id
        if len(chunk_id) != CHUNK_ID_BYTES:
            raise InvalidInput(f"a chunk ID of {len(chunk_id)} bytes; it must have {CHUNK_ID_BYTES}")
        key_id = call.arguments.key_id or b""
        dataset, may_have_entries = await call.on_dataset(partial(self._entries_allowed, key_id))
        name = f"chunk {chunk_name(chunk_id)}"
        preamble = decode_preamble(call.bulk[:PREAMBLE_BYTES], name, chunk_id)
        if preamble.is_attached:
            self._check_attached(call, dataset, preamble, name)
        chunk = await self._verified(call, dataset, chunk_id, call.bulk)
        if len(chunk[1]) and not may_have_entries:
            await in_thread(self.mirrors.check_writable, dataset)
        if (source := chunk[1].source) is None:
            return await self._commit(call, dataset, chunk, call.bulk)
        if source.is_chunk and source.chunk[0] == dataset.dataset_id:
            named = self.store, dataset.dataset_id, *chunk
            await call.hold_reply(await self._in_thread(call, read_bytes, *named))
            chunk, data = await self._in_thread(call, completed, *named)
            return await self._commit(call, dataset, chunk, data)
        if source.is_chunk:  # of another dataset: the rights of its readers are unknown
            call.audited |= {"dataset": dataset.name, "source": source.name}
            raise AccessDenied(f"{name}: only servers make chunks that refer to others; use dlcmd cp")
        attached, last = (call.caller.name, source.location), self.last_attached
        if last.get(dataset.dataset_id) != attached:  # the audit log has one line for the chunks of a source
            call.audited |= {"dataset": dataset.name, "source": source.name}
        generation = await self._commit(call, dataset, chunk, call.bulk)
        last[dataset.dataset_id] = attached
        return generation

    def _check_attached(self, call: Call, dataset: DatasetRecord, preamble: Preamble, name: str) -> None:
        """Refuse an attached chunk before its header is decoded, which can take long."""
        try:
            check_attached(preamble, name)
            if (source := source_of(call.bulk)) is None or not source.is_chunk:
                self.sources.check_any(name)
        except (AccessDenied, InvalidInput):
            call.audited |= {"dataset": dataset.name, "source": "not read"}
            raise

    async def _in_thread(self, call: Call, work: Callable[..., Result], *arguments: object) -> Result:
        async with self._writes_of[call.caller.name]:
            return await in_thread(work, *arguments, limiter=self._writes)

    async def _verified(
        self, call: Call, dataset: DatasetRecord, chunk_id: bytes, data: bytes | bytearray
    ) -> tuple[Preamble, ChunkHeader]:
        now_ns, identity = time.time_ns(), (dataset.dataset_id, chunk_id)
        return await self._in_thread(
            call, verified_chunk, self.metadata, *identity, data, now_ns, dataset.name
        )

    async def _commit(
        self, call: Call, dataset: DatasetRecord, chunk: tuple[Preamble, ChunkHeader], data: bytes | bytearray
    ) -> int:
        """Store and apply a verified chunk; returns the generation. A cancellation leaves it stored and applied, or not
        stored.
        """
        deadline_s, admitted = trio.current_time() + QUOTA_WAIT_S, partial(self.quotas.admitted, wait_s=0.0)
        while True:
            try:
                generation = await self._in_thread(
                    call, self._stored, dataset.dataset_id, chunk, data, partial(admitted, dataset)
                )
            except RoomAwaited:  # others may write meanwhile
                if trio.current_time() >= deadline_s:
                    raise
                with trio.move_on_at(min(deadline_s, trio.current_time() + ROOM_WAIT_S)):
                    await self._awaiting_room.park()
            except BaseException:
                self._awaiting_room.unpark()  # its room is given back
                raise
            else:
                self._awaiting_room.unpark()
                self.refresh.note(dataset.name)
                return generation

    def _stored(
        self,
        dataset_id: bytes,
        chunk: tuple[Preamble, ChunkHeader],
        data: bytes | bytearray,
        admitted: Admission,
    ) -> int:
        generation = store_chunk(
            self.store, self.metadata, dataset_id, *chunk, data, time.time_ns(), admitted
        )
        self.checksums.note_stored(dataset_id, *chunk, data)
        return generation

    async def write_file(self, call: Call) -> int:
        arguments, builder = call.arguments, ChunkBuilder()

        def reserved(dataset: DatasetRecord) -> tuple[DatasetRecord, int]:
            if len(arguments.content) > INLINE_FILE_BYTES_MAX:
                raise InvalidInput(f"write_file accepts at most {INLINE_FILE_BYTES_MAX} bytes; use put_chunk")
            self.mirrors.check_writable(self._writable(b"", dataset))
            builder.add_file(arguments.path, arguments.content, arguments.mode, arguments.mtime_ns)
            return dataset, self.metadata.reserve_versions(dataset.dataset_id, 1, time.time_ns())

        dataset, first = await call.on_dataset(reserved)
        sealed = builder.seal()
        while True:
            chunk_id = self.ids.next()
            data = b"".join(sealed.encode(chunk_id, dataset.name, dataset.dataset_id, first))
            try:
                chunk = await self._verified(call, dataset, chunk_id, data)
                return await self._commit(call, dataset, chunk, data)
            except AlreadyExists:
                continue  # another writer has used the same ID: take the next one

    async def get_pending(self, call: Call) -> Any:
        path = call.arguments.path
        pending = await call.on_dataset(
            lambda dataset: self.metadata.pending(dataset.dataset_id, check_path(path))
        )
        places = sorted(pending.extents)
        return thrift.PendingInfo(
            version=pending.version,
            size=pending.size,
            mtime_ns=pending.mtime_ns,
            extents=np.array(places, "<u8").tobytes(),
            digests=b"".join(pending.extents[place] for place in places),
        )
