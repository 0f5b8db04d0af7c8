"""Handlers for reading: snapshots, payloads and ranges of them; single entries for callers without a snapshot."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dieselfs.chunk.format import Op
from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.digests import DIGEST_BYTES
from dieselfs.errors import AccessDenied, InvalidInput, NotFound
from dieselfs.fields import pack_fields
from dieselfs.limits import (
    INLINE_FILE_BYTES_MAX,
    LISTING_BYTES_MAX,
    LISTING_ENTRIES_MAX,
    OPEN_FILE_HELD_BYTES,
    RANGES_PER_REQUEST_MAX,
    SHARED_PAYLOADS_MAX,
    SNAPSHOT_BASES_MAX,
)
from dieselfs.names import check_path, printable, split_path
from dieselfs.records import DatasetRecord, FileRecord
from dieselfs.rpc.messages import thrift
from dieselfs.rpc.records import RemoteEntry
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry
from dieselfs_server.admission.processor_time import in_thread
from dieselfs_server.call import Call, Reply
from dieselfs_server.datasets.catalog import Catalog
from dieselfs_server.datasets.mirrors import Mirrors, entries_in, entry_at
from dieselfs_server.datasets.snapshots import SnapshotCache
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.metadata.rules import implicit_folder
from dieselfs_server.reading.executor import RequestExecutor, join_ranges
from dieselfs_server.reading.shared_payloads import SharedPayloads
from dieselfs_server.store.interface import OpenPayload


@dataclass(eq=False)
class ReadCalls:
    metadata: MetadataStore
    executor: RequestExecutor
    shared: SharedPayloads
    catalog: Catalog
    snapshots: SnapshotCache
    tags: TagStore
    mirrors: Mirrors
    metrics: Registry

    def __post_init__(self) -> None:
        self.sent_payload_bytes = self.metrics.declare(catalogue.PAYLOADS_SENT_BYTES)
        self.sent_snapshot_bytes = self.metrics.counter(
            "snapshots.sent_bytes", "Bytes of snapshots and deltas sent."
        )
        self.sent_deltas = self.metrics.counter("snapshots.sent_deltas", "Deltas sent in place of snapshots.")

    async def get_snapshot(self, call: Call) -> Reply:
        arguments, statement = call.arguments, b""
        if arguments.tag:
            dataset_id = await call.dataset_id()
            named = arguments.dataset, dataset_id, arguments.tag
            async with self.tags.reads:
                snapshot = await in_thread(self.tags.get, *named)
                await call.hold_first(len(snapshot.content))
            # Not in the block: a slow user would keep others from their tags.
            await call.pace(len(snapshot.content))
        else:
            dataset = await call.dataset()
            await in_thread(self.catalog.check_built, dataset, time.time_ns())
            mirrored = await in_thread(self.mirrors.snapshot, dataset, arguments.generation)
            snapshot = mirrored or await self.snapshots.get(dataset, arguments.generation)
            if not arguments.generation:
                statement = await in_thread(self.snapshots.stated, snapshot, time.time_ns() // 10**9)
        packed = arguments.bases or b""
        if len(packed) % DIGEST_BYTES or len(packed) > DIGEST_BYTES * SNAPSHOT_BASES_MAX:
            most = f"at most {SNAPSHOT_BASES_MAX} snapshots of {DIGEST_BYTES} bytes"
            raise InvalidInput(f"{len(packed)} bytes are not the digests of {most}")
        bases = [packed[at : at + DIGEST_BYTES] for at in range(0, len(packed), DIGEST_BYTES)]
        bulk: list[bytes | memoryview] = [snapshot.content]
        base_digest = b""
        if arguments.known_digest == snapshot.digest:
            bulk = []
        elif bases and (found := await self.snapshots.delta(snapshot, bases)) is not None:
            base_digest, delta = found
            bulk = [delta]
            self.sent_deltas.value += 1
        self.sent_snapshot_bytes.value += sum(len(part) for part in bulk)
        info = thrift.SnapshotInfo(
            base_digest=base_digest,
            statement=statement,
            generation=snapshot.generation,
            updated_ns=snapshot.header.updated_ns,
            digest=snapshot.digest,
            bulk_length=sum(len(view) for view in bulk),
        )
        return Reply(info, bulk)

    async def get_payload(self, call: Call) -> Reply:
        dataset_id, executor, chunk_id = await call.dataset_id(), self.executor, call.arguments.chunk_id
        await call.hold_reply(await executor.payload_length(dataset_id, chunk_id))
        if (
            not call.arguments.takes_frames
            or (found := await executor.stored_payload(dataset_id, chunk_id)) is None
        ):
            return self._bulk([await executor.payload(dataset_id, chunk_id)])
        table = pack_fields(found[0].fields())
        return self._bulk([memoryview(table), memoryview(found[1])], table_length=len(table))

    async def get_ranges(self, call: Call) -> Reply:
        dataset_id, packed = await call.dataset_id(), call.arguments.ranges
        if len(packed) % 8 or len(packed) > 8 * RANGES_PER_REQUEST_MAX:
            raise InvalidInput(
                f"ranges of {len(packed)} bytes are not pairs of u32, at most {RANGES_PER_REQUEST_MAX}"
            )
        ranges = np.frombuffer(packed, "<u4").reshape(-1, 2).astype(np.int64)
        await call.hold_reply(int(ranges[:, 1].sum()))
        return self._bulk(
            await self.executor.ranges(dataset_id, call.arguments.chunk_id, ranges, join_ranges)
        )

    async def get_block_checksums(self, call: Call) -> Reply:
        dataset_id, executor = await call.dataset_id(), self.executor
        checksums = await executor.kept_checksums(dataset_id, call.arguments.chunk_id)
        if checksums is None:
            await call.hold_reply(await executor.payload_length(dataset_id, call.arguments.chunk_id))
            checksums = await executor.block_checksums(dataset_id, call.arguments.chunk_id)
        return Reply(thrift.Bulk(bulk_length=len(checksums)), [memoryview(checksums)])

    def _bulk(self, parts: Sequence[memoryview], table_length: int = 0) -> Reply:
        length_bytes = sum(len(part) for part in parts)
        self.sent_payload_bytes.value += length_bytes
        return Reply(thrift.Bulk(bulk_length=length_bytes, table_length=table_length or None), parts)

    async def open_payload(self, call: Call) -> Reply:
        if not call.caller.is_trusted:
            raise AccessDenied("open_payload needs a Unix socket and the server's own user; use get_payload")
        dataset_id, chunk_id = await call.dataset_id(), call.arguments.chunk_id
        file, checksums = await self.executor.open_with_checksums(
            dataset_id, chunk_id, bool(call.arguments.with_checksums)
        )
        if file is None:  # others of the store may have files, unless it is an ordinary chunk
            preamble = await self.executor.preamble(dataset_id, chunk_id)
            is_file = preamble.stored_length != preamble.object_length
            return Reply(thrift.PayloadFile(is_file=is_file, start=0, length=0, checksums=checksums))
        self.sent_payload_bytes.value += file.length
        value = thrift.PayloadFile(is_file=True, start=file.start, length=file.length, checksums=checksums)
        return Reply(value, files=[file])

    async def open_payloads(self, call: Call) -> Reply:
        chunk_ids = await _chunk_ids_of_trusted(call)
        dataset_id = await call.dataset_id()
        checksums: list[bytes | None] = [None] * len(chunk_ids)
        if call.arguments.with_checksums:  # before anything is open
            checksums = await self.executor.kept_checksums_of(dataset_id, chunk_ids)
        files = await self.executor.open_ahead(dataset_id, chunk_ids)
        self.sent_payload_bytes.value += sum(file.length for file in files)
        found = [
            thrift.PayloadFile(is_file=True, start=file.start, length=file.length, checksums=kept)
            for file, kept in zip(files, checksums, strict=False)
        ]
        return Reply(thrift.PayloadFiles(files=found), files=files)

    async def share_payloads(self, call: Call) -> Reply:
        chunk_ids = await _chunk_ids_of_trusted(call)
        dataset_id = await call.dataset_id()
        found = [await self.shared.get(dataset_id, chunk_ids[0], call.arguments.wanted_bytes)]
        found += [self.shared.kept(dataset_id, chunk_id) for chunk_id in chunk_ids[1:]]
        payloads: list[object] = []
        files: list[OpenPayload] = []
        for place, payload in enumerate(found):
            if payload is None:
                continue
            try:
                file = OpenPayload(os.dup(payload.segment.descriptor), 0, len(payload.segment))
            except OSError:  # no descriptor is left
                break
            files.append(file)
            payloads.append(
                thrift.SharedPayload(
                    place=place, length=file.length, digest=payload.digest, is_kept=payload.is_kept
                )
            )
        self.sent_payload_bytes.value += sum(file.length for file in files)
        return Reply(thrift.SharedPayloads(payloads=payloads), files=files)

    async def stat(self, call: Call) -> RemoteEntry:
        _, record = await self._found(call)
        return _remote_entry(record)

    async def _found(self, call: Call) -> tuple[DatasetRecord, FileRecord]:
        """The dataset and the entry that the arguments name, for a caller who may read them. Raises NotFound."""
        path = call.arguments.path
        return await call.on_dataset(lambda dataset: (dataset, self._find(dataset, check_path(path))))

    def _find(self, dataset: DatasetRecord, path: bytes) -> FileRecord:
        """The entry at `path`. Blocks. Raises NotFound."""
        mirrored = self.mirrors.snapshot(dataset)
        return entry_at(mirrored, path) if mirrored is not None else _find(self.metadata, dataset, path)

    async def list_folder(self, call: Call) -> Sequence[RemoteEntry]:
        metadata, arguments = self.metadata, call.arguments

        def listing(dataset: DatasetRecord) -> Sequence[FileRecord]:
            path, after, limit = check_path(arguments.path), arguments.after, arguments.limit
            if not 0 < limit <= LISTING_ENTRIES_MAX:
                raise InvalidInput(
                    f"a listing of {limit} entries is out of range (1 to {LISTING_ENTRIES_MAX})"
                )
            if self._find(dataset, path).op != Op.DIRECTORY:
                raise InvalidInput(f"dl://{dataset.name}/{printable(path)}: not a folder")
            if (mirrored := self.mirrors.snapshot(dataset)) is not None:
                return page_of(entries_in(mirrored, path, after, limit))
            return page_of(metadata.list_folder(dataset.dataset_id, path, after, limit))

        return [_remote_entry(record) for record in await call.on_dataset(listing)]

    async def read_file(self, call: Call) -> bytes:
        dataset, record = await self._found(call)
        if record.op != Op.FILE or record.size > INLINE_FILE_BYTES_MAX:
            raise InvalidInput(f"read_file returns only files of at most {INLINE_FILE_BYTES_MAX} bytes")
        await call.hold_first(record.size)
        content: list[memoryview] = []
        for extent in record.extents:
            span = np.array([(extent.offset, extent.length)], np.int64)
            content += await self.executor.ranges(dataset.dataset_id, extent.chunk_id, span)
        return b"".join(content)


async def _chunk_ids_of_trusted(call: Call) -> list[bytes]:
    """The chunks that a call for descriptors names, which are held until the client has received them. Raises
    AccessDenied, InvalidInput, and Unavailable if other clients do not receive theirs.
    """
    if not call.caller.is_trusted:
        raise AccessDenied(f"{call.method} needs a Unix socket and the server's own user; use get_payload")
    packed = call.arguments.chunk_ids
    if len(packed) % CHUNK_ID_BYTES or not 0 < len(packed) <= CHUNK_ID_BYTES * SHARED_PAYLOADS_MAX:
        raise InvalidInput(
            f"{len(packed)} bytes are not the IDs of 1 to {SHARED_PAYLOADS_MAX} chunks of {CHUNK_ID_BYTES} bytes"
        )
    chunk_ids = [packed[at : at + CHUNK_ID_BYTES] for at in range(0, len(packed), CHUNK_ID_BYTES)]
    await call.hold(len(chunk_ids) * OPEN_FILE_HELD_BYTES)
    return chunk_ids


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


def _remote_entry(record: FileRecord) -> RemoteEntry:
    name, op = split_path(record.path)[1], int(record.op)
    return RemoteEntry(name, op, record.mode, record.mtime_ns, record.size, record.target)
