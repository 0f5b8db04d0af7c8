"""A wrapper that changes nothing keeps the contract."""

import errno
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Condition

import pytest

from dieselfs.errors import Damaged, DieselfsError, NotFound, StorageFull, Unavailable
from dieselfs.limits import LOST_MACHINE_REST_S, LOST_MACHINE_S
from dieselfs.telemetry.registry import Registry
from dieselfs_server.store import wrapper
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.opening import open_store
from dieselfs_server.store.posix import PosixStore
from dieselfs_server.store.rados_pool import ANSWER_TIMEOUT_S
from dieselfs_server.store.wrapper import (
    HANGS_S,
    MARKER_RECORD,
    Bounds,
    LimitedStore,
    MarkedStore,
    MeasuredStore,
    RetryingStore,
    RetryPolicy,
    StoreWrapper,
    one_timeout,
    open_marked,
    read_marker,
    wait_before,
)
from tests.conformance.chunk_store_suite import CHUNK_ID, DATASET_ID, ChunkStoreSuite, chunk_at


class TestStoreWrapper(ChunkStoreSuite):
    def make_store(self, folder: Path) -> StoreWrapper:
        return StoreWrapper(MemoryStore())


DATASET, CHUNK = bytes(16), b"\1" * 16


class TestMeasuredStore(ChunkStoreSuite):
    def make_store(self, folder: Path) -> MeasuredStore:
        return MeasuredStore(MemoryStore(), Registry())


def test_calls_and_failures_are_counted_by_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, metrics = MemoryStore(), Registry()
    store = MeasuredStore(backend, metrics)
    store.put(DATASET, CHUNK, [b"x"])
    assert store.get_range(DATASET, CHUNK, 0, 1) == b"x"
    with pytest.raises(NotFound):  # an answer
        store.get_range(DATASET, bytes(16), 0, 1)

    def fails(name: str) -> bytes | None:
        raise Unavailable("away")

    fails.__name__ = "get_record"
    monkeypatch.setattr(backend, "get_record", fails)
    with pytest.raises(Unavailable):
        store.get_record("x")
    found = metrics.as_dict()["store"]
    assert {name: each["count"] for name, each in found["answered_s"].items()} == {
        "put": 1,
        "get_range": 2,
        "get_record": 1,
    }
    assert found["failures"] == {"get_record": 1}


TIMEOUT_S = 20.0
BOUNDS = Bounds(reads_max=4, large_reads_max=2, large_read_bytes=1000, writes_max=3, wait_s_max=TIMEOUT_S)


class TestLimitedStore(ChunkStoreSuite):
    def make_store(self, folder: Path) -> LimitedStore:
        return LimitedStore(MemoryStore(), Bounds(1, 1, 10, 1))


