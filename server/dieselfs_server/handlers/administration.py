"""Handlers for datasets as a whole, their tags and maintenance, and for the server's status."""

import json
import logging
import secrets
from collections.abc import Sequence
from dataclasses import asdict

import trio

from dieselfs import __version__
from dieselfs.errors import AlreadyExists, InvalidInput, Unavailable
from dieselfs.fields import DATASET_ID_BYTES
from dieselfs.names import printable
from dieselfs.records import DatasetRecord
from dieselfs.rpc.records import (
    AttachedRecord,
    DetachReport,
    FsckReport,
    PageLink,
    PurgeReport,
    RebuildReport,
    ServerCheck,
    ServerStatus,
    TagRecord,
)
from dieselfs.telemetry.activity import SERVER_METRICS
from dieselfs.telemetry.registry import Report
from dieselfs_server import condition
from dieselfs_server.access.accounts import Accounts, Right, with_owner
from dieselfs_server.maintenance import attachments
from dieselfs_server.maintenance import fsck as checking
from dieselfs_server.maintenance import purge as purging
from dieselfs_server.maintenance import rebuild as rebuilding
from dieselfs_server.service import Call, PageHost, Service

GRACE_S_MAX = 1 << 40
TIME_S_MAX = 0xFFFF_FFFF

log = logging.getLogger(__name__)

# -- datasets --------------------------------------------------------------------------------------------


async def create_dataset(call: Call) -> DatasetRecord:
    name = call.arguments.name
    await call.require_right()
    owner = "" if call.caller.is_trusted else call.caller.name
    return await trio.to_thread.run_sync(_create, call.service, name, owner)


def _create(service: Service, name: str, owner: str) -> DatasetRecord:
    """Raises AlreadyExists, and Unavailable if the dataset has lost its metadata. Blocks."""
    if service.catalog.dataset(name) is not None:
        raise AlreadyExists(f"dataset {name!r} exists already")
    # The name first: a crash after it leaves a name without a dataset, which the next call continues.
    asked_id = secrets.token_bytes(DATASET_ID_BYTES)
    dataset_id = service.names_of_datasets.claim(name, asked_id)
    if dataset_id == asked_id:  # so a crash leaves no dataset without an owner
        _own(service, name, owner, is_kept=True)
    dataset = service.metadata.create_dataset(name, dataset_id)
    _own(service, name, owner)  # of several calls for one name, the one that made the dataset decides
    return dataset


def _own(service: Service, name: str, owner: str, is_kept: bool = False) -> None:
    """Set the owner of a dataset, empty for none; not if there `is_kept` one."""

    def owned(accounts: Accounts) -> Accounts:
        return accounts if is_kept and name in accounts.owners else with_owner(accounts, name, owner)

    if (owner or service.users.current().users) and service.users.change(owned):
        service.quotas.announce()


async def get_dataset(call: Call) -> DatasetRecord:
    return await call.dataset()


async def list_datasets(call: Call) -> Sequence[DatasetRecord]:
    datasets = await trio.to_thread.run_sync(call.service.metadata.datasets)
    return [dataset for dataset in datasets if await call.right(dataset.name) >= Right.READ]


async def list_lost_datasets(call: Call) -> Sequence[str]:
    names = await trio.to_thread.run_sync(call.service.catalog.lost_datasets)
    return [name for name in names if await call.right(name) >= Right.READ]


async def drop_dataset(call: Call) -> None:
    dataset = await call.dataset()
    service = call.service

    def drop() -> None:
        # Chunks first: if the record were removed first, a crash would leave chunks that no dataset refers to.
        service.store.delete_dataset(dataset.dataset_id)
        _own(service, dataset.name, "")  # while nobody else can have the name
        service.names_of_datasets.release(dataset.name, dataset.dataset_id)
        service.metadata.drop_dataset(dataset.dataset_id)
        service.traffic.forget(dataset.name)
        service.store.delete_dataset(dataset.dataset_id)  # chunks of puts that were in flight
        service.snapshots.drop(dataset.dataset_id)
        service.tags.drop(dataset.dataset_id)

    await trio.to_thread.run_sync(drop)
    service.shared.forget(dataset.dataset_id)
    log.info("dataset %s dropped by %s", dataset.name, call.caller.name)


# -- tags ------------------------------------------------------------------------------------------------


async def put_tag(call: Call) -> TagRecord:
    dataset, service = await call.dataset(), call.service
    await trio.to_thread.run_sync(service.catalog.check_built, dataset, service.now_ns())
    snapshot = await service.snapshots.get(dataset, call.arguments.generation)
    return await trio.to_thread.run_sync(service.tags.add, snapshot, call.arguments.tag)


async def list_tags(call: Call) -> Sequence[TagRecord]:
    dataset_id, service = await call.dataset_id(), call.service
    kept: list[TagRecord] = []
    if call.arguments.with_kept:
        kept = await trio.to_thread.run_sync(service.snapshots.generations, dataset_id)
    async with service.tag_reads:
        return kept + await trio.to_thread.run_sync(service.tags.all, call.arguments.dataset, dataset_id)


