"""Chunks come back as they were stored, and a disk that fails, hangs or is full costs nobody a read."""

import errno
import gc
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from threading import Event, Thread
from typing import Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dieselfs.disk.chunk_file import (
    Range,
    ReadFile,
    bypass_page_cache,
    merged,
    new_buffer,
    read_at,
    read_ranges_of,
    write_all,
)
from dieselfs.disk.space import ALIGNMENT_BYTES, DiskSpace, aligned_bytes, check_folder
from dieselfs.disk.tier import DISK_RETRY_S, DiskTier
from dieselfs.disk.write_behind import UnwrittenPayload
from tests.support.descriptors import descriptor_count
from tests.support.small_disk import small_disk

DATASET, OTHER = bytes(16), bytes([1]) * 16
ONE, TWO, THREE = (bytes([number]) * 16 for number in (1, 2, 3))
PAYLOAD = os.urandom(100_001)
BUFFER = new_buffer(len(PAYLOAD))
BUFFER[: len(PAYLOAD)] = PAYLOAD
UNWRITTEN = UnwrittenPayload(BUFFER, len(PAYLOAD))
CURRENT = {chunk_id.hex() for chunk_id in (ONE, TWO, THREE)}
PATIENCE_S = 60.0


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Make(Protocol):
    """A tier, closed at the end of the test."""

    def __call__(
        self,
        path: Path | None = None,
        size_bytes: int = 1 << 30,
        dataset: bytes = DATASET,
        clock: Callable[[], float] = time.monotonic,
        read_file: ReadFile | None = None,
        read_timeout_s: float = PATIENCE_S,
    ) -> DiskTier: ...


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[DiskTier] = []

    def new(
        path: Path | None = None,
        size_bytes: int = 1 << 30,
        dataset: bytes = DATASET,
        clock: Callable[[], float] = time.monotonic,
        read_file: ReadFile | None = None,
        read_timeout_s: float = PATIENCE_S,
    ) -> DiskTier:
        place = path or tmp_path / "tier"
        tier = DiskTier(place, size_bytes, dataset, lambda: CURRENT, None, clock, read_timeout_s, read_file)
        made.append(tier)
        return tier

    yield new
    for tier in made:
        tier.close()


def stored(tier: DiskTier, *chunk_ids: bytes) -> DiskTier:
    for chunk_id in chunk_ids:
        tier.store(chunk_id, UNWRITTEN)
    assert tier.flush(PATIENCE_S)
    return tier


def got(tier: DiskTier, chunk_id: bytes, length_bytes: int = len(PAYLOAD)) -> bytes | None:
    found = tier.read(chunk_id, length_bytes)
    return None if found is None else bytes(found)


def file_of(tmp_path: Path, chunk_id: bytes) -> Path:
    return tmp_path / "tier" / "dieselfs-1" / DATASET.hex() / chunk_id.hex()


def counted(tier: DiskTier) -> dict[str, int]:
    found: dict[str, int] = tier.metrics.as_dict()["disk"]
    return found


def test_a_chunk_comes_back_at_once_and_after_a_restart(make: Make, tmp_path: Path) -> None:
    tier = make()
    assert got(tier, ONE) is None
    tier.store(ONE, UNWRITTEN)
    assert got(tier, ONE) == PAYLOAD, "from the queue or from the disk"
    tier.close()
    assert got(tier, ONE) is None
    assert file_of(tmp_path, ONE).read_bytes() == PAYLOAD
    again = make()
    assert got(again, ONE) == PAYLOAD
    ranges = again.read_ranges(ONE, len(PAYLOAD), [(5, 10), (99_000, 1_001), (0, 1)])
    assert ranges is not None and bytes(ranges) == PAYLOAD[5:15] + PAYLOAD[99_000:] + PAYLOAD[:1]
    assert got(make(dataset=OTHER), ONE) is None


def test_only_the_owner_can_read_the_files(make: Make, tmp_path: Path) -> None:
    stored(make(), ONE)
    for path in (tmp_path / "tier").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize("length", [0, 1, len(PAYLOAD) - 1, len(PAYLOAD) + 1])
def test_a_file_of_another_length_is_dropped(make: Make, tmp_path: Path, length: int) -> None:
    tier = stored(make(), ONE)
    os.truncate(file_of(tmp_path, ONE), length)
    assert got(tier, ONE) is None
    assert tier.flush(PATIENCE_S) and not file_of(tmp_path, ONE).exists()
    assert counted(tier)["damaged_chunks"] == 1
    assert got(stored(tier, ONE), ONE) == PAYLOAD


def test_what_is_no_file_is_not_read(make: Make, tmp_path: Path) -> None:
    tier = stored(make(), ONE)
    file_of(tmp_path, TWO).symlink_to(file_of(tmp_path, ONE))
    os.mkfifo(file_of(tmp_path, THREE))
    assert got(tier, THREE) is None
    assert got(tier, TWO) is None