class HeldStore(MemoryStore):
    """Reads and puts stay inside until they are let go; counts how many are."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = Condition()
        self.inside: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.is_held = False

    def _stay(self, kind: str) -> None:
        with self.changed:
            self.inside[kind] = self.inside.get(kind, 0) + 1
            self.most[kind] = max(self.most.get(kind, 0), self.inside[kind])
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: not self.is_held, TIMEOUT_S)
            self.inside[kind] -= 1

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        self._stay("large" if length >= BOUNDS.large_read_bytes else "small")
        return super().get_range(dataset_id, chunk_id, offset, length)

    def put(self, dataset_id: bytes, chunk_id: bytes, parts: object) -> None:
        self._stay("put")
        super().put(dataset_id, chunk_id, parts)  # type: ignore[arg-type]  # only passed on

    def wait_inside(self, kind: str, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.inside.get(kind, 0) == count, TIMEOUT_S)

    def let_go(self) -> None:
        with self.changed:
            self.is_held = False
            self.changed.notify_all()


@pytest.fixture
def held() -> HeldStore:
    store = HeldStore()
    store.put(DATASET_ID, CHUNK_ID, [bytes(5000)])
    store.is_held = True
    return store


def test_large_reads_take_turns_and_small_ones_go_past(held: HeldStore) -> None:
    store = LimitedStore(held, BOUNDS)
    with ThreadPoolExecutor(12) as threads:
        large = [threads.submit(store.get_range, DATASET_ID, CHUNK_ID, 0, 1000) for _ in range(5)]
        held.wait_inside("large", 2)
        small = [threads.submit(store.get_range, DATASET_ID, CHUNK_ID, 0, 999) for _ in range(5)]
        held.wait_inside("small", 2)
        held.let_go()
        assert [len(read.result()) for read in large + small] == [1000] * 5 + [999] * 5
    assert held.most["large"] == 2 and held.most["small"] <= 4


def test_puts_are_bounded(held: HeldStore) -> None:
    store = LimitedStore(held, BOUNDS)
    with ThreadPoolExecutor(8) as threads:
        puts = [threads.submit(store.put, DATASET_ID, chunk_at(number), [b"x"]) for number in range(8)]
        held.wait_inside("put", 3)
        held.let_go()
        for put in puts:
            put.result()
    assert held.most["put"] == 3


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get_range(DATASET_ID, CHUNK_ID, 0, 1),
        lambda store: store.get_record("users"),
    ],
)
def test_behind_a_store_that_hangs_a_call_ends_in_time(
    held: HeldStore, call: Callable[[LimitedStore], object]
) -> None:
    store = LimitedStore(held, Bounds(1, 1, 1000, 1, wait_s_max=0.01))
    with ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(store.get_range, DATASET_ID, CHUNK_ID, 0, 1)
        held.wait_inside("small", 1)
        with pytest.raises(Unavailable, match=r"busy with other calls after 0\.01 s"):
            call(store)
        held.let_go()
        assert hanging.result() == b"\0"
    call(store)


PATIENCE = RetryPolicy(tries_max=4, first_wait_s=1.0, wait_s_max=3.0, duration_s_max=20.0)


def failure(number: int | None = None) -> Unavailable:
    error = Unavailable("gone")
    error.__cause__ = OSError(number, "why") if number is not None else None
    return error


class FlakyStore(MemoryStore):
    """The next calls raise these, one each."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[DieselfsError] = []
        self.calls = 0

    def _fail(self) -> None:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        self._fail()
        return super().get_range(dataset_id, chunk_id, offset, length)

    def list_chunks(self, dataset_id: bytes, since_s: int = 0) -> Iterator[bytes]:
        for chunk_id in super().list_chunks(dataset_id, since_s):
            self._fail()
            yield chunk_id


