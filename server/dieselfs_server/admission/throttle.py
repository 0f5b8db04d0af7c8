"""Slows users down to their rates. This module waits; a call that waits never fails for it.

Clients abandon a server that is silent, and a transfer that is too slow. So no wait before a reply is longer than
REQUEST_WAIT_S_MAX, and bytes of a connection always move at SLOWEST_BYTES_PER_S. A user with many connections can
therefore exceed the rate: it is at least SLOWEST_BYTES_PER_S for each of them.

Rates are token buckets. A bucket fills at its rate up to what the rate gives in a second. Who takes more than there is
waits until the debt is paid; each later one waits longer, so all connections of a user take turns. Users have buckets
of their own, so one who waits holds up nobody else. A call belongs to a job if a node on the same machine has joined it
for the dataset.
"""

import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from dieselfs.limits import JOB_ANSWER_TIMEOUT_S, LEAST_RATE_BYTES_PER_S, SERVER_SILENCE_S
from dieselfs.rpc.limit_kinds import RATES, Limits
from dieselfs.rpc.methods import METHODS, RENEWAL
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry
from dieselfs_server.access.accounts import Caller
from dieselfs_server.access.users import UserStore
from dieselfs_server.shared_table import KEY_BYTES, SharedTable, key_of, least

BURST_S = 1.0
BUCKETS_MAX = JOBS_MAX = 16_384
MEMBERSHIP_S = 120.0
"""Members renew far more often."""


@dataclass(eq=False, slots=True)
class TokenBucket:
    """Times are in seconds, and do not fall."""

    rate: float
    level: float
    now_s: float

    def take(self, amount: float, rate: float, now_s: float) -> float:
        """Take this much at a rate that may have changed; returns the seconds to wait, 0 if there was enough."""
        self.fill(rate, now_s)
        self.level -= amount
        return max(-self.level / rate, 0.0)

    def fill(self, rate: float, now_s: float) -> None:
        self.level = min(self.level + (now_s - self.now_s) * self.rate, rate * BURST_S)
        self.rate, self.now_s = rate, now_s


_BUCKET = struct.Struct("<ddd")
_MEMBER = struct.Struct(f"<{KEY_BYTES}sd")


class Rates:
    """The buckets of a server, in memory that all of its processes share: a user has one rate, whichever of them
    answers. For one thread of each. Of many buckets, the fullest gives way, which costs its user least.
    """

    def __init__(self, clock: Callable[[], float] = trio.current_time) -> None:
        """`clock` is in seconds; several processes need one that is the same in all of them, which trio's is not."""
        self._clock = clock
        self._buckets = SharedTable(BUCKETS_MAX, _BUCKET.size)
        self._members = SharedTable(JOBS_MAX, _MEMBER.size)

    def join(self, user: str, host: str, dataset: str, job: str) -> None:
        """A node of a job reads `dataset` on the machine `host`."""
        member = _MEMBER.pack(key_of(job), self._clock() + MEMBERSHIP_S)
        self._members.change(key_of(user, host, dataset), lambda _: member, least(_until_s))

    def job_of(self, user: str, host: str, dataset: str) -> str | None:
        """A digest of the name of the job."""
        found = self._members.get(key_of(user, host, dataset))
        if found is None or self._clock() >= _until_s(found):
            return None
        digest: bytes = _MEMBER.unpack(found)[0]
        return digest.hex()

    def request_wait_s(self, user: str, job: str | None, rate: Limits) -> float:
        return self._wait_s(user, job, rate, 1, False)

    def bytes_wait_s(self, user: str, job: str | None, rate: Limits, length_bytes: int) -> float:
        return self._wait_s(user, job, rate, length_bytes, True)

    def _wait_s(self, user: str, job: str | None, rate: Limits, amount: int, is_bytes: bool) -> float:
        """Charge the rates of bytes, or those of requests; the longest wait."""
        wait_s = 0.0
        for kind in RATES:
            if kind.is_bytes != is_bytes or kind.name not in rate or (kind.is_per_job and job is None):
                continue
            key = (kind.name, user, job or "") if kind.is_per_job else (kind.name, user)
            wait_s = max(wait_s, self._take(key_of(*key), amount, rate[kind.name]))
        return wait_s

    def _take(self, key: bytes, amount: float, rate: int) -> float:
        now_s, wait_s = self._clock(), 0.0

        def taken(found: bytes | None) -> bytes:
            nonlocal wait_s
            bucket = (
                TokenBucket(*_BUCKET.unpack(found)) if found else TokenBucket(rate, rate * BURST_S, now_s)
            )
            wait_s = bucket.take(amount, rate, now_s)
            return _BUCKET.pack(bucket.rate, bucket.level, bucket.now_s)

        self._buckets.change(key, taken, least(lambda found: _debt_s(found, now_s)))
        return wait_s


