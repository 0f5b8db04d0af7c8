"""Handlers for writing: versions, chunks, single small files, and interrupted uploads."""

from typing import Any

import numpy as np
import trio

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.errors import AlreadyExists, InvalidInput
from dieselfs.limits import INLINE_FILE_BYTES_MAX, VERSIONS_PER_REQUEST_MAX
from dieselfs.names import check_path
from dieselfs.rpc.messages import thrift
from dieselfs_server.service import Reply, Service
from dieselfs_server.users import Caller, Right


async def reserve_versions(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    dataset = await service.dataset(caller, arguments.dataset, Right.WRITE)
    if not 0 < arguments.count <= VERSIONS_PER_REQUEST_MAX:
        raise InvalidInput(f"{arguments.count} versions are out of range (1 to {VERSIONS_PER_REQUEST_MAX})")
    reserve = service.backends.metadata.reserve_versions
    return Reply(
        await trio.to_thread.run_sync(reserve, dataset.dataset_id, arguments.count, service.now_ns())
    )


async def put_chunk(service: Service, caller: Caller, arguments: Any, bulk: bytes | bytearray) -> Reply:
    if len(arguments.chunk_id) != CHUNK_ID_BYTES:
        raise InvalidInput(f"a chunk ID of {len(arguments.chunk_id)} bytes; it must have {CHUNK_ID_BYTES}")
    dataset = await service.dataset(caller, arguments.dataset, Right.WRITE)
    return Reply(await service.commit(dataset, arguments.chunk_id, bulk))


async def write_file(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    dataset = await service.dataset(caller, arguments.dataset, Right.WRITE)
    if len(arguments.content) > INLINE_FILE_BYTES_MAX:
        raise InvalidInput(f"write_file accepts at most {INLINE_FILE_BYTES_MAX} bytes; use put_chunk")
    builder = ChunkBuilder()
    builder.add_file(arguments.path, arguments.content, arguments.mode, arguments.mtime_ns)
    sealed = builder.seal()
    reserve = service.backends.metadata.reserve_versions
    first = await trio.to_thread.run_sync(reserve, dataset.dataset_id, 1, service.now_ns())
    while True:
        chunk_id = service.ids.next()
        parts = sealed.encode(chunk_id, dataset.name, dataset.dataset_id, first)
        try:
            return Reply(await service.commit(dataset, chunk_id, b"".join(parts)))
        except AlreadyExists:
            continue  # another writer has used the same ID: take the next one


async def get_pending(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    dataset = await service.dataset(caller, arguments.dataset, Right.WRITE)
    look_up = service.backends.metadata.pending
    pending = await trio.to_thread.run_sync(look_up, dataset.dataset_id, check_path(arguments.path))
    extents = np.array(sorted(pending.pieces), "<u8").tobytes()
    return Reply(
        thrift.PendingInfo(
            version=pending.version, size=pending.size, mtime_ns=pending.mtime_ns, extents=extents
        )
    )
