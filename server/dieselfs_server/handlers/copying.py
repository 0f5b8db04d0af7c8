"""Handler for copies inside the servers, also for moves: a copy, and then a deletion."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from secrets import token_hex

import trio

from dieselfs.errors import DieselfsError, InvalidInput, NotFound, Unavailable
from dieselfs.limits import LISTING_BYTES_MAX, REPORT_LINES_MAX
from dieselfs.names import check_path, printable, split_path
from dieselfs.records import DatasetRecord, FileRecord, Op
from dieselfs.rpc.records import CopyReport, CopyRequest, Existing
from dieselfs.rpc.serving.keep_alive import accompanied
from dieselfs.snapshot.reader import Snapshot
from dieselfs_server.access.accounts import Right
from dieselfs_server.copying.copy_plan import CopyPlan, check_request, is_selected, plan_copy
from dieselfs_server.copying.entry_snapshot import entry_snapshot
from dieselfs_server.copying.tree_copy import TreeCopy, delete_moved, entry_versions
from dieselfs_server.leases.pins import Pin, put_pin_of, remove_pin
from dieselfs_server.metadata.rules import implicit_folder
from dieselfs_server.service import Call, Service

COPY_WAIT_S = 60.0
"""A copy waits this long for others to end, if the server runs as many as it may."""

PIN_S, PIN_RENEWAL_S = 600, 200.0
"""Lease of the pin of a copied generation, and how often it is renewed."""


async def copy_entries(call: Call) -> CopyReport:
    request = _request(call)
    source = await call.dataset()
    target = await _target(call, request)
    check_request(request)
    async with _place(call.service):
        copy = _Copy(call, request, source, target)
        return await copy.run()


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


@asynccontextmanager
async def _place(service: Service) -> AsyncIterator[None]:
    """One of the places of copies. Raises Unavailable if none is free in time."""
    with trio.move_on_after(COPY_WAIT_S) as wait:
        await service.copies.acquire()
    if wait.cancelled_caught:
        raise Unavailable("this server runs as many copies as it may; try again when one has ended")
    try:
        yield
    finally:
        service.copies.release()


class _Copy:
    def __init__(
        self, call: Call, request: CopyRequest, source: DatasetRecord, target: DatasetRecord
    ) -> None:
        self._call = call
        self._service = call.service
        self._request = request
        self._source = source
        self._target = target

    async def run(self) -> CopyReport:
        service, request = self._service, self._request
        versions: dict[bytes, int] = {}
        if request.is_move:
            # Before the content is looked up, so what is written in between has larger versions, and stays.
            versions = await trio.to_thread.run_sync(self._versions)
            self._source = await self._call.dataset()
            self._target = await _target(self._call, request)
        plan = await self._plan()
        if request.is_dry_run:
            return _planned(plan, self._target)
        copy = TreeCopy(service, self._source, self._target, plan)
        self._call.progress = lambda: copy.progress
        await self._pinned(plan.source, copy.run)
        deleted = await delete_moved(service, self._source, plan, versions)
        order = plan.order
        return CopyReport(order.entries, order.total_bytes, plan.skipped, deleted, copy.generation)

    def _versions(self) -> dict[bytes, int]:
        metadata, dataset_id = self._service.metadata, self._source.dataset_id
        found = dict(entry_versions(metadata, dataset_id, self._request.path))
        # So that no copy has the version of a deletion, even if versions are ahead of the clock.
        metadata.reserve_versions(dataset_id, 1, self._service.now_ns())
        return found

    async def _plan(self) -> CopyPlan:
        service, request, source, target = self._service, self._request, self._source, self._target
        for dataset in filter(lambda dataset: dataset.dataset_id, (source, target)):
            await trio.to_thread.run_sync(service.catalog.check_built, dataset, service.now_ns())
        entry = None
        if request.tag:
            async with service.tag_reads:
                tree = await trio.to_thread.run_sync(
                    service.tags.get, source.name, source.dataset_id, request.tag
                )
        else:
            entry = await trio.to_thread.run_sync(self._find, source, request.path)
            if entry is None:
                raise NotFound(f"dl://{source.name}/{printable(request.path)}: no such file or folder")
            is_folder = entry.op == Op.DIRECTORY
            tree = await service.snapshots.get(source) if is_folder else entry_snapshot(source, entry)
        await trio.to_thread.run_sync(self._check_folders_above)
        there = await trio.to_thread.run_sync(self._find, target, request.target_path)
        existing = None
        if there is not None:
            is_folder = tree.stat(tree.require(request.path)).is_folder and there.op == Op.DIRECTORY
            existing = await service.snapshots.get(target) if is_folder else entry_snapshot(target, there)
        if not request.selection:
            return await trio.to_thread.run_sync(plan_copy, tree, existing, request)
        seen = tree if request.tag else await service.snapshots.get(source, request.generation)
        wanted = is_selected(seen, request.selection)
        return await trio.to_thread.run_sync(plan_copy, tree, existing, request, wanted)

    def _find(self, dataset: DatasetRecord, path: bytes) -> FileRecord | None:
        """The entry at `path`; None without one."""
        metadata, dataset_id = self._service.metadata, dataset.dataset_id
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
        service, dataset_id, user = self._service, self._source.dataset_id, self._call.caller.name
        holder = f"{user}/copy to {self._target.name} ({token_hex(4)})"
        generation = snapshot.generation, snapshot.header.updated_ns

        async def pin() -> None:
            now_ns = service.now_ns()
            record = Pin(holder, *generation, now_ns + PIN_S * 10**9)
            put = partial(put_pin_of, service.metadata, dataset_id, user, record, now_ns)
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
                await trio.to_thread.run_sync(remove_pin, service.metadata, dataset_id, holder)


def _planned(plan: CopyPlan, target: DatasetRecord) -> CopyReport:
    """The report of a dry run."""
    order, paths, left_bytes = plan.order, [], LISTING_BYTES_MAX
    for kind in (order.folders, order.links, order.empty_files, order.owners):
        for path in map(plan.new_path, kind[:REPORT_LINES_MAX].tolist()):
            left_bytes -= len(path)
            if left_bytes > 0:
                paths.append(path)
    distinct = tuple(sorted(dict.fromkeys(paths))[:REPORT_LINES_MAX])
    return CopyReport(
        order.entries, order.total_bytes, plan.skipped, len(plan.moved), target.generation, distinct
    )
