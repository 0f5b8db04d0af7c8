"""Retries failed calls of a store: a bounded number of times, in bounded time, with random pauses.

Only Unavailable is retried, and not for a lasting cause, such as a missing permission. All calls of an `ObjectStore`
may be repeated. If the first attempt of a put has reached the store, the retry raises AlreadyExists, as every repeated
put.
"""

import errno
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dieselfs.chunk.ids import chunk_time_s
from dieselfs.errors import Unavailable
from dieselfs.limits import REQUEST_TIMEOUT_S
from dieselfs.telemetry.registry import Registry
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.wrapper import Arguments, Result, StoreWrapper

LASTING = frozenset(
    (
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ELOOP,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ENAMETOOLONG,
        errno.EINVAL,
        errno.EOPNOTSUPP,
        errno.EMSGSIZE,
        errno.EFBIG,
    )
)
"""Causes that a retry does not change."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits of the attempts of a call.

    Before attempt n + 1 the call waits a random time between half and all of `first_wait_s` x 2^(n - 1), `wait_s_max`
    at most. No attempt begins after `duration_s_max`.
    """

    tries_max: int = 5
    first_wait_s: float = 0.1
    wait_s_max: float = 2.0
    duration_s_max: float = 8.0

    def __post_init__(self) -> None:
        assert self.tries_max > 0 and self.duration_s_max < REQUEST_TIMEOUT_S


def wait_before(failed_tries: int, policy: RetryPolicy, fraction: float) -> float:
    """Seconds to wait after `failed_tries` attempts; `fraction`, in [0, 1), is the random part."""
    full_s = min(policy.first_wait_s * 2.0 ** (failed_tries - 1), policy.wait_s_max)
    return full_s * (1 + fraction) / 2


class RetryingStore(StoreWrapper):
    """An `ObjectStore` over `store`. Raises the error of the last attempt.

    `clock` and `sleep` are in seconds; `source` makes the pauses random, so that calls that failed together are not
    retried together.
    """

    def __init__(
        self,
        store: ObjectStore,
        policy: RetryPolicy,
        source: random.Random,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        metrics: Registry | None = None,
    ) -> None:
        super().__init__(store)
        self._metrics = metrics or Registry()
        self._policy = policy
        self._source = source
        self._clock = clock
        self._sleep = sleep

    def _pass(self, call: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
        return self._try(call.__name__, call, *args)

    def _try(self, operation: str, call: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
        started_s = self._clock()
        failed_tries = 0
        while True:
            try:
                return call(*args)
            except Unavailable as error:
                failed_tries += 1
                wait_s = wait_before(failed_tries, self._policy, self._source.random())
                is_late = self._clock() + wait_s - started_s > self._policy.duration_s_max
                is_lasting = getattr(error.__cause__, "errno", None) in LASTING
                if failed_tries >= self._policy.tries_max or is_late or is_lasting:
                    raise
            metrics = self._metrics
            retries = metrics.counter(
                "store.retries", "Repeated calls of the object store.", operation=operation
            )
            metrics.add(retries)
            self._sleep(wait_s)

    def list_chunks(self, dataset_id: bytes, since_s: int = 0) -> Iterator[bytes]:
        """A retry continues after the last listed ID."""
        seen: bytes | None = None
        chunk_ids = self.store.list_chunks(dataset_id, since_s)

        def following() -> bytes | None:
            nonlocal chunk_ids
            try:
                return next((chunk_id for chunk_id in chunk_ids if seen is None or chunk_id > seen), None)
            except Unavailable:
                chunk_ids = self.store.list_chunks(dataset_id, chunk_time_s(seen) if seen else since_s)
                raise

        while (chunk_id := self._try("list_chunks", following)) is not None:
            seen = chunk_id
            yield chunk_id

    def list_datasets(self) -> Iterator[bytes]:
        yield from self._try("list_datasets", lambda: list(self.store.list_datasets()))
