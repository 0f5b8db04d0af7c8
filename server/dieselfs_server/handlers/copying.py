"""Handler for copies inside the servers, also for moves: a copy, and then a deletion.

A chunk whose bytes are all copied is referred to (`datasets/referring_copy.py`); of others, the bytes are copied.

Cancelled at any point, all entries that were stored are complete, and nothing is deleted before everything is stored.
Copies have newly reserved versions. The deletion of a moved entry has the version of the entry plus one: it wins over
what was copied, also over copies of it that a purge makes, and loses against everything that was written later.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from secrets import token_hex
from typing import TypeVar

import numpy as np
import trio

from dieselfs.chunk.ids import ChunkIdSource, chunk_name
from dieselfs.digests import extent_digest_of
from dieselfs.errors import Damaged, DieselfsError, InvalidInput, NotFound, Unavailable
from dieselfs.names import check_path, printable, split_path
from dieselfs.records import DatasetRecord, FileRecord, Op
from dieselfs.rpc.records import CopyProgress, CopyReport, CopyRequest, Existing
from dieselfs.rpc.serving.keep_alive import accompanied
from dieselfs.snapshot.reader import ExtentRef, Snapshot
from dieselfs.transfer.copy_plan import (
    CopyPlan,
    check_request,
    entry_snapshot,
    is_selected,
    plan_copy,
    planned_report,
)
from dieselfs_server.access.accounts import Right
from dieselfs_server.admission.quotas import Quotas
from dieselfs_server.call import Call
from dieselfs_server.datasets.catalog import Catalog
from dieselfs_server.datasets.commit import ChunkWriter
from dieselfs_server.datasets.dataset_keys import DatasetKeys
from dieselfs_server.datasets.mirrors import MIRROR_TAG, Mirrors
from dieselfs_server.datasets.referring_copy import ReferringCopy, Span, batches
from dieselfs_server.datasets.snapshots import SnapshotCache
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.leases.lease import Pin, put_pin_of, remove_pin
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.metadata.rules import implicit_folder
from dieselfs_server.reading.executor import RequestExecutor
from dieselfs_server.store.interface import ObjectStore

COPY_WAIT_S = 60.0
"""A copy waits this long for others to end, if the server runs as many as it may."""

PIN_S, PIN_RENEWAL_S = 600, 200.0
"""Lease of the pin of a copied generation, and how often it is renewed."""

NODES_AT_ONCE = 4096
"""Entries without bytes that are packed between two chances to be cancelled."""

Contents = Sequence[tuple[int, ExtentRef, memoryview]]
"""Extents with their bytes, and the nodes of their files."""

Result = TypeVar("Result")

COPIES_MAX = 4
"""Copies at the same time on a server, of all clients. Each has two chunks in memory."""


@dataclass(eq=False)
class CopyCalls:
    store: ObjectStore
    metadata: MetadataStore
    ids: ChunkIdSource
    quotas: Quotas
    executor: RequestExecutor
    catalog: Catalog
    snapshots: SnapshotCache
    tags: TagStore
    keys: DatasetKeys
    mirrors: Mirrors

    def __post_init__(self) -> None:
        self._places = trio.Semaphore(COPIES_MAX)
        # Not that of uploads: a copy waits in its thread for room in a quota.
        self.threads = trio.CapacityLimiter(COPIES_MAX)

    async def copy_entries(self, call: Call) -> CopyReport:
        request = _request(call)
        source = await call.dataset()
        target = await _target(call, request)
        if target.dataset_id:
            await trio.to_thread.run_sync(self.mirrors.check_writable, target)
        if not request.tag and await trio.to_thread.run_sync(self.mirrors.is_mirror, source):
            request = request._replace(tag=MIRROR_TAG)
        check_request(request)
        for dataset in (source, target) if target.dataset_id else (source,):
            await trio.to_thread.run_sync(
                self.keys.check_plain, dataset, "they cannot copy or move its files"
            )
        async with self._place():
            return await _Copy(self, call, request, source, target).run()

    async def store_entries(
        self, metadata: MetadataStore, dataset: DatasetRecord, snapshot: Snapshot
    ) -> None:
        """Store chunks with the entries of a snapshot of this dataset. `metadata`: as `unapplied` makes it. Raises as
        `_TreeCopy.run`.
        """
        name = dataset.name
        request = CopyRequest(name, b"", name, b"", tag=MIRROR_TAG)
        plan = await trio.to_thread.run_sync(plan_copy, snapshot, None, request)
        async with self._place():
            await _TreeCopy(replace(self, metadata=metadata), dataset, dataset, plan).run()

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """One of the places of copies. Raises Unavailable if none is free in time."""
        with trio.move_on_after(COPY_WAIT_S) as wait:
            await self._places.acquire()
        if wait.cancelled_caught:
            raise Unavailable("this server runs as many copies as it may; try again when one has ended")
        try:
            yield
        finally:
            self._places.release()

    def writer(
        self, dataset: DatasetRecord, stored: Callable[[int, int], object] = lambda *_: None
    ) -> ChunkWriter:
        """A writer within the quotas of a dataset."""
        admitted = partial(self.quotas.admitted, dataset)
        return ChunkWriter(self.store, self.metadata, self.ids, dataset, admitted=admitted, stored=stored)


async def _target(call: Call, request: CopyRequest) -> DatasetRecord:
    """The dataset to copy to; in a dry run one that the caller may create, without an ID."""
    try:
        return await call.dataset(Right.WRITE, request.target_dataset)
    except NotFound:
        if not request.is_dry_run:
            raise
        await call.require_right(Right.WRITE, request.target_dataset)
        return DatasetRecord(b"", request.target_dataset, 0, 0, 0, 0, 0)


def _request(call: Call) -> CopyRequest:
    """Raises InvalidInput."""
    request = CopyRequest(**{name: getattr(call.arguments, name) for name in CopyRequest._fields})
    check_path(request.path)
    check_path(request.target_path)
    if request.existing not in tuple(Existing):
        raise InvalidInput(f"{request.existing} is no rule for existing files (0 to {max(Existing)})")
    return request


class _Copy:
    def __init__(
        self, parts: CopyCalls, call: Call, request: CopyRequest, source: DatasetRecord, target: DatasetRecord
    ) -> None:
        self._parts = parts
        self._call = call
        self._request = request
        self._source = source
        self._target = target

    async def run(self) -> CopyReport:
        parts, request = self._parts, self._request
        versions: dict[bytes, int] = {}
        if request.is_move:
            # Before the content is looked up, so what is written in between has larger versions, and stays.
            versions = await trio.to_thread.run_sync(self._versions)
            self._source = await self._call.dataset()
            self._target = await _target(self._call, request)
        plan = await self._plan()
        if request.is_dry_run:
            return planned_report(plan, self._target.generation)
        copy = _TreeCopy(parts, self._source, self._target, plan)
        self._call.progress = lambda: copy.progress
        await self._pinned(plan.source, copy.run)
        deleted = await _delete_moved(parts.writer(self._source), parts.threads, plan, versions)
        order = plan.order
        return CopyReport(order.entries, order.total_bytes, plan.skipped, deleted, copy.generation)

    def _versions(self) -> dict[bytes, int]:
        metadata, dataset_id = self._parts.metadata, self._source.dataset_id
        found = dict(_entry_versions(metadata, dataset_id, self._request.path))
        # So that no copy has the version of a deletion, even if versions are ahead of the clock.
        metadata.reserve_versions(dataset_id, 1, time.time_ns())
        return found

    async def _plan(self) -> CopyPlan:
        parts, request, source, target = self._parts, self._request, self._source, self._target
        for dataset in filter(lambda dataset: dataset.dataset_id, (source, target)):
            await trio.to_thread.run_sync(parts.catalog.check_built, dataset, time.time_ns())
        entry = None
        if request.tag:
            async with parts.tags.reads:
                tree = await trio.to_thread.run_sync(
                    parts.tags.get, source.name, source.dataset_id, request.tag
                )
        else:
            entry = await trio.to_thread.run_sync(self._find, source, request.path)
            if entry is None:
                raise NotFound(f"dl://{source.name}/{printable(request.path)}: no such file or folder")
            is_folder = entry.op == Op.DIRECTORY
            tree = await parts.snapshots.get(source) if is_folder else entry_snapshot(source, entry)
        await trio.to_thread.run_sync(self._check_folders_above)
        there = await trio.to_thread.run_sync(self._find, target, request.target_path)
        existing = None
        if there is not None:
            is_folder = tree.stat(tree.require(request.path)).is_folder and there.op == Op.DIRECTORY
            existing = await parts.snapshots.get(target) if is_folder else entry_snapshot(target, there)
        if not request.selection:
            return await trio.to_thread.run_sync(plan_copy, tree, existing, request)
        seen = tree if request.tag else await parts.snapshots.get(source, request.generation)
        wanted = is_selected(seen, request.selection)
        return await trio.to_thread.run_sync(plan_copy, tree, existing, request, wanted)

    def _find(self, dataset: DatasetRecord, path: bytes) -> FileRecord | None:
        """The entry at `path`; None without one."""
        metadata, dataset_id = self._parts.metadata, dataset.dataset_id
        if not dataset_id:
            return None
        is_folder = not path or metadata.list_folder(dataset_id, path, b"", 1)
        record = metadata.lookup(dataset_id, path)
        if is_folder and (record is None or record.op != Op.DIRECTORY):  # it hides a file
            return implicit_folder(path)
        return record

    def _check_folders_above(self) -> None:
        """Raise InvalidInput if the new path is below a file or a link."""
        folder = split_path(self._request.target_path)[0]
        while folder:
            record = self._find(self._target, folder)
            if record is not None and record.op != Op.DIRECTORY:
                raise InvalidInput(f"dl://{self._target.name}/{printable(folder)} is not a folder")
            folder = split_path(folder)[0]

    async def _pinned(self, snapshot: Snapshot, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work while a purge keeps the chunks of the snapshot."""
        metadata, dataset_id, user = self._parts.metadata, self._source.dataset_id, self._call.caller.name
        holder = f"{user}/copy to {self._target.name} ({token_hex(4)})"
        generation = snapshot.generation, snapshot.header.updated_ns

        async def pin() -> None:
            now_ns = time.time_ns()
            record = Pin(holder, *generation, now_ns + PIN_S * 10**9)
            put = partial(put_pin_of, metadata, dataset_id, user, record, now_ns)
            await trio.to_thread.run_sync(put)

        async def renew() -> None:
            while True:
                await trio.sleep(PIN_RENEWAL_S)
                with suppress(Unavailable):  # the lease is longer than several tries
                    await pin()

        await pin()
        try:
            await accompanied(work, renew)
        finally:
            with trio.CancelScope(shield=True), suppress(DieselfsError):  # else it expires
                await trio.to_thread.run_sync(remove_pin, metadata, dataset_id, holder)