def _until_s(member: bytes) -> float:
    until_s: float = _MEMBER.unpack(member)[1]
    return until_s


def _debt_s(bucket: bytes, now_s: float) -> float:
    """How long until a bucket has paid what it owes, in seconds; less than 0 if it owes nothing."""
    found = TokenBucket(*_BUCKET.unpack(bucket))
    found.fill(found.rate, now_s)
    return -found.level / found.rate


REQUEST_WAIT_S_MAX = 8.0
SLOWEST_BYTES_PER_S = 2 * LEAST_RATE_BYTES_PER_S
RENEWAL_WAIT_S_MAX = 1.0
"""Limit for calls that renew leases."""

assert RENEWAL_WAIT_S_MAX < JOB_ANSWER_TIMEOUT_S
assert REQUEST_WAIT_S_MAX < SERVER_SILENCE_S


class Throttle:
    """For one event loop."""

    def __init__(self, users: UserStore, metrics: Registry, rates: Rates | None = None) -> None:
        self._users = users
        self._rates = rates or Rates()
        self._waited_s = metrics.declare(catalogue.RATES_WAITED_S)
        self._waits = metrics.counter("rates.waits", "Pauses of calls of users, for their rates.")

    def joined(self, caller: Caller, host: str, dataset: str, job: str) -> None:
        """A node of the caller, at `host`, is a member of a job."""
        self._rates.join(caller.name, host, dataset, job)

    def call(
        self, caller: Caller, method: str, host: str, dataset: str, message_bytes: int = 0
    ) -> "PacedCall | None":
        """A call, by a message of this length, of a user with a rate; None for others."""
        rate = None if caller.is_trusted else self._users.latest.rate_of(caller.name)
        if rate is None:
            return None
        job = self._rates.job_of(caller.name, host, dataset)
        patience_s = RENEWAL_WAIT_S_MAX if METHODS[method].urgency == RENEWAL else REQUEST_WAIT_S_MAX
        return PacedCall(self._rates, caller.name, job, rate, self._wait, patience_s, message_bytes)

    async def _wait(self, wait_s: float) -> None:
        if wait_s > 0:
            self._waited_s.value += wait_s
            self._waits.value += 1
            await trio.sleep(wait_s)


@dataclass(eq=False, slots=True)
class PacedCall:
    """Waits for the rate of a call's user: before the call, before memory is taken for its bytes, and while they move.

    So calls wait without memory, as long as their clients are patient. For one task.
    """

    rates: Rates
    user: str
    job: str | None
    rate: Limits
    wait: Callable[[float], Awaitable[None]]
    patience_s: float
    """How long the client may yet wait for the first byte."""
    message_bytes: int
    """Length of the call's message, without bulk bytes."""
    _announced_bytes: int = 0
    _owed_s: float = 0.0
    """The rest of the wait for the announced bytes."""

    async def begin(self) -> None:
        await self._pause(self.rates.request_wait_s(self.user, self.job, self.rate))
        await self.reply(self.message_bytes)

    async def reply(self, message_bytes: int) -> None:
        """Before the message of a reply, which may have a small file in it; bulk bytes come after it."""
        await self._pause(min(self._take(message_bytes), message_bytes / SLOWEST_BYTES_PER_S))

    async def announce(self, length_bytes: int) -> None:
        """Before the memory for bulk bytes is taken."""
        self._announced_bytes += length_bytes
        self._owed_s += await self._pause(self._take(length_bytes))

    async def move(self, length_bytes: int) -> None:
        """Before, or after, as many bulk bytes are moved."""
        announced = min(length_bytes, self._announced_bytes)
        wait_s = self._owed_s * announced / self._announced_bytes if announced else 0.0
        self._announced_bytes -= announced
        self._owed_s -= wait_s
        if length_bytes > announced:
            wait_s += self._take(length_bytes - announced)
        await self.wait(min(wait_s, length_bytes / SLOWEST_BYTES_PER_S))

    def _take(self, length_bytes: int) -> float:
        return self.rates.bytes_wait_s(self.user, self.job, self.rate, length_bytes)

    async def _pause(self, wait_s: float) -> float:
        """Wait, but not longer than the client; returns what is left."""
        now_s = min(wait_s, self.patience_s)
        self.patience_s -= now_s
        await self.wait(now_s)
        return wait_s - now_s
