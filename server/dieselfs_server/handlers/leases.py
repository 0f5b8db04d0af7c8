"""Handlers for leases: a caller with the right to read a dataset may pin it, or join a job that reads it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from dieselfs.cluster.member import Member, check_job_name
from dieselfs.cluster.node_progress import PROGRESS_BYTES_MAX
from dieselfs.cluster.secret import FINGERPRINT_BYTES
from dieselfs.errors import InvalidInput
from dieselfs.limits import SEAL_BYTES
from dieselfs.rpc.members import encode_members
from dieselfs.rpc.messages import thrift
from dieselfs.rpc.records import PinRecord
from dieselfs_server.call import Call, Reply
from dieselfs_server.leases.lease import (
    DIGEST_BYTES,
    JobMembers,
    JoinRequest,
    Pin,
    live_pins,
    put_pin_of,
    put_progress,
    remove_pin,
    remove_progress,
    shown_pins,
)
from dieselfs_server.metadata.interface import MetadataStore

LEASE_S_MAX = 3600
HOLDER_CHARACTERS_MAX = 200
VERSION_AHEAD_NS = 24 * 3600 * 10**9
"""A version of a membership list may be this far ahead of the clock."""
ADMISSIONS_AT_ONCE_MAX = 1
"""Concurrent changes of membership lists. More would only cause conflicts and retries."""


def _member_name(arguments: Any, node: str) -> str:
    """The name of a member among the leases of its dataset."""
    return f"{arguments.job}/{arguments.fingerprint.hex()}/{node}"


@dataclass(frozen=True, eq=False)
class LeaseCalls:
    metadata: MetadataStore
    admissions: trio.CapacityLimiter = field(
        default_factory=lambda: trio.CapacityLimiter(ADMISSIONS_AT_ONCE_MAX)
    )

    async def pin(self, call: Call) -> None:
        arguments = call.arguments
        dataset = await call.dataset()
        if not 0 <= arguments.lease_s <= LEASE_S_MAX:
            raise InvalidInput(f"lease of {arguments.lease_s} s is out of range (0 to {LEASE_S_MAX})")
        holder = f"{call.caller.name}/{arguments.holder}"  # so a user cannot remove another user's pin
        if len(holder) > HOLDER_CHARACTERS_MAX or not holder.isprintable():
            raise InvalidInput(
                f"the holder of a pin must be printable, with at most {HOLDER_CHARACTERS_MAX} characters"
            )
        if not 0 <= arguments.updated_ns <= dataset.updated_ns:
            raise InvalidInput(
                f"the time {arguments.updated_ns} of a pinned generation is out of range (0 to {dataset.updated_ns})"
            )
        expires_ns = time.time_ns() + arguments.lease_s * 10**9
        if arguments.lease_s:
            record = Pin(holder, arguments.generation, arguments.updated_ns, expires_ns)
            now_ns = time.time_ns()
            await trio.to_thread.run_sync(
                put_pin_of, self.metadata, dataset.dataset_id, call.caller.name, record, now_ns
            )
        else:
            await trio.to_thread.run_sync(remove_pin, self.metadata, dataset.dataset_id, holder)

    async def list_pins(self, call: Call) -> Sequence[PinRecord]:
        dataset_id = await call.dataset_id()
        pins = await trio.to_thread.run_sync(live_pins, self.metadata, dataset_id, time.time_ns())
        seen = shown_pins(pins, call.caller.name, await call.right(call.arguments.dataset))
        return [PinRecord(pin.holder, pin.generation, pin.expires_ns) for pin in seen]

    async def join_job(self, call: Call) -> Reply:
        arguments, job_members = call.arguments, await self._job_members(call)
        if len(arguments.digest) != DIGEST_BYTES:
            raise InvalidInput(
                f"a snapshot digest of {len(arguments.digest)} bytes; it must have {DIGEST_BYTES}"
            )
        if arguments.generation < 0 or arguments.known_version < 0:
            raise InvalidInput("a negative generation or membership version")
        if len(arguments.progress) > PROGRESS_BYTES_MAX:
            raise InvalidInput(
                f"{len(arguments.progress)} bytes about the progress of a node, limit {PROGRESS_BYTES_MAX}"
            )
        node = Member.of(arguments.member[SEAL_BYTES:]).node
        # Versions begin with the time and rise by one: a member that knows a later one would use up all that there are.
        known_version = min(arguments.known_version, time.time_ns() + VERSION_AHEAD_NS)
        request = JoinRequest(arguments.member, node, arguments.generation, arguments.digest, known_version)
        answer = await trio.to_thread.run_sync(job_members.renew, request, time.time_ns())
        if answer is None:
            answer = await trio.to_thread.run_sync(
                lambda: job_members.admit(request, time.time_ns()), limiter=self.admissions
            )
        if arguments.progress:
            told = _member_name(arguments, node), call.caller.name, arguments.progress, time.time_ns()
            await trio.to_thread.run_sync(put_progress, self.metadata, job_members.dataset_id, *told)
        members = encode_members(answer.members or ())
        interval_ms = int(answer.interval_s * 1000)
        info = thrift.MembershipInfo(
            version=answer.version, interval_ms=interval_ms, bulk_length=len(members)
        )
        return Reply(info, [members])

    async def leave_job(self, call: Call) -> None:
        job_members, member = await self._job_members(call), call.arguments.member
        node = Member.of(member[SEAL_BYTES:]).node
        await trio.to_thread.run_sync(job_members.remove, member, node, limiter=self.admissions)
        name = _member_name(call.arguments, node)
        await trio.to_thread.run_sync(remove_progress, self.metadata, job_members.dataset_id, name)

    async def _job_members(self, call: Call) -> JobMembers:
        dataset, fingerprint = await call.dataset(), call.arguments.fingerprint
        if len(fingerprint) != FINGERPRINT_BYTES:
            raise InvalidInput(
                f"a job fingerprint of {len(fingerprint)} bytes; it must have {FINGERPRINT_BYTES}"
            )
        job = check_job_name(call.arguments.job)
        return JobMembers(self.metadata, dataset.dataset_id, job, fingerprint)
