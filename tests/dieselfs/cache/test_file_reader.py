"""What a reader fetches from a real server, and what it holds in memory."""

import os
import platform
import random
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from dieselfs.cache.file_reader import FileReader
from dieselfs.cache.policy import EVICTABLE_BYTES, EVICTABLE_SHARE, LOOKUP_BYTES, LOOKUP_SHARE
from dieselfs.dataset import Dataset
from dieselfs.errors import Damaged, InvalidInput, NotFound
from dieselfs.limits import CHUNK_TARGET_BYTES, LIBRARY_MEMORY_BYTES, MIB
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.spec import PlanSpec
from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.interface import Arrival, Slices, Wanted
from dieselfs.sources.server import ServerSource, SharedMemory
from tests.support.documents import DOCUMENTS, table
from tests.support.server import RunningServer

FILE_BYTES = 16_384
FILES_PER_CHUNK = CHUNK_TARGET_BYTES // FILE_BYTES
CHUNKS = 12
SMALL_MEMORY_BYTES = 4 * CHUNK_TARGET_BYTES
"""Nothing can be kept, and two chunks fit in transit."""


@pytest.fixture(scope="module")
def packed(server: RunningServer) -> Iterator[Dataset]:
    """A dataset of chunks that are full, each file with bytes of its own."""
    with Dataset(server.settings(), "t-file-reader", must_exist=False) as dataset:
        for number in range(CHUNKS * FILES_PER_CHUNK):
            dataset.put(f"{number:06}", number.to_bytes(4, "big") * (FILE_BYTES // 4))
        dataset.flush()
        assert dataset.snapshot.chunk_count == CHUNKS
        yield dataset


class CountingChunks(ServerSource):
    """The real one; counts the bytes that come, and can be held up or made to find damage."""

    fetched_bytes = 0
    is_damaged = False
    before_chunk: Callable[[], object] = staticmethod(lambda: None)

    def shared(self, chunks: Sequence[int], wanted_bytes: int) -> dict[int, SharedMemory]:
        """Nothing: this is of what is fetched."""
        return {}

    def fetch_chunk_into(self, chunk: int, destination: memoryview) -> None:
        self.before_chunk()
        if self.is_damaged:
            raise Damaged(f"chunk {chunk}")
        super().fetch_chunk_into(chunk, destination)
        self.fetched_bytes += len(destination)

    def fetch_many(self, wanted: Wanted) -> Iterator[Arrival]:
        for arrival in super().fetch_many(wanted):
            for brought in arrival.values():
                assert isinstance(brought, Slices)
                self.fetched_bytes += sum(brought.lengths)
            yield arrival


class Reading:
    """A reader, and what it fetches."""

    def __init__(self, packed: Dataset, memory_bytes: int = SMALL_MEMORY_BYTES) -> None:
        self.chunks = CountingChunks(packed.client, packed.snapshot)
        self.reader = FileReader(self.chunks, memory_bytes)

    def fetched_bytes(self, batches: Sequence[Sequence[str]]) -> int:
        """Read the files of each batch, compare them, and return how many bytes were fetched for that."""
        before = self.chunks.fetched_bytes
        for batch in batches:
            for path, content in zip(batch, self.reader.get_many(batch), strict=True):
                assert content == content_of(path)
        return self.chunks.fetched_bytes - before


def content_of(path: str) -> bytes:
    return int(path).to_bytes(4, "big") * (FILE_BYTES // 4)


def by_chunk() -> list[list[str]]:
    numbers = np.arange(CHUNKS * FILES_PER_CHUNK).reshape(CHUNKS, FILES_PER_CHUNK).tolist()
    return [[f"{number:06}" for number in row] for row in numbers]


def shuffled(packed: Dataset) -> list[str]:
    paths = sorted(packed.files())
    random.Random(5).shuffle(paths)
    return paths


def test_in_chunk_wise_order_each_chunk_comes_about_once(packed: Dataset) -> None:
    paths = list(packed.shuffle(group_chunks=2))
    total = len(paths) * FILE_BYTES
    assert Reading(packed).fetched_bytes([[path] for path in paths]) < 1.05 * total


def test_a_batch_that_wants_a_quarter_of_a_chunk_gets_it_whole(packed: Dataset) -> None:
    batch = list(packed.shuffle(group_chunks=1))[: FILES_PER_CHUNK // 4]
    reading = Reading(packed)
    assert reading.fetched_bytes([batch]) == CHUNK_TARGET_BYTES
    assert reading.fetched_bytes([batch]) == 0


def test_in_random_order_over_more_than_fits_files_do_not_cost_chunks(packed: Dataset) -> None:
    some = shuffled(packed)[:400]
    fetched = Reading(packed).fetched_bytes([[path] for path in some])
    assert fetched < 10 * len(some) * FILE_BYTES  # whole chunks would be about 200 times as much


def test_a_group_that_does_not_fit_is_not_fetched_over_and_over(packed: Dataset) -> None:
    some = list(packed.shuffle(group_chunks=0))[:400]
    reading = Reading(packed, memory_bytes=2 * CHUNK_TARGET_BYTES)
    assert reading.fetched_bytes([[path] for path in some]) < 10 * len(some) * FILE_BYTES


def test_in_random_order_over_what_fits_each_chunk_comes_once(packed: Dataset) -> None:
    paths = shuffled(packed)
    reading = Reading(packed, LIBRARY_MEMORY_BYTES)
    once = CHUNKS * CHUNK_TARGET_BYTES
    first_bytes = reading.fetched_bytes([[path] for path in paths])
    assert once < first_bytes <= once + CHUNKS * FILE_BYTES  # the first file of each came alone
    assert reading.fetched_bytes([[path] for path in paths]) == 0
    figures = reading.reader.metrics.as_dict()
    assert figures["files"]["hits"] + figures["files"]["misses"] == 2 * len(paths)
    assert figures["files"]["misses"] == 2 * CHUNKS
    assert (
        figures["chunk_cache"]["fetched_chunks"] == CHUNKS
        and figures["chunk_cache"]["fetched_chunk_bytes"] == once
    )
    assert figures["chunk_cache"]["extent_bytes"] == CHUNKS * FILE_BYTES
    assert figures["chunk_cache"]["pinned_bytes"] == once and figures["chunk_cache"]["evictable_bytes"] == 0
    assert (
        figures["chunk_cache"]["pinned_bytes"]
        <= figures["chunk_cache"]["memory_bytes"]
        == LIBRARY_MEMORY_BYTES
    )


def test_what_one_reader_holds_is_bounded(packed: Dataset) -> None:
    reading = Reading(packed)
    assert reading.fetched_bytes(by_chunk()) == CHUNKS * CHUNK_TARGET_BYTES
    assert reading.fetched_bytes(by_chunk()[-2:]) == 0
    assert reading.fetched_bytes(by_chunk()[:1]) == CHUNK_TARGET_BYTES
    assert reading.reader.metrics.as_dict()["chunk_cache"]["evictable_bytes"] == 2 * CHUNK_TARGET_BYTES


def test_what_is_kept_is_never_given_up_for_what_passes(packed: Dataset) -> None:
    reading = Reading(packed, 8 * CHUNK_TARGET_BYTES)
    for _ in range(3):
        reading.fetched_bytes(by_chunk())
        assert reading.reader.metrics.as_dict()["chunk_cache"]["pinned_bytes"] == CHUNK_TARGET_BYTES
        assert reading.fetched_bytes(by_chunk()[:1]) == 0


def test_every_way_to_a_file_gives_the_same_bytes(packed: Dataset) -> None:
    paths = shuffled(packed)[:300]
    reading = Reading(packed, LIBRARY_MEMORY_BYTES)
    reader = reading.reader
    for _ in range(3):  # fetched; found in its chunk; known
        assert [reader.get(path) for path in paths] == [content_of(path) for path in paths]
        assert reader.get_many(iter(paths)) == [content_of(path) for path in paths]
        assert reader.views(tuple(paths)) == [content_of(path) for path in paths]
        assert [reader.get(os.fsencode(path)) for path in paths] == [content_of(path) for path in paths]
        assert reader.get(f"/{paths[0]}/") == content_of(paths[0])
        assert reader.read_many(np.array([packed.snapshot.find(os.fsencode(path)) for path in paths])) == [
            content_of(path) for path in paths
        ]
    assert all(view.readonly for view in reader.views(paths))


def test_a_view_outlives_its_chunk_and_its_reader(packed: Dataset) -> None:
    reading = Reading(packed)
    reading.fetched_bytes(by_chunk()[:1])
    (view,) = reading.reader.views(["000000"])
    reading.fetched_bytes(by_chunk()[1:4])
    del reading
    assert view == content_of("000000")


def test_a_reader_that_is_closed_lets_go_of_its_memory_at_once(packed: Dataset) -> None:
    reading = Reading(packed, LIBRARY_MEMORY_BYTES)
    reading.fetched_bytes(by_chunk())
    memory = weakref.ref(reading.reader.views(["000000"])[0].obj)
    assert memory() is not None
    reading.reader.close()
    assert memory() is None
    assert reading.reader.get("000000") == content_of("000000")  # by somebody who was under way


def test_what_is_no_file_is_refused_whether_or_not_others_are_known(packed: Dataset) -> None:
    reader = Reading(packed, LIBRARY_MEMORY_BYTES).reader
    for _ in range(3):
        assert reader.get("000001") == content_of("000001")
        with pytest.raises(NotFound):
            reader.get("no such file")
        with pytest.raises(InvalidInput):
            reader.get("")
        with pytest.raises(InvalidInput):
            reader.get("a//b")
        with pytest.raises(NotFound):
            reader.get_many(["000001", "no such file"])
        with pytest.raises(TypeError):
            reader.get(bytearray(b"000001"))  # type: ignore[arg-type]  # what a program without types may do


@pytest.mark.parametrize("others", [0, 1, 100])
def test_one_path_of_no_file_fails_its_batch(packed: Dataset, others: int) -> None:
    reader = Reading(packed, LIBRARY_MEMORY_BYTES).reader
    known = [path for chunk in by_chunk()[:2] for path in chunk][:others]
    for _ in range(3):  # then places are remembered
        reader.get_many(known)
        for missing in ("999999", "missing", b"\xff", "\udcff"):
            with pytest.raises(NotFound):
                reader.get_many([*known, missing])
            with pytest.raises(NotFound):
                reader.get(missing)
        for no_path in (5, ["000000"], None):
            with pytest.raises(TypeError, match=r"expected str, bytes or os\.PathLike object"):
                reader.get_many([*known, no_path])  # type: ignore[list-item]  # what no path is
            with pytest.raises(TypeError, match=r"expected str, bytes or os\.PathLike object"):
                reader.get(no_path)  # type: ignore[arg-type]  # what no path is


class FaultySnapshot:
    """The real one, with a fault in looking up paths."""

    def __init__(self, snapshot: Snapshot, fault: Exception) -> None:
        self._snapshot, self._fault = snapshot, fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._snapshot, name)

    def __len__(self) -> int:
        return len(self._snapshot)

    def sole_extent_at(self, path: bytes) -> tuple[int, int, int] | None:
        raise self._fault


@pytest.mark.parametrize("fault", [KeyError, IndexError, TypeError, AttributeError])
def test_a_fault_is_raised_and_is_no_slow_read(packed: Dataset, fault: type[Exception]) -> None:
    chunks: Any = CountingChunks(packed.client, packed.snapshot)
    chunks.snapshot = FaultySnapshot(packed.snapshot, fault("a fault"))
    reader = FileReader(chunks)
    with pytest.raises(fault, match="a fault"):
        reader.get("000000")
    with pytest.raises(fault, match="a fault"):
        reader.get_many(["000000"])


def test_damage_elsewhere_in_a_chunk_does_not_cost_its_other_files(packed: Dataset) -> None:
    reading = Reading(packed, LIBRARY_MEMORY_BYTES)
    reading.chunks.is_damaged = True
    assert reading.fetched_bytes(by_chunk()[:1]) == CHUNK_TARGET_BYTES  # extent by extent
    assert reading.reader.metrics.as_dict()["chunk_cache"]["pinned_bytes"] == 0


def test_threads_that_want_one_chunk_fetch_it_once(packed: Dataset) -> None:
    reading = Reading(packed, LIBRARY_MEMORY_BYTES)
    batches = [by_chunk()[0][n::4] for n in range(4)]
    all_there = threading.Barrier(len(batches))
    held_up = threading.Semaphore(0)  # so that the others come while the chunk is on its way
    reading.chunks.before_chunk = lambda: held_up.acquire(timeout=0.2)
    contents: list[list[bytes]] = []

    def work(batch: list[str]) -> None:
        all_there.wait()
        contents.append(reading.reader.get_many(batch))

    threads = [threading.Thread(target=work, args=(batch,)) for batch in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(contents) == len(batches)
    assert reading.chunks.fetched_bytes == CHUNK_TARGET_BYTES
    assert reading.reader.metrics.as_dict()["chunk_cache"]["fetched_chunks"] == 1


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_child_forked_while_a_thread_fetches_a_chunk_reads_it_too(packed: Dataset) -> None:
    reading, paths = Reading(packed, LIBRARY_MEMORY_BYTES), by_chunk()[0]
    is_fetching, is_forked = threading.Event(), threading.Event()

    def before_chunk() -> None:
        is_fetching.set()
        is_forked.wait()

    reading.chunks.before_chunk = before_chunk
    fetcher = threading.Thread(target=reading.reader.get_many, args=(paths,))
    fetcher.start()
    is_fetching.wait()
    child = os.fork()
    if child == 0:
        contents: list[bytes] = []
        try:
            reading.chunks.before_chunk = lambda: None
            contents = reading.reader.get_many(paths)
        finally:
            os._exit(0 if contents == [*map(content_of, paths)] else 1)
    is_forked.set()
    fetcher.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_children_forked_while_files_are_loaded_ahead_read_them_too(packed: Dataset) -> None:
    chunks = CountingChunks(packed.client, packed.snapshot)
    reader = FileReader(chunks, LIBRARY_MEMORY_BYTES)
    paths = Plan(packed.snapshot, PlanSpec(seed=1, group_chunks=2)).share().paths
    numbers = reader.look_ahead.along(paths)
    for path in [next(numbers) for _ in range(5)]:
        assert reader.get(path) == content_of(path)
        child = os.fork()
        if child == 0:
            contents: list[bytes] = []
            try:
                contents = reader.get_many([*paths[:64]])
            finally:
                os._exit(0 if contents == [*map(content_of, paths[:64])] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    reader.close()


def test_the_plan_of_a_reader_is_loaded_ahead_and_each_chunk_is_fetched_once(packed: Dataset) -> None:
    chunks = CountingChunks(packed.client, packed.snapshot)
    reader = FileReader(chunks, LIBRARY_MEMORY_BYTES)
    paths = Plan(packed.snapshot, PlanSpec(seed=1, group_chunks=2)).share().paths
    for path in reader.look_ahead.along(paths):
        assert reader.get(path) == content_of(path)
    figures = reader.metrics.as_dict()
    assert figures["chunk_cache"]["fetched_chunks"] == CHUNKS
    assert figures["look_ahead"]["chunks"] > 0 == figures["look_ahead"]["failed"]
    reader.close()
    assert not [each for each in threading.enumerate() if each.name == "dieselfs-look-ahead"]


def test_the_document_has_the_figures_that_the_code_has(packed: Dataset) -> None:
    text = " ".join((DOCUMENTS / "guide/python.md").read_text(encoding="utf-8").split())
    fields = [name for cell, _ in table("guide/python.md", "## Statistics") for name in cell.split("`")[1::2]]
    assert {*fields} == {family.name for family, _, _ in Reading(packed).reader.metrics.collect()}
    assert f"{LIBRARY_MEMORY_BYTES // MIB} MiB by default" in text
    assert f"{LOOKUP_BYTES} bytes and its path" in text
    assert f"up to {EVICTABLE_BYTES // MIB} MiB" in text and EVICTABLE_SHARE == 0.75 and LOOKUP_SHARE == 0.125


BATCH_FAULTS = """
import resource
from dieselfs.cache.file_reader import _keep_freed_memory

_keep_freed_memory()
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    batch = [b"x" * 110_000 for _ in range(256)]
    del batch
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has no mallopt")
def test_the_memory_of_a_batch_is_used_for_the_next_one() -> None:
    def faults(**environment: str) -> int:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        command = [sys.executable, "-c", BATCH_FAULTS]
        done = subprocess.run(
            command, env={**plain, **environment}, stdout=subprocess.PIPE, check=True, timeout=60
        )
        return int(done.stdout)

    assert faults() < 1000  # a batch has 6,900 pages
    assert faults(MALLOC_TRIM_THRESHOLD_="131072") > 3000  # what the user says stays