class Bench:
    """A retrying store over a flaky one, with a clock that only waiting moves."""

    def __init__(self, patience: RetryPolicy = PATIENCE, call_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.waits_s: list[float] = []
        self.call_s = call_s
        self.flaky = FlakyStore()
        self.flaky.put(DATASET_ID, CHUNK_ID, [b"content"])
        self.metrics = Registry()
        self.store = RetryingStore(
            self.flaky, patience, random.Random(5), self._clock, self._sleep, self.metrics
        )

    def retries(self) -> dict[str, int]:
        """By operation."""
        return {labels[0]: value for _, labels, value in self.metrics.collect(("store.retries",))}

    def _clock(self) -> float:
        self.now_s += self.call_s
        return self.now_s

    def _sleep(self, wait_s: float) -> None:
        self.waits_s.append(wait_s)
        self.now_s += wait_s

    def get(self) -> bytes:
        return self.store.get_range(DATASET_ID, CHUNK_ID, 0, 7)


class TestRetryingStore(ChunkStoreSuite):
    def make_store(self, folder: Path) -> RetryingStore:
        return RetryingStore(MemoryStore(), PATIENCE, random.Random(1))


def test_a_passing_failure_is_tried_again() -> None:
    bench = Bench()
    bench.flaky.failures = [failure(), failure(errno.EIO), failure(errno.ETIMEDOUT)]
    assert bench.get() == b"content"
    assert bench.flaky.calls == 4 and bench.retries() == {"get_range": 3}
    for wait_s, full_s in zip(bench.waits_s, (1, 2, 3), strict=True):
        assert full_s / 2 <= wait_s < full_s


def test_tries_are_bounded() -> None:
    bench = Bench()
    bench.flaky.failures = [failure() for _ in range(9)]
    with pytest.raises(Unavailable):
        bench.get()
    assert bench.flaky.calls == PATIENCE.tries_max
    assert bench.retries() == {"get_range": PATIENCE.tries_max - 1}


def test_time_is_bounded() -> None:
    bench = Bench(call_s=9.0)
    bench.flaky.failures = [failure() for _ in range(9)]
    with pytest.raises(Unavailable):
        bench.get()
    assert bench.flaky.calls == 2


def test_a_store_that_hangs_is_waited_for_once() -> None:
    bench = Bench(call_s=HANGS_S)
    bench.flaky.failures = [failure(errno.ETIMEDOUT)]
    with pytest.raises(Unavailable):
        bench.get()
    assert bench.flaky.calls == 1


def test_a_first_read_of_an_osd_that_hangs_fails_in_the_time_for_a_lost_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever number of calls it makes."""
    bench = Bench()

    def hang() -> None:
        bench.now_s += ANSWER_TIMEOUT_S
        raise failure(errno.ETIMEDOUT)

    monkeypatch.setattr(bench.flaky, "_fail", hang)
    with one_timeout():
        for _ in range(3):
            with pytest.raises(Unavailable):
                bench.get()
    assert bench.now_s + LOST_MACHINE_REST_S < LOST_MACHINE_S


@pytest.mark.parametrize(
    "error",
    [
        failure(errno.EACCES),
        failure(errno.EROFS),
        NotFound("x"),
        Damaged("x"),
        StorageFull("x"),
    ],
)
def test_what_lasts_is_not_tried_again(error: DieselfsError) -> None:
    bench = Bench()
    bench.flaky.failures = [error]
    with pytest.raises(type(error)):
        bench.get()
    assert bench.flaky.calls == 1 and bench.waits_s == [] and bench.retries() == {}


def test_a_listing_goes_on_where_it_broke_off() -> None:
    bench = Bench()
    bench.flaky.delete(DATASET_ID, CHUNK_ID)
    chunk_ids = [chunk_at(time_s, number) for time_s in range(5) for number in range(3)]
    for chunk_id in chunk_ids:
        bench.flaky.put(DATASET_ID, chunk_id, [b""])
    listed = []
    for chunk_id in bench.store.list_chunks(DATASET_ID):
        listed.append(chunk_id)
        bench.flaky.failures = [failure()]
    assert listed == chunk_ids and bench.retries() == {"list_chunks": len(chunk_ids) - 1}


def test_waits_grow_and_those_who_failed_together_part() -> None:
    assert [wait_before(tries, PATIENCE, 0.0) for tries in (1, 2, 3, 4, 50)] == [0.5, 1.0, 1.5, 1.5, 1.5]
    assert wait_before(1, PATIENCE, 0.999) > 0.99


OTHER_ID = bytes(15) + b"\1"

CALLS: list[Callable[[ObjectStore], object]] = [
    lambda store: store.put(DATASET_ID, OTHER_ID, [b"x"]),
    lambda store: store.get_range(DATASET_ID, CHUNK_ID, 0, 1),
    lambda store: store.open_chunk(DATASET_ID, CHUNK_ID),
    lambda store: store.size(DATASET_ID, CHUNK_ID),
    lambda store: store.delete(DATASET_ID, CHUNK_ID),
    lambda store: list(store.list_chunks(DATASET_ID)),
    lambda store: list(store.list_datasets()),
    lambda store: store.delete_dataset(DATASET_ID),
    lambda store: store.put_record("users", b"x"),
    lambda store: store.create_record("identity", b"x"),
    lambda store: store.get_record("users"),
    lambda store: store.list_records(""),
    lambda store: store.delete_record("users"),
]


class TestMarkedStore(ChunkStoreSuite):
    def make_store(self, folder: Path) -> ObjectStore:
        return open_marked(PosixStore(str(folder)), "marked", is_new=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "chunks"


@pytest.fixture
def store(root: Path) -> ObjectStore:
    """With one chunk and one record."""
    opened = open_store(f"posix://{root}", is_new=True)
    opened.put(DATASET_ID, CHUNK_ID, [b"content"])
    opened.put_record("users", b"all")
    return opened


@pytest.mark.parametrize("is_empty_folder", [False, True])
def test_every_call_on_a_store_that_is_away_is_unavailable(
    store: ObjectStore, root: Path, is_empty_folder: bool
) -> None:
    root.rename(root.with_name("away"))
    if is_empty_folder:  # the mount point of a file system that is not mounted
        root.mkdir()
    for call in CALLS:
        with pytest.raises(Unavailable, match="away"):
            call(store)
    assert not root.exists() or not list(root.iterdir())
    if is_empty_folder:
        root.rmdir()
    root.with_name("away").rename(root)
    assert store.get_range(DATASET_ID, CHUNK_ID, 0, 7) == b"content"
    assert store.get_record("users") == b"all" and list(store.list_datasets()) == [DATASET_ID]


@pytest.mark.parametrize("place", [0, 4, 7, 12])
def test_a_change_that_goes_to_the_folder_below_is_not_taken_for_done(
    store: ObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """The file system is unmounted in the moment after its marker was seen."""

    def read_and_unmount(backend: ObjectStore) -> str | None:
        found = read_marker(backend)
        if not root.with_name("away").exists():
            root.rename(root.with_name("away"))
            root.mkdir()
        return found

    monkeypatch.setattr(wrapper, "read_marker", read_and_unmount)
    with pytest.raises(Unavailable, match="away"):
        CALLS[place](store)


def test_a_listing_that_loses_its_store_raises_at_its_end(store: ObjectStore, root: Path) -> None:
    listing = store.list_chunks(DATASET_ID)
    assert next(listing) == CHUNK_ID
    root.rename(root.with_name("away"))
    with pytest.raises(Unavailable, match="away"):
        next(listing)


def test_another_store_in_the_same_place_is_refused(store: ObjectStore, root: Path) -> None:
    root.rename(root.with_name("away"))
    open_store(f"posix://{root}", is_new=True).close()
    with pytest.raises(Unavailable, match="was replaced"):
        store.put(DATASET_ID, CHUNK_ID, [b"content"])


@pytest.mark.parametrize("exists", [False, True])
def test_a_store_without_a_marker_opens_only_as_a_new_one(root: Path, exists: bool) -> None:
    if exists:
        root.mkdir()
    with pytest.raises(Unavailable, match="--init"):
        open_store(f"posix://{root}", is_new=False)
    assert not exists or not list(root.iterdir())
    assert root.exists() == exists
    open_store(f"posix://{root}", is_new=True).close()
    open_store(f"posix://{root}", is_new=False).close()


def test_a_marker_is_made_once(root: Path) -> None:
    for _ in range(2):
        open_store(f"posix://{root}", is_new=True).close()
        content = PosixStore(str(root)).get_record(MARKER_RECORD)
        assert content == (root / "records" / MARKER_RECORD).read_bytes()
    assert len(read_marker(PosixStore(str(root))) or "") == 32


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"format": 4, "id": "x"}', b'{"format": 1, "id": 7}']
)
def test_an_invalid_marker_is_damage(content: bytes) -> None:
    store = MemoryStore()
    store.put_record(MARKER_RECORD, content)
    with pytest.raises(Damaged, match="marker"):
        open_marked(store, "memory:", is_new=True)


def test_the_slow_tier_decides_and_a_lost_fast_tier_costs_nothing(tmp_path: Path) -> None:
    url = f"tiered:fast=posix://{tmp_path}/fast,slow=posix://{tmp_path}/slow,size=1GiB"
    with pytest.raises(Unavailable, match="--init"):
        open_store(url, is_new=False)
    tiered = open_store(url, is_new=True)
    tiered.put(DATASET_ID, CHUNK_ID, [b"content"])
    (tmp_path / "fast").rename(tmp_path / "fast-away")
    (tmp_path / "fast").mkdir()
    tiered.put(DATASET_ID, OTHER_ID, [b"other"])
    assert tiered.get_range(DATASET_ID, CHUNK_ID, 0, 7) == b"content"
    tiered.close()
    assert not list((tmp_path / "fast").iterdir())
    open_store(url, is_new=False).close()
    (tmp_path / "slow").rename(tmp_path / "slow-away")
    with pytest.raises(Unavailable, match="slow"):
        open_store(url, is_new=False)


def test_what_is_missing_in_a_store_that_is_there_is_not_found(store: ObjectStore) -> None:
    with pytest.raises(NotFound):
        store.size(DATASET_ID, OTHER_ID)
    assert store.get_record("none") is None and not list(store.list_chunks(bytes(16)))


def test_a_store_in_memory_needs_no_option() -> None:
    store = open_store("memory:", is_new=False)
    assert isinstance(store, MarkedStore)
    store.put_record("users", b"x")
