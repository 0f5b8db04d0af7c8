"""Jobs: who reads a dataset may join a job that reads it, and hears who else is in it."""

from functools import partial
from typing import Any

import trio

from dieselfs.cache.member import Member, check_job_name
from dieselfs.cache.roll import encode_members
from dieselfs.cache.secret import FINGERPRINT_BYTES, SEAL_BYTES
from dieselfs.errors import InvalidInput
from dieselfs.rpc.messages import thrift
from dieselfs_server.job_roll import DIGEST_BYTES, Application, JobRoll
from dieselfs_server.service import Reply, Service, handler
from dieselfs_server.users import Caller, Right


@handler
async def join_job(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    roll = await _roll(service, caller, arguments)
    if len(arguments.digest) != DIGEST_BYTES:
        raise InvalidInput(f"the digest of a snapshot has {DIGEST_BYTES} bytes")
    if arguments.generation < 0 or arguments.known_version < 0:
        raise InvalidInput("generations and versions of rolls are not negative")
    application = Application(
        arguments.member,
        Member.of(arguments.member[SEAL_BYTES:]).node,
        arguments.generation,
        arguments.digest,
        arguments.known_version,
    )
    told = await trio.to_thread.run_sync(roll.renew, application, service.now_ns())
    if told is None:
        told = await trio.to_thread.run_sync(
            lambda: roll.admit(application, service.now_ns()), limiter=service.admissions
        )
    members = encode_members(told.members or ())
    return Reply(
        thrift.RollInfo(
            version=told.version, interval_ms=int(told.interval_s * 1000), bulk_length=len(members)
        ),
        [members],
    )


@handler
async def leave_job(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    roll = await _roll(service, caller, arguments)
    dismiss = partial(roll.dismiss, arguments.member, Member.of(arguments.member[SEAL_BYTES:]).node)
    await trio.to_thread.run_sync(dismiss, limiter=service.admissions)
    return Reply()


async def _roll(service: Service, caller: Caller, arguments: Any) -> JobRoll:
    dataset = await service.dataset(caller, arguments.dataset, Right.READ)
    if len(arguments.fingerprint) != FINGERPRINT_BYTES:
        raise InvalidInput(f"the fingerprint of a job has {FINGERPRINT_BYTES} bytes")
    job = check_job_name(arguments.job)
    return JobRoll(service.backends.metadata, dataset.dataset_id, job, arguments.fingerprint)
