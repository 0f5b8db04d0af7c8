"""Handlers for maintenance: purge, rebuild, fsck; tags; pins of readers."""

from dataclasses import asdict
from typing import Any

import trio

from dieselfs.errors import InvalidInput
from dieselfs.rpc.messages import thrift
from dieselfs.rpc.records import TagRecord
from dieselfs_server.leases.pins import Pin, live_pins, put_pin, remove_pin
from dieselfs_server.maintenance import fsck as checking
from dieselfs_server.maintenance import purge as purging
from dieselfs_server.maintenance import rebuild as rebuilding
from dieselfs_server.service import Reply, Service
from dieselfs_server.users import Caller, Right

GRACE_S_MAX = 1 << 40
TIME_S_MAX = 0xFFFF_FFFF
LEASE_S_MAX = 3600
HOLDER_CHARACTERS_MAX = 200


async def purge(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    right = Right.READ if arguments.is_dry_run else Right.ADMIN
    dataset = await service.dataset(caller, arguments.dataset, right)
    if not 0 <= arguments.grace_s < GRACE_S_MAX:
        raise InvalidInput(f"grace time of {arguments.grace_s} s is out of range (0 to {GRACE_S_MAX - 1})")
    report = await trio.to_thread.run_sync(
        purging.purge,
        service.backends.store,
        service.backends.metadata,
        dataset,
        service.backends.tags,
        service.now_ns(),
        arguments.grace_s,
        arguments.is_dry_run,
    )
    return Reply(thrift.PurgeReport(**asdict(report)))


async def rebuild(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    dataset_id = await service.dataset_id(caller, arguments.dataset, Right.ADMIN)
    if not -1 <= arguments.since_s <= TIME_S_MAX:
        raise InvalidInput(f"time {arguments.since_s} is out of range (-1 to {TIME_S_MAX})")
    report = await trio.to_thread.run_sync(
        rebuilding.rebuild,
        service.backends.store,
        service.backends.metadata,
        arguments.dataset,
        dataset_id,
        service.now_ns(),
        None if arguments.since_s < 0 else arguments.since_s,
    )
    return Reply(thrift.RebuildReport(**asdict(report)))


async def fsck(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    right = Right.ADMIN if arguments.is_repair else Right.READ
    dataset = await service.dataset(caller, arguments.dataset, right)
    report = await trio.to_thread.run_sync(
        checking.fsck,
        service.backends.store,
        service.backends.metadata,
        service.backends.snapshots,
        dataset,
        service.backends.scratch,
        service.now_ns(),
        arguments.is_deep,
        arguments.is_repair,
    )
    return Reply(
        thrift.FsckReport(
            chunks=report.chunks,
            entries=report.entries,
            total_bytes=report.total_bytes,
            problem_count=report.problem_count,
            unmended_count=report.unmended_count,
            problems=[thrift.Problem(**asdict(problem)) for problem in report.problems],
        )
    )


async def put_tag(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    dataset = await service.dataset(caller, arguments.dataset, Right.WRITE)
    await trio.to_thread.run_sync(service.catalog.check_built, dataset, service.now_ns())
    snapshot = await service.backends.snapshots.get(dataset, arguments.generation)
    return Reply(_tag_info(await trio.to_thread.run_sync(service.backends.tags.add, snapshot, arguments.tag)))


async def list_tags(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    dataset_id = await service.dataset_id(caller, arguments.dataset, Right.READ)
    tags = await trio.to_thread.run_sync(service.backends.tags.all, arguments.dataset, dataset_id)
    return Reply([_tag_info(tag) for tag in tags])


async def delete_tag(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    dataset_id = await service.dataset_id(caller, arguments.dataset, Right.WRITE)
    await trio.to_thread.run_sync(service.backends.tags.remove, arguments.dataset, dataset_id, arguments.tag)
    return Reply()


async def pin(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    dataset = await service.dataset(caller, arguments.dataset, Right.READ)
    if not 0 <= arguments.lease_s <= LEASE_S_MAX:
        raise InvalidInput(f"lease of {arguments.lease_s} s is out of range (0 to {LEASE_S_MAX})")
    holder = f"{caller.name}/{arguments.holder}"  # so a user cannot remove another user's pin
    if len(holder) > HOLDER_CHARACTERS_MAX or not holder.isprintable():
        raise InvalidInput(
            f"the holder of a pin must be printable, with at most {HOLDER_CHARACTERS_MAX} characters"
        )
    now_ns = service.now_ns()
    if arguments.lease_s:
        lease_ns = arguments.lease_s * 10**9
        record = Pin(holder, arguments.generation, arguments.updated_ns, now_ns + lease_ns)
        await trio.to_thread.run_sync(put_pin, service.backends.metadata, dataset.dataset_id, record)
    else:
        await trio.to_thread.run_sync(remove_pin, service.backends.metadata, dataset.dataset_id, holder)
    return Reply()


async def list_pins(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    dataset_id = await service.dataset_id(caller, arguments.dataset, Right.READ)
    pins = await trio.to_thread.run_sync(live_pins, service.backends.metadata, dataset_id, service.now_ns())
    return Reply(
        [
            thrift.PinInfo(holder=pin.holder, generation=pin.generation, expires_ns=pin.expires_ns)
            for pin in pins
        ]
    )


def _tag_info(tag: TagRecord) -> Any:
    return thrift.TagInfo(**asdict(tag))