def test_a_dropped_chunk_is_not_seen_and_can_be_stored_again(make: Make) -> None:
    tier = stored(make(), ONE, TWO)
    tier.drop(ONE)
    assert got(tier, ONE) is None
    other = new_buffer(5)
    other[:5] = b"other"
    tier.store(ONE, UnwrittenPayload(other, 5))
    assert tier.flush(PATIENCE_S)
    assert got(tier, ONE, 5) == b"other" and got(tier, TWO) == PAYLOAD


def test_a_full_tier_says_so_once_and_still_serves(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    tier = stored(make(size_bytes=250_000, clock=clock), ONE, TWO, THREE)
    assert not tier.has_room
    assert got(tier, ONE) == got(tier, TWO) == PAYLOAD
    clock.now_s += DISK_RETRY_S
    assert tier.has_room
    stored(tier, THREE)
    assert got(tier, THREE) is None
    assert counted(tier)["skipped_chunks"] == 2 and counted(tier)["written_chunks"] == 2
    assert [record.message for record in caplog.records if "full" in record.message] == [
        caplog.records[0].message
    ]


def test_a_disk_without_space_is_done_without(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "disk", "300k") as folder:
        tier = stored(make(folder / "tier"), ONE, TWO, THREE)
        assert counted(tier)["failures"] == 1 and not tier.has_room
        assert sum("No space left" in record.message for record in caplog.records) == 1
        tier.close()
        again = make(folder / "tier")
        assert got(again, ONE) == PAYLOAD
        assert not list((folder / "tier/dieselfs-1").glob("*/.*")), "what could not be written is removed"
        again.close()


def test_a_folder_that_vanishes_is_made_again(make: Make, tmp_path: Path) -> None:
    clock = Clock()
    tier = stored(make(clock=clock), ONE)
    (tmp_path / "tier").rename(tmp_path / "gone")
    assert got(tier, ONE) is None
    stored(tier, TWO)
    assert counted(tier)["failures"] == 1 and got(tier, TWO) is None
    clock.now_s += DISK_RETRY_S
    assert got(stored(tier, TWO), TWO) == PAYLOAD


def test_a_folder_of_others_is_not_used(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    check_folder(tmp_path / "tier").chmod(0o777)
    tier = stored(make(), ONE)
    assert got(tier, ONE) is None and counted(tier)["failures"] == 1
    assert "0700" in caplog.text


def test_a_bad_sector_costs_one_chunk(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()

    def read(file: Path, length_bytes: int, ranges: Sequence[Range]) -> memoryview | None:
        if file.name == ONE.hex() and file.exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read_ranges_of(file, length_bytes, ranges)

    tier = stored(make(clock=clock, read_file=read), ONE, TWO)
    assert got(tier, ONE) is None
    assert got(tier, TWO) is None, "the disk is not used for a while"
    assert tier.flush(PATIENCE_S)
    clock.now_s += DISK_RETRY_S
    assert got(tier, TWO) == PAYLOAD and got(tier, ONE) is None
    assert counted(tier)["failures"] == counted(tier)["damaged_chunks"] == 1


def test_a_disk_that_hangs_is_not_waited_for_and_used_when_it_is_back(make: Make) -> None:
    clock, is_back = Clock(), Event()

    def read(file: Path, length_bytes: int, ranges: Sequence[Range]) -> memoryview | None:
        assert is_back.wait(PATIENCE_S)
        return read_ranges_of(file, length_bytes, ranges)

    tier = stored(make(clock=clock, read_file=read, read_timeout_s=0.01), ONE)
    assert got(tier, ONE) is None
    clock.now_s += DISK_RETRY_S
    assert not tier.has_room and got(tier, ONE) is None, "it hangs still"
    assert counted(tier)["failures"] == 1
    is_back.set()
    tier = make(clock=clock)
    assert got(tier, ONE) == PAYLOAD


def test_a_forked_child_uses_the_disk_with_threads_and_locks_of_its_own(make: Make, tmp_path: Path) -> None:
    tier = stored(make(), ONE)
    child = os.fork()
    if not child:
        is_right = got(tier, ONE) == PAYLOAD
        tier.store(TWO, UNWRITTEN)
        is_right = is_right and tier.flush(PATIENCE_S)
        tier.close()
        os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert got(tier, TWO) == PAYLOAD
    folder = tmp_path / "tier/dieselfs-1"
    with closing(DiskSpace(folder, 1)) as space:  # it evicts what nobody holds
        assert space.evicted_chunks == 0, "the parent still holds its dataset"


def in_a_child(task: Callable[[], bool]) -> None:
    gc.collect()  # what other tests have left must not log in the child
    child = os.fork()
    if not child:
        os._exit(0 if task() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_disk_that_fails_in_one_process_is_not_used_in_its_family_and_reported_once(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    tier = stored(make(clock=clock), ONE)
    (tmp_path / "tier").rename(tmp_path / "gone")
    (tmp_path / "tier").write_bytes(b"no folder")
    in_a_child(lambda: got(tier, ONE) is None and len(caplog.records) == 1)
    assert not tier.has_room and got(tier, ONE) is None and counted(tier)["failures"] == 0
    clock.now_s += DISK_RETRY_S
    assert got(tier, ONE) is None and counted(tier)["failures"] == 1
    assert not caplog.records, "nothing was written since the child has reported it"
    (tmp_path / "tier").unlink()
    clock.now_s += DISK_RETRY_S
    in_a_child(lambda: got(stored(tier, TWO), TWO) == PAYLOAD)
    (tmp_path / "tier").rename(tmp_path / "gone again")
    (tmp_path / "tier").write_bytes(b"no folder")
    assert got(tier, TWO) is None and len(caplog.records) == 1


def test_a_fork_holds_the_dataset_with_its_parent(make: Make, tmp_path: Path) -> None:
    """Each of them evicts chunks that are not in the snapshot."""
    size_bytes = 3 * aligned_bytes(len(PAYLOAD))
    old = stored(make(size_bytes=size_bytes), bytes([4]) * 16, bytes([5]) * 16, bytes([6]) * 16)
    old.close()
    tier = make(size_bytes=size_bytes)
    hold = tier.hold()
    assert hold is not None

    def evict() -> bool:
        tier.share(hold)
        return got(stored(tier, ONE), ONE) == PAYLOAD

    in_a_child(evict)
    os.close(hold)
    assert got(tier, ONE) == PAYLOAD and got(stored(tier, TWO), TWO) == PAYLOAD


def test_many_threads_share_a_tier(make: Make) -> None:
    tier, wrong = make(), []

    def use(chunk_id: bytes) -> None:
        for _ in range(20):
            tier.store(chunk_id, UNWRITTEN)
            found = got(tier, chunk_id)
            if found is not None and found != PAYLOAD:
                wrong.append(chunk_id)

    threads = [Thread(target=use, args=(bytes([number % 3 + 1]) * 16,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and tier.flush(PATIENCE_S)
    assert counted(tier)["written_chunks"] >= 3 and counted(tier)["failures"] == 0


def test_nothing_is_open_after_the_end(make: Make) -> None:
    before = descriptor_count()
    stored(make(), ONE).close()
    assert descriptor_count() == before


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 100)), min_size=1), st.integers(0, 50))
@settings(deadline=None)
def test_merged_reads_cover_the_ranges_in_their_order(ranges: list[Range], gap_bytes: int) -> None:
    reads = merged(ranges, gap_bytes)
    assert [each for _, _, inner in reads for each in inner] == ranges
    for start, length, inner in reads:
        assert all(start <= offset and offset + size <= start + length for offset, size in inner)


CONTENT = os.urandom(3 * ALIGNMENT_BYTES + 77)


def store(path: Path, content: bytes) -> None:
    buffer = new_buffer(len(content))
    buffer[: len(content)] = content
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        bypass_page_cache(descriptor)
        write_all(descriptor, buffer)
        os.ftruncate(descriptor, len(content))
    finally:
        os.close(descriptor)


@pytest.fixture(scope="module")
def descriptor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path = tmp_path_factory.mktemp("direct") / "file"
    store(path, CONTENT)
    assert path.read_bytes() == CONTENT
    descriptor = os.open(path, os.O_RDONLY)
    bypass_page_cache(descriptor)
    yield descriptor
    os.close(descriptor)


@given(st.integers(0, len(CONTENT) + ALIGNMENT_BYTES), st.integers(0, 2 * len(CONTENT)))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_range_is_that_of_the_file(descriptor: int, offset: int, length: int) -> None:
    assert bytes(read_at(descriptor, length, offset)) == CONTENT[offset : offset + length]


def test_a_file_system_of_memory_works_too(tmp_path: Path) -> None:
    with small_disk(tmp_path / "memory", "1m") as folder:
        store(folder / "file", CONTENT)
        with open(folder / "file", "rb") as file:
            bypass_page_cache(file.fileno())
            assert bytes(read_at(file.fileno(), len(CONTENT), 0)) == CONTENT


@given(st.integers(0, 1 << 40))
def test_lengths_are_rounded_up_to_sectors(length: int) -> None:
    assert 0 <= aligned_bytes(length) - length < ALIGNMENT_BYTES
    assert aligned_bytes(length) % ALIGNMENT_BYTES == 0
