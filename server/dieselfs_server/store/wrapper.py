"""Stores that forward every call to another store: what they measure, limit, repeat, or refuse while the store is away.

Large reads have a separate limit, `LargeReads`; further ones wait for their turn (the tokens of LMDBIO's staggering).
A disk or an OSD serves a few long reads at full speed, but has to seek between many concurrent ones. Small
reads do not wait for large ones, so reading a preamble never waits for 64 MiB.

Only Unavailable is retried, and not for a lasting cause, such as a missing permission, nor after a timeout of the
store. All calls of an `ObjectStore` may be repeated. A call of a client waits for one timeout of a store at most: its
further calls of that store fail at once.

A store has a marker, the record that distinguishes a store that is away from one that is empty. A folder whose file
system is not mounted, and a pool that was created again, look like a store without datasets. A server that believed
this would drop metadata, refuse all users, and write chunks to the wrong disk. The marker has a random ID. It is
created once, by `--init`. It is checked at the start and before each call that lists or changes something; a read that
finds nothing is checked afterwards. A check is one small read (12 us on a local disk).
"""

import errno
import json
import random
import secrets
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import BoundedSemaphore
from typing import Any, TypeVar, TypeVarTuple

from dieselfs.chunk.ids import chunk_time_s
from dieselfs.errors import Damaged, DieselfsError, NotFound, Unavailable
from dieselfs.limits import MIB, REQUEST_TIMEOUT_S
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry
from dieselfs_server.store.interface import Buffer, ObjectStore
from dieselfs_server.store.large_reads import LargeReads

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

_CHANGES = frozenset(("put", "delete", "delete_dataset", "put_record", "create_record", "delete_record"))
"""The calls that change a store."""


class StoreWrapper:
    """An `ObjectStore` over `store`; closing it also closes `store`."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def _pass(self, call: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
        """Forwards one call of a method of `store`; all methods but `close` use it."""
        return call(*args)

    def put(self, dataset_id: bytes, chunk_id: bytes, parts: Sequence[Buffer]) -> None:
        self._pass(self.store.put, dataset_id, chunk_id, parts)

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        return self._pass(self.store.get_range, dataset_id, chunk_id, offset, length)

    def open_chunk(self, dataset_id: bytes, chunk_id: bytes) -> int | None:
        return self._pass(self.store.open_chunk, dataset_id, chunk_id)

    def size(self, dataset_id: bytes, chunk_id: bytes) -> int:
        return self._pass(self.store.size, dataset_id, chunk_id)

    def delete(self, dataset_id: bytes, chunk_id: bytes) -> None:
        self._pass(self.store.delete, dataset_id, chunk_id)

    def delete_chunks(self, dataset_id: bytes, chunk_ids: Iterable[bytes]) -> None:
        for chunk_id in chunk_ids:
            self.delete(dataset_id, chunk_id)

    def list_chunks(self, dataset_id: bytes, since_s: int = 0) -> Iterator[bytes]:
        return self._pass(self.store.list_chunks, dataset_id, since_s)

    def list_datasets(self, without: Container[bytes] = ()) -> Iterator[bytes]:
        return self._pass(self.store.list_datasets, without)

    def delete_dataset(self, dataset_id: bytes) -> None:
        self._pass(self.store.delete_dataset, dataset_id)

    def put_record(self, name: str, content: bytes) -> None:
        self._pass(self.store.put_record, name, content)

    def create_record(self, name: str, content: bytes) -> bool:
        return self._pass(self.store.create_record, name, content)

    def get_record(self, name: str) -> bytes | None:
        return self._pass(self.store.get_record, name)

    def list_records(self, prefix: str) -> list[str]:
        return self._pass(self.store.list_records, prefix)

    def delete_record(self, name: str) -> None:
        self._pass(self.store.delete_record, name)

    def close(self) -> None:
        self.store.close()


def delete_chunks(store: ObjectStore, dataset_id: bytes, chunk_ids: Iterable[bytes]) -> None:
    """As `delete` of each, with fewer requests for those that are in one object."""
    wrapper = store if isinstance(store, StoreWrapper) else StoreWrapper(store)
    wrapper.delete_chunks(dataset_id, chunk_ids)


class MeasuredStore(StoreWrapper):
    """An `ObjectStore`. Of a listing, only its start is measured."""

    def __init__(self, store: ObjectStore, metrics: Registry) -> None:
        super().__init__(store)
        self._metrics = metrics

    def _pass(self, call: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
        metrics, operation, started_s = self._metrics, call.__name__, time.monotonic()
        try:
            return call(*args)
        except NotFound:
            raise  # an answer of the store as any other
        except DieselfsError:
            failures = metrics.counter(
                "store.failures", "Calls of the object store that failed.", operation=operation
            )
            metrics.add(failures)
            raise
        finally:
            took = metrics.declare_histogram(catalogue.STORE_ANSWERED_S, operation=operation)
            metrics.observe(took, time.monotonic() - started_s)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of concurrent calls. Large reads count as reads too.

    A call that has waited for `wait_s_max` raises Unavailable: the store hangs, or is far too slow.
    """

    reads_max: int = 16
    large_reads_max: int = 8
    large_read_bytes: int = 1 * MIB
    writes_max: int = 16
    wait_s_max: float = 10.0

    def __post_init__(self) -> None:
        assert 0 < self.large_reads_max <= self.reads_max and self.writes_max > 0


