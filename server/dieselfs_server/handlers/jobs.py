"""Handlers for jobs: a caller with the right to read a dataset may join a job that reads it."""

from typing import Any

import trio

from dieselfs.cluster.member import Member, check_job_name
from dieselfs.cluster.secret import FINGERPRINT_BYTES
from dieselfs.errors import InvalidInput
from dieselfs.limits import SEAL_BYTES
from dieselfs.rpc.members import encode_members
from dieselfs.rpc.messages import thrift
from dieselfs_server.leases.job_members import DIGEST_BYTES, JobMembers, JoinRequest
from dieselfs_server.service import Reply, Service
from dieselfs_server.users import Caller, Right


async def join_job(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    job_members = await _job_members(service, caller, arguments)
    if len(arguments.digest) != DIGEST_BYTES:
        raise InvalidInput(f"a snapshot digest of {len(arguments.digest)} bytes; it must have {DIGEST_BYTES}")
    if arguments.generation < 0 or arguments.known_version < 0:
        raise InvalidInput("a negative generation or membership version")
    request = JoinRequest(
        arguments.member,
        Member.of(arguments.member[SEAL_BYTES:]).node,
        arguments.generation,
        arguments.digest,
        arguments.known_version,
    )
    answer = await trio.to_thread.run_sync(job_members.renew, request, service.now_ns())
    if answer is None:
        answer = await trio.to_thread.run_sync(
            lambda: job_members.admit(request, service.now_ns()), limiter=service.admissions
        )
    members = encode_members(answer.members or ())
    interval_ms = int(answer.interval_s * 1000)
    info = thrift.MembershipInfo(version=answer.version, interval_ms=interval_ms, bulk_length=len(members))
    return Reply(info, [members])


async def leave_job(service: Service, caller: Caller, arguments: Any, _: object) -> Reply:
    job_members = await _job_members(service, caller, arguments)
    node = Member.of(arguments.member[SEAL_BYTES:]).node
    await trio.to_thread.run_sync(job_members.remove, arguments.member, node, limiter=service.admissions)
    return Reply()


async def _job_members(service: Service, caller: Caller, arguments: Any) -> JobMembers:
    dataset = await service.dataset(caller, arguments.dataset, Right.READ)
    if len(arguments.fingerprint) != FINGERPRINT_BYTES:
        raise InvalidInput(
            f"a job fingerprint of {len(arguments.fingerprint)} bytes; it must have {FINGERPRINT_BYTES}"
        )
    job = check_job_name(arguments.job)
    return JobMembers(service.backends.metadata, dataset.dataset_id, job, arguments.fingerprint)
