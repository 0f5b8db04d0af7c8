"""Slows users down to their rates. This module waits; a call that waits never fails for it.

Clients abandon a server that is silent, and a transfer that is too slow. So no wait before a reply is longer
than REQUEST_WAIT_S_MAX, and bytes of a connection always move at SLOWEST_BYTES_PER_S. A user with many connections can
therefore exceed the rate: it is at least SLOWEST_BYTES_PER_S for each of them.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from dieselfs.limits import JOB_ANSWER_TIMEOUT_S, LEAST_RATE_BYTES_PER_S, SERVER_SILENCE_S
from dieselfs.rpc.limit_kinds import Limits
from dieselfs.rpc.methods import METHODS, RENEWAL
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry
from dieselfs_server.access.accounts import Caller
from dieselfs_server.access.users import UserStore
from dieselfs_server.admission.rates import Rates

REQUEST_WAIT_S_MAX = 8.0
SLOWEST_BYTES_PER_S = 2 * LEAST_RATE_BYTES_PER_S
RENEWAL_WAIT_S_MAX = 1.0
"""Limit for calls that renew leases."""

assert RENEWAL_WAIT_S_MAX < JOB_ANSWER_TIMEOUT_S
assert REQUEST_WAIT_S_MAX < SERVER_SILENCE_S


class Throttle:
    """For one event loop."""

    def __init__(self, users: UserStore, metrics: Registry) -> None:
        self._users = users
        self._rates = Rates()
        self._waited_s = metrics.declare(catalogue.RATES_WAITED_S)
        self._waits = metrics.counter("rates.waits", "Pauses of calls of users, for their rates.")

    def joined(self, caller: Caller, host: str, dataset: str, job: str) -> None:
        """A node of the caller, at `host`, is a member of a job."""
        self._rates.join(caller.name, host, dataset, job, trio.current_time())

    def call(
        self, caller: Caller, method: str, host: str, dataset: str, message_bytes: int = 0
    ) -> "PacedCall | None":
        """A call, by a message of this length, of a user with a rate; None for others."""
        rate = None if caller.is_trusted else self._users.latest.rate_of(caller.name)
        if rate is None:
            return None
        job = self._rates.job_of(caller.name, host, dataset, trio.current_time())
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
        await self._pause(self.rates.request_wait_s(self.user, self.job, self.rate, trio.current_time()))
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
        return self.rates.bytes_wait_s(self.user, self.job, self.rate, length_bytes, trio.current_time())

    async def _pause(self, wait_s: float) -> float:
        """Wait, but not longer than the client; returns what is left."""
        now_s = min(wait_s, self.patience_s)
        self.patience_s -= now_s
        await self.wait(now_s)
        return wait_s - now_s