class _TreeCopy:
    """One copy, by `run`; `progress` has its state."""

    def __init__(
        self, parts: CopyCalls, source: DatasetRecord, target: DatasetRecord, plan: CopyPlan
    ) -> None:
        self._parts = parts
        self._source = source
        self._plan = plan
        self._writer = parts.writer(target, self._count)
        self._versions: dict[int, int] = {}  # of files of several extents
        self.progress = CopyProgress(0, 0, plan.order.entries, plan.order.total_bytes)

    @property
    def generation(self) -> int:
        """Of the dataset that it copies to, after the last chunk."""
        return self._writer.generation

    def _count(self, entries: int, length_bytes: int) -> None:
        done = self.progress.done + entries, self.progress.done_bytes + length_bytes
        self.progress = CopyProgress(*done, *self.progress[2:])

    async def run(self) -> None:
        """Copy. Raises Damaged, NotFound if bytes of the source cannot be read, StorageFull, Unavailable."""
        order = self._plan.order
        for kind in (order.folders, order.links, order.empty_files):
            for start in range(0, len(kind), NODES_AT_ONCE):
                await self._in_thread(self._add_empty, kind[start : start + NODES_AT_ONCE].tolist())
        referring = ReferringCopy(self._parts.store, self._writer, self._source, self._plan, self._version)
        copied: list[Span] = []
        for spans in batches(order.starts):
            copied += await self._in_thread(referring.refer, spans)
        for span in copied:
            await self._in_thread(self._add_files, await self._read(span))
        await self._in_thread(self._writer.write)

    async def _in_thread(self, work: Callable[..., Result], *arguments: object) -> Result:
        return await trio.to_thread.run_sync(work, *arguments, limiter=self._parts.threads)

    async def _read(self, span: Span) -> Contents:
        """The extents of one chunk."""
        source, order = self._plan.source, self._plan.order
        start, end = span
        extents = source.extent_refs(order.extents[start:end])
        ranges = np.array([(extent.offset, extent.length) for extent in extents], np.int64)
        chunk_id = source.chunk_id(extents[0].chunk)
        contents = await self._parts.executor.ranges(self._source.dataset_id, chunk_id, ranges)
        return list(zip(order.owners[start:end].tolist(), extents, contents, strict=True))

    def _add_empty(self, nodes: Sequence[int]) -> None:
        """Folders, links and empty files."""
        for node in nodes:
            self._writer.make_room(0)
            self._plan.add_empty(node, self._writer.builder)

    def _add_files(self, contents: Contents) -> None:
        source = self._plan.source
        for node, extent, view in contents:
            content = bytes(view)
            if extent_digest_of(content) != extent.digest:
                raise Damaged(
                    f"dl://{source.dataset}/{printable(source.path(node))}: the bytes in chunk "
                    f"{chunk_name(source.chunk_id(extent.chunk))} have another digest; 'dlcmd fsck' explains"
                )
            stat = source.stat(node)
            version = 0 if extent.length == stat.size else self._version(node)
            self._writer.make_room(len(content))
            self._writer.builder.add_file(
                self._plan.new_path(node), content, stat.mode, stat.mtime_ns, stat.size, extent.place, version
            )

    def _version(self, node: int) -> int:
        """The version of all extents of a file, which may be in several chunks."""
        if node not in self._versions:
            self._versions[node] = self._writer.reserve(1)
        return self._versions[node]


