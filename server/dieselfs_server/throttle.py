"""Slows users down to their rates. This module waits; a call that waits never fails for it.

Clients give up on a server that is silent, and on bulk bytes that are too slow. So no wait before a call is longer than
REQUEST_WAIT_S_MAX, and bytes of a connection always move at SLOWEST_BYTES_PER_S. With so many connections that this is
more than the rate, a user gets more than the rate.
"""

import trio

from dieselfs.limits import LEAST_RATE_BYTES_PER_S, SERVER_SILENCE_S
from dieselfs.metrics import Registry
from dieselfs.rpc.serving.connection import Pace
from dieselfs_server.accounts import Caller, Rate
from dieselfs_server.rates import Rates
from dieselfs_server.users import UserStore

REQUEST_WAIT_S_MAX = 8.0
SLOWEST_BYTES_PER_S = 2 * LEAST_RATE_BYTES_PER_S
UNTHROTTLED = frozenset(("join_job", "leave_job", "pin"))
"""Methods that renew leases, in time."""

assert REQUEST_WAIT_S_MAX < SERVER_SILENCE_S


class Throttle:
    """For one event loop."""

    def __init__(self, users: UserStore, metrics: Registry) -> None:
        self._users = users
        self._rates = Rates()
        self._waited_s = metrics.counter("rates.waited_s", "Time that calls of users waited for their rates.")
        self._waits = metrics.counter("rates.waits", "Pauses of calls of users, for their rates.")

    def joined(self, caller: Caller, host: str, dataset: str, job: str) -> None:
        """A node of the caller, at `host`, is a member of a job."""
        self._rates.join(caller.name, host, dataset, job, trio.current_time())

    async def before_call(self, caller: Caller, method: str) -> None:
        rate = self._rate(caller)
        if rate is not None and method not in UNTHROTTLED:
            wait_s = self._rates.request_wait_s(caller.name, rate, trio.current_time())
            await self._wait(min(wait_s, REQUEST_WAIT_S_MAX))

    def pace(self, caller: Caller, host: str, dataset: str) -> Pace | None:
        """How the bulk bytes of a call are moved; None for a caller without a limit."""
        rate = self._rate(caller)
        if rate is None or (rate.bytes_per_s is None and rate.job_bytes_per_s is None):
            return None
        job = self._rates.job_of(caller.name, host, dataset, trio.current_time())

        async def wait(length_bytes: int) -> None:
            now_s = trio.current_time()
            wait_s = self._rates.bytes_wait_s(caller.name, job, rate, length_bytes, now_s)
            await self._wait(min(wait_s, length_bytes / SLOWEST_BYTES_PER_S))

        return wait

    def _rate(self, caller: Caller) -> Rate | None:
        return None if caller.is_trusted else self._users.latest.rate_of(caller.name)

    async def _wait(self, wait_s: float) -> None:
        if wait_s > 0:
            self._waited_s.value += wait_s
            self._waits.value += 1
            await trio.sleep(wait_s)
