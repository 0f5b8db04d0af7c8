"""Handlers for writing: versions, chunks, single small files, and interrupted uploads."""

from functools import partial
from typing import Any

import numpy as np
import trio

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.errors import AlreadyExists, InvalidInput
from dieselfs.limits import INLINE_FILE_BYTES_MAX, VERSIONS_PER_REQUEST_MAX
from dieselfs.names import check_path
from dieselfs.records import DatasetRecord
from dieselfs.rpc.messages import thrift
from dieselfs_server.admission.quotas.admission import QUOTA_WAIT_S, RoomAwaited
from dieselfs_server.datasets.commit import commit_chunk
from dieselfs_server.service import Call, Service
from dieselfs_server.store.attached import source_of

ROOM_PAUSE_S = 0.25
"""A chunk that waits for room in a quota is tried again after this time. Each try verifies it."""


async def reserve_versions(call: Call) -> int:
    dataset, count = await call.dataset(), call.arguments.count
    if not 0 < count <= VERSIONS_PER_REQUEST_MAX:
        raise InvalidInput(f"{count} versions are out of range (1 to {VERSIONS_PER_REQUEST_MAX})")
    return await _reserve(call.service, dataset, count)


async def _reserve(service: Service, dataset: DatasetRecord, count: int) -> int:
    reserve = service.metadata.reserve_versions
    return await trio.to_thread.run_sync(reserve, dataset.dataset_id, count, service.now_ns())


async def put_chunk(call: Call) -> int:
    chunk_id = call.arguments.chunk_id
    if len(chunk_id) != CHUNK_ID_BYTES:
        raise InvalidInput(f"a chunk ID of {len(chunk_id)} bytes; it must have {CHUNK_ID_BYTES}")
    dataset = await call.dataset()
    source = source_of(call.bulk)
    if source is None:
        return await _commit(call.service, dataset, chunk_id, call.bulk)
    attached, last = (call.caller.name, source.location), call.service.last_attached
    if last.get(dataset.dataset_id) != attached:  # the audit log has one line for the chunks of a source
        call.audited |= {"dataset": dataset.name, "source": source.name}
    generation = await _commit(call.service, dataset, chunk_id, call.bulk)
    last[dataset.dataset_id] = attached
    return generation


async def _commit(service: Service, dataset: DatasetRecord, chunk_id: bytes, data: bytes | bytearray) -> int:
    """Store and apply a chunk; returns the generation. If cancelled, the chunk is still stored and applied."""
    deadline_s = trio.current_time() + QUOTA_WAIT_S
    while True:
        try:
            generation = await trio.to_thread.run_sync(
                commit_chunk,
                service.store,
                service.metadata,
                dataset.dataset_id,
                chunk_id,
                data,
                service.now_ns(),
                dataset.name,
                partial(service.quotas.admitted, dataset, wait_s=0.0),
                limiter=service.writes,
            )
        except RoomAwaited:  # others may write meanwhile
            if trio.current_time() >= deadline_s:
                raise
            await trio.sleep(ROOM_PAUSE_S)
            continue
        service.refresh.note(dataset.name)
        return generation


async def write_file(call: Call) -> int:
    service, arguments = call.service, call.arguments
    dataset = await call.dataset()
    if len(arguments.content) > INLINE_FILE_BYTES_MAX:
        raise InvalidInput(f"write_file accepts at most {INLINE_FILE_BYTES_MAX} bytes; use put_chunk")
    builder = ChunkBuilder()
    builder.add_file(arguments.path, arguments.content, arguments.mode, arguments.mtime_ns)
    sealed = builder.seal()
    first = await _reserve(service, dataset, 1)
    while True:
        chunk_id = service.ids.next()
        parts = sealed.encode(chunk_id, dataset.name, dataset.dataset_id, first)
        try:
            return await _commit(service, dataset, chunk_id, b"".join(parts))
        except AlreadyExists:
            continue  # another writer has used the same ID: take the next one


async def get_pending(call: Call) -> Any:
    dataset, path = await call.dataset(), check_path(call.arguments.path)
    pending = await trio.to_thread.run_sync(call.service.metadata.pending, dataset.dataset_id, path)
    extents = np.array(sorted(pending.extents), "<u8").tobytes()
    return thrift.PendingInfo(
        version=pending.version, size=pending.size, mtime_ns=pending.mtime_ns, extents=extents
    )
