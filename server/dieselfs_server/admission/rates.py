"""Rates of users and of their jobs, as token buckets: how long a call, or its bytes, must wait. No I/O.

A bucket fills at its rate up to what the rate gives in a second. Who takes more than there is waits until the debt is
paid; each later one waits longer, so all connections of a user take turns. Users have buckets of their own, so one
who waits holds up nobody else. A call belongs to a job if a node on the same machine has joined it for the dataset.
"""

from dataclasses import dataclass

from dieselfs.rpc.limit_kinds import RATES, Limits

BURST_S = 1.0
BUCKETS_MAX = 16_384
"""Then those are removed that are full."""
JOBS_MAX = 16_384
"""Then those are removed whose nodes have not renewed their membership."""
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

    @property
    def is_full(self) -> bool:
        return self.level >= self.rate * BURST_S


class Rates:
    """The buckets of a server. For one thread at a time."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, ...], TokenBucket] = {}
        self._jobs: dict[tuple[str, str, str], tuple[str, float]] = {}

    def join(self, user: str, host: str, dataset: str, job: str, now_s: float) -> None:
        """A node of a job reads `dataset` on the machine `host`."""
        if len(self._jobs) >= JOBS_MAX:
            self._jobs = {key: found for key, found in self._jobs.items() if now_s < found[1]}
        if len(self._jobs) < JOBS_MAX:
            self._jobs[user, host, dataset] = job, now_s + MEMBERSHIP_S

    def job_of(self, user: str, host: str, dataset: str, now_s: float) -> str | None:
        job, until_s = self._jobs.get((user, host, dataset), ("", 0.0))
        return job if now_s < until_s else None

    def request_wait_s(self, user: str, job: str | None, rate: Limits, now_s: float) -> float:
        return self._wait_s(user, job, rate, 1, False, now_s)

    def bytes_wait_s(
        self, user: str, job: str | None, rate: Limits, length_bytes: int, now_s: float
    ) -> float:
        return self._wait_s(user, job, rate, length_bytes, True, now_s)

    def _wait_s(
        self, user: str, job: str | None, rate: Limits, amount: int, is_bytes: bool, now_s: float
    ) -> float:
        """Charge the rates of bytes, or those of requests; the longest wait."""
        wait_s = 0.0
        for kind in RATES:
            if kind.is_bytes != is_bytes or kind.name not in rate or (kind.is_per_job and job is None):
                continue
            key = (kind.name, user, job or "") if kind.is_per_job else (kind.name, user)
            wait_s = max(wait_s, self._take(key, amount, rate[kind.name], now_s))
        return wait_s

    def _take(self, key: tuple[str, ...], amount: float, rate: int, now_s: float) -> float:
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._remove_full(now_s)
            bucket = self._buckets[key] = TokenBucket(rate, rate * BURST_S, now_s)
        return bucket.take(amount, rate, now_s)

    def _remove_full(self, now_s: float) -> None:
        for bucket in self._buckets.values():
            bucket.fill(bucket.rate, now_s)
        self._buckets = {key: bucket for key, bucket in self._buckets.items() if not bucket.is_full}