async def _delete_moved(
    writer: ChunkWriter, threads: trio.CapacityLimiter, plan: CopyPlan, versions: Mapping[bytes, int]
) -> int:
    """Delete what `plan` has moved; returns the number of entries. `versions`: those of the copied entries, or older
    ones; then the newer entry stays.
    """
    deleted = 0

    def add(nodes: Sequence[int]) -> int:
        found = 0
        for path in map(plan.source.path, nodes):
            if (version := versions.get(path)) is not None:
                writer.make_room(0)
                writer.builder.add_delete(path, version + 1)
                found += 1
        return found

    for start in range(0, len(plan.moved), NODES_AT_ONCE):
        batch = plan.moved[start : start + NODES_AT_ONCE]
        deleted += await trio.to_thread.run_sync(add, batch, limiter=threads)
    await trio.to_thread.run_sync(writer.write, limiter=threads)
    return deleted


def _entry_versions(metadata: MetadataStore, dataset_id: bytes, path: bytes) -> Iterator[tuple[bytes, int]]:
    """Path and version of each entry at and below `path`. Blocks."""
    top = metadata.lookup(dataset_id, path)
    if top is not None:
        yield path, top.version
    pending = [path]
    while pending:
        folder, after = pending.pop(), b""
        while page := metadata.list_folder(dataset_id, folder, after, NODES_AT_ONCE):
            for record in page:
                if record.version:
                    yield record.path, record.version
                if record.op == Op.DIRECTORY:
                    pending.append(record.path)
            after = page[-1].path.rpartition(b"/")[2]
