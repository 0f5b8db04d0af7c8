"""Handlers for reading: snapshots, payloads and ranges of them; single entries for callers without a snapshot."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import trio

from dieselfs.chunk.format import Op
from dieselfs.errors import AccessDenied, InvalidInput, NotFound
from dieselfs.limits import (
    INLINE_FILE_BYTES_MAX,
    LISTING_BYTES_MAX,
    LISTING_ENTRIES_MAX,
    RANGES_PER_REQUEST_MAX,
)
from dieselfs.names import check_path, printable, split_path
from dieselfs.records import DatasetRecord, FileRecord
from dieselfs.rpc.messages import thrift
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.metadata.listing import implicit_folder
from dieselfs_server.service import Reply, Service
from dieselfs_server.users import Caller, Right


async def get_snapshot(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    if arguments.tag:
        dataset_id = await service.dataset_id(caller, arguments.dataset, Right.READ)
        tags = service.backends.tags
        snapshot = await trio.to_thread.run_sync(tags.get, arguments.dataset, dataset_id, arguments.tag)
    else:
        dataset = await service.dataset(caller, arguments.dataset, Right.READ)
        await trio.to_thread.run_sync(service.catalog.check_built, dataset, service.now_ns())
        snapshot = await service.backends.snapshots.get(dataset, arguments.generation)
    bulk = [] if arguments.known_digest == snapshot.digest else [snapshot.content]
    info = thrift.SnapshotInfo(
        generation=snapshot.generation,
        updated_ns=snapshot.header.updated_ns,
        digest=snapshot.digest,
        bulk_length=sum(len(view) for view in bulk),
    )
    return Reply(info, bulk)


async def get_payload(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    dataset_id = await service.dataset_id(caller, arguments.dataset, Right.READ)
    payload = await service.executor.payload(dataset_id, arguments.chunk_id)
    service.sent_payload_bytes.value += len(payload)
    return Reply(thrift.Bulk(bulk_length=len(payload)), [payload])


async def open_payload(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    if not caller.is_trusted:
        raise AccessDenied("open_payload needs a Unix socket and the server's own user; use get_payload")
    dataset_id = await service.dataset_id(caller, arguments.dataset, Right.READ)
    file = await service.executor.open_payload(dataset_id, arguments.chunk_id)
    if file is None:
        return Reply(thrift.PayloadFile(is_file=False, start=0, length=0))
    service.sent_payload_bytes.value += file.length
    return Reply(thrift.PayloadFile(is_file=True, start=file.start, length=file.length), file=file)


async def get_ranges(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    dataset_id = await service.dataset_id(caller, arguments.dataset, Right.READ)
    if len(arguments.ranges) % 8 or len(arguments.ranges) > 8 * RANGES_PER_REQUEST_MAX:
        raise InvalidInput(
            f"ranges of {len(arguments.ranges)} bytes are not pairs of u32, at most {RANGES_PER_REQUEST_MAX}"
        )
    ranges = np.frombuffer(arguments.ranges, "<u4").reshape(-1, 2).astype(np.int64)
    parts = await service.executor.ranges(dataset_id, arguments.chunk_id, ranges)
    length_bytes = sum(len(part) for part in parts)
    service.sent_payload_bytes.value += length_bytes
    return Reply(thrift.Bulk(bulk_length=length_bytes), parts)


async def stat(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    dataset = await service.dataset(caller, arguments.dataset, Right.READ)
    record = await _found(service, dataset, arguments.path)
    return Reply(_entry_info(record))


def page_of(records: Sequence[FileRecord]) -> Sequence[FileRecord]:
    """The first records that fit into one message, at least one; link targets may be long."""
    total_bytes = 0
    for number, record in enumerate(records):
        total_bytes += len(split_path(record.path)[1]) + len(record.target)
        if number and total_bytes > LISTING_BYTES_MAX:
            return records[:number]
    return records


def _find(metadata: MetadataStore, dataset: DatasetRecord, path: bytes) -> FileRecord:
    """The live entry at `path`, or the record of a folder without an entry. Blocks. Raises NotFound."""
    record = metadata.lookup(dataset.dataset_id, path)
    if record is not None:
        return record
    if path and not metadata.list_folder(dataset.dataset_id, path, b"", 1):
        raise NotFound(f"dl://{dataset.name}/{printable(path)}: no such file or folder")
    return implicit_folder(path)


async def _found(service: Service, dataset: DatasetRecord, path: bytes) -> FileRecord:
    return await trio.to_thread.run_sync(_find, service.backends.metadata, dataset, check_path(path))


async def list_folder(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    dataset = await service.dataset(caller, arguments.dataset, Right.READ)
    path = check_path(arguments.path)
    if not 0 < arguments.limit <= LISTING_ENTRIES_MAX:
        raise InvalidInput(
            f"a listing of {arguments.limit} entries is out of range (1 to {LISTING_ENTRIES_MAX})"
        )

    metadata = service.backends.metadata

    def listing() -> Sequence[FileRecord]:
        if _find(metadata, dataset, path).op != Op.DIRECTORY:
            raise InvalidInput(f"dl://{dataset.name}/{printable(path)}: not a folder")
        return page_of(metadata.list_folder(dataset.dataset_id, path, arguments.after, arguments.limit))

    return Reply([_entry_info(record) for record in await trio.to_thread.run_sync(listing)])


async def read_file(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    dataset = await service.dataset(caller, arguments.dataset, Right.READ)
    record = await _found(service, dataset, arguments.path)
    if record.op != Op.FILE or record.size > INLINE_FILE_BYTES_MAX:
        raise InvalidInput(f"read_file returns only files of at most {INLINE_FILE_BYTES_MAX} bytes")
    content: list[memoryview] = []
    for extent in record.extents:
        span = np.array([(extent.offset, extent.length)], np.int64)
        content += await service.executor.ranges(dataset.dataset_id, extent.chunk_id, span)
    return Reply(b"".join(content))


def _entry_info(record: FileRecord) -> Any:
    return thrift.EntryInfo(
        name=split_path(record.path)[1],
        op=int(record.op),
        mode=record.mode,
        mtime_ns=record.mtime_ns,
        size=record.size,
        target=record.target,
    )