class LimitedStore(StoreWrapper):
    """An `ObjectStore`. A call that would exceed a limit of `store` waits.

    Lookups and listings are not limited: they are short, and few. Opening a chunk is a small read; later reads of its
    file are not limited, because they take no thread of this process.
    """

    def __init__(self, store: ObjectStore, bounds: Bounds, large_reads: LargeReads | None = None) -> None:
        """`large_reads`: the limit of large reads, instead of that of `bounds`."""
        super().__init__(store)
        self._bounds = bounds
        self._large_reads = large_reads or LargeReads(bounds.large_reads_max)
        reads, writes = BoundedSemaphore(bounds.reads_max), BoundedSemaphore(bounds.writes_max)
        self._tokens = dict.fromkeys(("get_range", "open_chunk", "get_record"), reads)
        self._tokens |= dict.fromkeys(_CHANGES, writes)

    def _pass(self, call: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
        tokens = self._tokens.get(call.__name__)
        return call(*args) if tokens is None else self._with(tokens, call, *args)

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        read, wanted = super().get_range, (dataset_id, chunk_id, offset, length)
        if length < self._bounds.large_read_bytes:
            return read(*wanted)
        # First, so that a waiting large read holds no token that a small read could use.
        return self._with(self._large_reads, read, *wanted)

    def _with(
        self, tokens: BoundedSemaphore | LargeReads, call: Callable[[*Arguments], Result], *args: *Arguments
    ) -> Result:
        """The result of a call that has one of the tokens."""
        if not tokens.acquire(timeout=self._bounds.wait_s_max):
            raise Unavailable(
                f"object store: still busy with other calls after {self._bounds.wait_s_max:g} s; "
                "it hangs or is overloaded: try again later"
            )
        try:
            return call(*args)
        finally:
            tokens.release()


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
HANGS_S = 0.8
"""A store that has not answered for this long hangs. Less than the shortest timeout of a store."""

_HUNG: ContextVar[dict["RetryingStore", Unavailable] | None] = ContextVar("HUNG", default=None)
"""The stores that the call of a client has found to hang, with their errors; None outside of such a call."""


@contextmanager
def one_timeout() -> Iterator[None]:
    """In this block, also in its tasks and worker threads, calls of a store that has hung raise Unavailable at once."""
    token = _HUNG.set({})
    try:
        yield
    finally:
        _HUNG.reset(token)


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
        hung = _HUNG.get()
        if hung is not None and self in hung:
            raise Unavailable(*hung[self].args) from hung[self]
        while True:
            try_s = self._clock()
            try:
                return call(*args)
            except Unavailable as error:
                failed_tries += 1
                wait_s = wait_before(failed_tries, self._policy, self._source.random())
                is_late = self._clock() + wait_s - started_s > self._policy.duration_s_max
                number = getattr(error.__cause__, "errno", None)
                hangs = number == errno.ETIMEDOUT and self._clock() - try_s >= HANGS_S
                if hangs and hung is not None:
                    hung[self] = error
                is_lasting = number in LASTING or hangs
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

    def list_datasets(self, without: Container[bytes] = ()) -> Iterator[bytes]:
        yield from self._try("list_datasets", lambda: list(self.store.list_datasets(without)))


MARKER_RECORD = "store"
_FORMAT, _FORMAT_WITH_REFERENCES = 1, 3  # 2: with references, but without bundles
_ID_BYTES = 16


class MarkedStore(StoreWrapper):
    """An `ObjectStore` that raises Unavailable where `store` would be taken for empty although it is away."""

    def __init__(self, store: ObjectStore, store_id: str, is_folder: bool = False) -> None:
        """`is_folder`: its file system may be unmounted during a change, which then goes to the folder below."""
        super().__init__(store)
        self._store_id = store_id
        self._is_folder = is_folder

    def check(self) -> None:
        """Raise Unavailable unless the store has the marker that it had at the start."""
        found = read_marker(self.store)
        if found is None:
            raise Unavailable(
                "the object store is away: its marker is missing; mount its file system or restore it "
                "(docs/guide/recovery.md)"
            )
        if found != self._store_id:
            raise Unavailable(
                f"the object store was replaced: its ID was {self._store_id}, now it is {found}; "
                "restart the server if that is right"
            )

    def _pass(self, call: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
        is_change = call.__name__ in _CHANGES
        if is_change or call.__name__ == "list_records":
            self.check()
        try:
            result = call(*args)
        except NotFound:
            self.check()
            raise
        if (self._is_folder and is_change) or (result is None and call.__name__ == "get_record"):
            self.check()
        return result

    def list_chunks(self, dataset_id: bytes, since_s: int = 0) -> Iterator[bytes]:
        return self._checked(super().list_chunks(dataset_id, since_s))

    def list_datasets(self, without: Container[bytes] = ()) -> Iterator[bytes]:
        return self._checked(super().list_datasets(without))

    def list_records(self, prefix: str) -> list[str]:
        return [name for name in super().list_records(prefix) if name != MARKER_RECORD]

    def _checked(self, listing: Iterator[bytes]) -> Iterator[bytes]:
        """`listing`; a store that goes away meanwhile raises Unavailable at its end, instead of a short list."""
        self.check()
        yield from listing
        self.check()


def open_marked(store: ObjectStore, name: str, is_new: bool, is_folder: bool = False) -> MarkedStore:
    """`store` with its marker, which is created if it is missing and `is_new`. `name` is for errors; `is_folder`: it is
    in a file system, which may be unmounted.

    Raises Unavailable if there is no marker, Damaged if it cannot be read.
    """
    store_id = read_marker(store)
    if store_id is None:
        if not is_new:
            raise Unavailable(missing(name))
        marker = {"format": _FORMAT, "id": secrets.token_hex(_ID_BYTES)}
        store.create_record(MARKER_RECORD, json.dumps(marker).encode())
        store_id = read_marker(store) or ""  # perhaps that of another server
    return MarkedStore(store, store_id, is_folder)


def missing(name: str) -> str:
    """The error for a store without a marker."""
    return (
        f"object store {name}: it has no marker, so it may be away, not empty: mount its file system or restore it "
        "(docs/guide/recovery.md); if the store is new, start the server once with --init"
    )


def keep_older_servers_out(store: ObjectStore) -> None:
    """Give the marker the format of a store with references between chunks, which may be in bundles, durably. Servers
    from before references would erase what these need, and those from before bundles do not see the chunks in them:
    they refuse this format at their start and before each change. It is the only one that is written over another, so
    of two servers none lowers it.
    """
    content = store.get_record(MARKER_RECORD)
    if content is not None and (marker := _decoded(content))["format"] < _FORMAT_WITH_REFERENCES:
        store.put_record(MARKER_RECORD, json.dumps(marker | {"format": _FORMAT_WITH_REFERENCES}).encode())


def read_marker(store: ObjectStore) -> str | None:
    """The ID in the marker of a store; None without a marker. Raises Damaged."""
    content = store.get_record(MARKER_RECORD)
    return None if content is None else marker_id(content)


def marker_id(content: bytes) -> str:
    """Raises Damaged."""
    return str(_decoded(content)["id"])


def _decoded(content: bytes) -> dict[str, Any]:
    try:
        marker = json.loads(content)
        is_known = marker["format"] in range(_FORMAT, _FORMAT_WITH_REFERENCES + 1)
        if not is_known or not isinstance(marker["id"], str):
            raise ValueError(f"format {marker['format']!r}; a newer dieselfs may have written it")
        return dict(marker)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(
            f"the marker of the object store (record {MARKER_RECORD!r}) is invalid: {error!r}"
        ) from None
