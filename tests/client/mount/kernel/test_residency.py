"""Over real files, against what was read and dropped."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs_client.mount.kernel import residency
from dieselfs_client.mount.kernel.residency import (
    PAGE_BYTES,
    SAMPLE_BYTES,
    SAMPLES_MAX,
    counted_by_cachestat,
    counted_by_mincore,
    is_resident,
    resident_pages,
    samples,
)
from tests.support.page_cache import undisturbed

PAGES = 64
Count = Callable[[int, int, int], int]


def has_cachestat() -> bool:
    with open(__file__, "rb") as file:
        try:
            counted_by_cachestat(file.fileno(), 0, 1)
        except OSError:
            return False
    return True


ways = pytest.mark.parametrize(
    "count",
    [
        counted_by_mincore,
        pytest.param(
            counted_by_cachestat, marks=pytest.mark.skipif(not has_cachestat(), reason="needs Linux 6.5")
        ),
        resident_pages,
    ],
)


def drop(file: int) -> None:
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """A file of PAGES pages and 100 bytes, of which nothing is in the page cache, if its file system can drop pages."""
    path = tmp_path / "file"
    path.write_bytes(bytes(PAGES * PAGE_BYTES + 100))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # without read-ahead
        drop(descriptor)
        if counted_by_mincore(descriptor, 0, PAGES * PAGE_BYTES):
            pytest.skip("this file system keeps its pages, as tmpfs does")
        yield descriptor
    finally:
        os.close(descriptor)


@ways
@undisturbed
def test_pages_that_were_read(file: int, count: Count) -> None:
    drop(file)
    assert count(file, 0, 10 * PAGE_BYTES) == 0
    for page in (3, 5, PAGES):  # the last has 100 bytes
        os.pread(file, 1, page * PAGE_BYTES)
    assert count(file, 0, PAGES * PAGE_BYTES) == 2
    assert count(file, 0, PAGES * PAGE_BYTES + 100) == 3
    assert count(file, 3 * PAGE_BYTES + 17, 1) == 1
    assert count(file, 4 * PAGE_BYTES - 1, PAGE_BYTES + 2) == 2


@ways
def test_a_file_that_is_not_open(count: Count) -> None:
    with pytest.raises(OSError):
        count(-1, 0, 1)


def test_nothing_of_nothing(file: int) -> None:
    assert resident_pages(file, 0, 0) == 0
    assert is_resident(file, PAGE_BYTES, 0)


@undisturbed
def test_mincore_stands_in_where_cachestat_does_not_exist(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency, "_CACHESTAT", 1 << 20)
    drop(file)
    os.pread(file, 1, 0)
    assert resident_pages(file, 0, PAGES * PAGE_BYTES) == 1


@undisturbed
def test_ranges_that_lack_a_page(file: int) -> None:
    drop(file)
    os.pread(file, 4 * PAGE_BYTES, 0)
    ranges = [(0, PAGE_BYTES), (100, 4 * PAGE_BYTES), (0, 4 * PAGE_BYTES), (20 * PAGE_BYTES, 1), (0, 0)]
    assert [is_resident(file, *each) for each in ranges] == [True, False, True, False, True]


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 36))
def test_samples_lie_within_the_range_and_reach_both_ends(offset: int, length: int) -> None:
    parts = samples(offset, length)
    assert sum(part for _, part in parts) == min(length, SAMPLE_BYTES * SAMPLES_MAX)
    assert len(parts) <= SAMPLES_MAX
    for (start, part), (following, _) in itertools.pairwise(parts):
        assert start + part <= following
    if length:
        assert parts[0][0] == offset
        assert sum(parts[-1]) == offset + length