async def delete_tag(call: Call) -> None:
    dataset_id, arguments = await call.dataset_id(), call.arguments
    await trio.to_thread.run_sync(call.service.tags.remove, arguments.dataset, dataset_id, arguments.tag)


# -- maintenance -----------------------------------------------------------------------------------------


async def purge(call: Call) -> PurgeReport:
    service, arguments = call.service, call.arguments
    dataset = await call.dataset()
    if not 0 <= arguments.grace_s < GRACE_S_MAX:
        raise InvalidInput(f"grace time of {arguments.grace_s} s is out of range (0 to {GRACE_S_MAX - 1})")
    return await service.maintenance.run(
        dataset.dataset_id,
        f"purge of {dataset.name}",
        lambda proceed: purging.purge(
            service.store,
            service.metadata,
            dataset,
            service.tags,
            service.now_ns(),
            arguments.grace_s,
            arguments.is_dry_run,
            proceed,
        ),
        call.show_progress,
    )


async def list_attached(call: Call) -> Sequence[AttachedRecord]:
    service, after = call.service, call.arguments.after
    dataset = await call.dataset()  # it names files of the server
    return await service.maintenance.run(
        dataset.dataset_id,
        f"list of the sources of {dataset.name}",
        lambda proceed: attachments.list_attached(
            service.store,
            service.metadata,
            dataset.dataset_id,
            after,
            lambda source: service.sources.open(source).close(),
            proceed,
        ),
    )


async def detach(call: Call) -> DetachReport:
    service, location = call.service, call.arguments.location
    call.audited["source"] = printable(location)
    dataset = await call.dataset()
    return await service.maintenance.run(
        dataset.dataset_id,
        f"detach from {dataset.name}",
        lambda proceed: attachments.detach(
            service.store, service.metadata, dataset, location, service.now_ns(), service.ids, proceed
        ),
    )


async def copy_attached(call: Call) -> int:
    service, is_dry_run = call.service, call.arguments.is_dry_run
    dataset = await call.dataset()
    return await service.maintenance.run(
        dataset.dataset_id,
        f"purge --copy of {dataset.name}",
        lambda proceed: purging.copy_attached(
            service.store, service.metadata, dataset, service.now_ns(), is_dry_run, proceed
        ),
        call.show_progress,
    )


async def rebuild(call: Call) -> RebuildReport:
    service, arguments = call.service, call.arguments
    dataset_id = await call.dataset_id()
    if not -1 <= arguments.since_s <= TIME_S_MAX:
        raise InvalidInput(f"time {arguments.since_s} is out of range (-1 to {TIME_S_MAX})")
    return await service.maintenance.run(
        dataset_id,
        f"rebuild of {arguments.dataset}",
        lambda proceed: rebuilding.rebuild(
            service.store,
            service.metadata,
            arguments.dataset,
            dataset_id,
            service.now_ns(),
            None if arguments.since_s < 0 else arguments.since_s,
            proceed,
        ),
        call.show_progress,
    )


async def fsck(call: Call) -> FsckReport:
    service, arguments = call.service, call.arguments
    dataset = await call.dataset()
    return await service.maintenance.run(
        dataset.dataset_id,
        f"fsck of {dataset.name}",
        lambda proceed: checking.fsck(
            service.store,
            service.metadata,
            service.snapshots,
            service.tags,
            dataset,
            service.scratch,
            service.now_ns(),
            arguments.is_deep,
            arguments.is_repair,
            proceed,
        ),
        call.show_progress,
    )


# -- the server ------------------------------------------------------------------------------------------


async def server_pin(call: Call) -> bytes:
    return call.service.identity.pin


async def status(call: Call) -> ServerStatus:
    service = call.service
    report = Report({"component": "server"}, service.metrics.families(SERVER_METRICS))
    content = json.dumps(asdict(report)).encode()
    return ServerStatus(__version__, service.started_s, *service.names, service.metrics.numbers(), content)


async def check_server(call: Call) -> ServerCheck:
    service = call.service
    if not call.arguments.is_whole:
        return ServerCheck(service.now_ns(), ())
    checks = await trio.to_thread.run_sync(
        condition.checks, service.store, service.metadata, service.surroundings
    )
    return ServerCheck(service.now_ns(), checks)


# -- the web page ----------------------------------------------------------------------------------------


async def open_page(call: Call) -> PageLink:
    return await _page(call.service).open(call.caller, call.arguments.lease_s)


async def keep_page(call: Call) -> None:
    _page(call.service).keep(call.caller, call.arguments.lease_s)


def _page(service: Service) -> PageHost:
    if service.page is None:
        raise Unavailable(
            'this server has no web page; an administrator can set its address: web = "HOST:PORT"'
        )
    return service.page
