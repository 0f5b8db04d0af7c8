"""The rates of users, in memory that the workers of a server share: a user has one rate, whichever of them answers."""

import struct
import time
from collections.abc import Callable

from dieselfs_server.admission.throttle import (
    BUCKETS_MAX,
    JOBS_MAX,
    MEMBERSHIP_S,
    Rates,
    TokenBucket,
    full_bucket,
)
from dieselfs_server.workers.shared_table import KEY_BYTES, SharedTable, key_of

_BUCKET = struct.Struct("<ddd")
_MEMBER = struct.Struct(f"<{KEY_BYTES}sd")


class RateTables:
    """Made by the parent."""

    def __init__(self) -> None:
        self.buckets = SharedTable(BUCKETS_MAX, _BUCKET.size)
        self.members = SharedTable(JOBS_MAX, _MEMBER.size)


class SharedRates(Rates):
    """For one thread of each worker. Takes the time from `clock`, which is the same in all of them, while trio's is
    not. Jobs have digests of their names.
    """

    def __init__(self, tables: RateTables, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._tables, self._clock = tables, clock

    def join(self, user: str, host: str, dataset: str, job: str, now_s: float) -> None:
        member = _MEMBER.pack(key_of(job), self._clock() + MEMBERSHIP_S)
        self._tables.members.change(key_of(user, host, dataset), lambda _: member, _until_s)

    def job_of(self, user: str, host: str, dataset: str, now_s: float) -> str | None:
        found = self._tables.members.get(key_of(user, host, dataset))
        if found is None or self._clock() >= _until_s(found):
            return None
        digest: bytes = _MEMBER.unpack(found)[0]
        return digest.hex()

    def _take(self, key: tuple[str, ...], amount: float, rate: int, now_s: float) -> float:
        now_s, wait_s = self._clock(), 0.0

        def taken(found: bytes | None) -> bytes:
            nonlocal wait_s
            bucket = full_bucket(rate, now_s) if found is None else TokenBucket(*_BUCKET.unpack(found))
            wait_s = bucket.take(amount, rate, now_s)
            return _BUCKET.pack(bucket.rate, bucket.level, bucket.now_s)

        self._tables.buckets.change(key_of(*key), taken, lambda found: _debt_s(found, now_s))
        return wait_s


def _until_s(member: bytes) -> float:
    until_s: float = _MEMBER.unpack(member)[1]
    return until_s


def _debt_s(bucket: bytes, now_s: float) -> float:
    """How long until a bucket is full: the fullest gives way, which costs its user least."""
    found = TokenBucket(*_BUCKET.unpack(bucket))
    found.fill(found.rate, now_s)
    return -found.level / found.rate
