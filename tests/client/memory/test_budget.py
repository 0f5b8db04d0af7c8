import re

import pytest

from dieselfs.errors import InvalidInput
from dieselfs.limits import GIB, MIB, MOUNT_MEMORY_BYTES
from dieselfs_client.memory.budget import (
    SPAN_BYTES,
    WINDOW_BYTES,
    WINDOW_BYTES_MAX,
    Allotment,
    allot,
    node_cache_bytes_for,
    node_cache_evictable_bytes,
    offered_bytes,
    span_bytes,
    window_advice,
)

CHUNK = 4 * MIB


def test_a_dataset_that_fits_is_kept_whole_and_needs_no_window() -> None:
    allotment = allot(1 * GIB, 10 * MIB, 1000, 500 * MIB, CHUNK)
    assert (allotment.pinned, allotment.window) == (500 * MIB, 0)


def test_one_that_does_not_fit_streams_through_two_groups_and_the_rest_is_kept() -> None:
    allotment = allot(4 * GIB, 100 * MIB, 1_000_000, 100 * GIB, CHUNK)
    assert allotment.window == WINDOW_BYTES_MAX
    assert allotment.pinned > 2 * GIB
    assert allotment.total == 4 * GIB


@pytest.mark.parametrize("memory_mib", [512, 700, 1024])
def test_two_of_the_largest_default_groups_fit_into_little_memory(memory_mib: int) -> None:
    allotment = allot(memory_mib * MIB, 5 * MIB, 100_000, 100 * GIB, CHUNK)
    assert WINDOW_BYTES <= allotment.window <= allotment.pinned + WINDOW_BYTES


@pytest.mark.parametrize("memory_mib", [64, 100, 500, 1024, 16384])
@pytest.mark.parametrize("dataset_mib", [0, 1, 60, 1000, 1 << 20])
def test_the_parts_never_take_more_than_the_whole(memory_mib: int, dataset_mib: int) -> None:
    allotment = allot(memory_mib * MIB, 5 * MIB, 100_000, dataset_mib * MIB, CHUNK)
    assert allotment.total <= memory_mib * MIB
    assert allotment.evictable >= 2 * CHUNK
    assert 0 <= allotment.pinned <= dataset_mib * MIB


def test_the_tables_of_more_files_leave_less_to_keep() -> None:
    few, many = (allot(1 * GIB, 5 * MIB, nodes, 100 * GIB, CHUNK) for nodes in (100_000, 1_000_000))
    assert many.tables - few.tables == few.pinned + few.window - many.pinned - many.window > 0


@pytest.mark.parametrize("nodes", [2, 3, 8, 64, 1024])
def test_what_a_node_owns_of_two_spans_passes_through_its_shelf(nodes: int) -> None:
    evictable = node_cache_evictable_bytes(64 * GIB, nodes)
    two_spans = max(WINDOW_BYTES / nodes, 2 * SPAN_BYTES)
    assert evictable > 1.2 * two_spans, "on the average, with room for what chance adds"
    assert evictable < WINDOW_BYTES
    assert 2 * CHUNK < node_cache_evictable_bytes(100 * MIB, nodes) < 100 * MIB, "a small one keeps some"


@pytest.mark.parametrize("plans", [1, 3])
@pytest.mark.parametrize("shelf_mib", [0, 100, 300, 16384])
@pytest.mark.parametrize("window_mib", [0, 50, 800])
def test_four_spans_of_each_plan_fit_into_the_window_and_pass_through_the_shelf(
    window_mib: int, shelf_mib: int, plans: int
) -> None:
    allotment = Allotment(0, 0, 0, window_mib * MIB, 0, shelf_mib * MIB)
    together = span_bytes(allotment, plans)
    assert 4 * together * plans <= allotment.window
    assert 3 * together <= node_cache_evictable_bytes(allotment.node_cache, 1024)
    assert together == SPAN_BYTES or shelf_mib < 1024 or window_mib < 800


@pytest.mark.parametrize("owned_bytes", [10 * MIB, 700 * MIB, 90 * GIB])
@pytest.mark.parametrize("nodes", [1, 3, 64])
def test_a_shelf_for_so_much_keeps_it_and_takes_no_more_than_it_must(owned_bytes: int, nodes: int) -> None:
    node_cache = node_cache_bytes_for(owned_bytes, nodes)
    assert 0 <= node_cache - node_cache_evictable_bytes(node_cache, nodes) - owned_bytes <= 2


def test_what_cannot_hold_two_chunks_is_refused_with_what_would_do() -> None:
    with pytest.raises(InvalidInput, match="give at least --memory 13MiB"):
        allot(12 * MIB, 5 * MIB, 0, 500 * MIB, CHUNK)
    allot(13 * MIB, 5 * MIB, 0, 500 * MIB, CHUNK)


def test_a_snapshot_larger_than_memory_is_mapped_beside_two_chunks() -> None:
    with pytest.raises(InvalidInput, match="give at least --memory 16MiB"):
        allot(15 * MIB, 100 * GIB, 0, 500 * MIB, CHUNK)
    allotment = allot(16 * MIB, 100 * GIB, 0, 500 * MIB, CHUNK)
    assert (allotment.snapshot, allotment.total) == (8 * MIB, 16 * MIB)


def test_a_disk_counts_where_the_memory_of_the_job_is_too_small() -> None:
    assert offered_bytes(64 * GIB, 500 * GIB, 256 * GIB, 4) == 64 * GIB
    assert offered_bytes(64 * GIB, 500 * GIB, 256 * GIB + 1, 4) == 64 * GIB + 256 * GIB + 1
    assert offered_bytes(64 * GIB, 100 * GIB, 1000 * GIB, 4) == 164 * GIB
    assert offered_bytes(64 * GIB, 100 * GIB, 65 * GIB, 0) == 64 * GIB + 65 * GIB, "nodes unknown"
    assert offered_bytes(64 * GIB, 0, 1000 * GIB, 4) == 64 * GIB


CHUNKS = 25_000
GROUP_CHUNKS = 25


def advice(memory_bytes: int, snapshot_bytes: int = 10 * MIB, chunk_bytes: int = CHUNK) -> tuple[str, int]:
    """What a mount of CHUNKS chunks says about its memory, and the size of its window."""
    dataset_bytes = CHUNKS * chunk_bytes

    def allotted(memory_bytes: int) -> Allotment:
        return allot(memory_bytes, snapshot_bytes, 100_000, dataset_bytes, CHUNK)

    found = allotted(memory_bytes)
    return window_advice(found, dataset_bytes, CHUNKS, allotted), found.window


def given_by(text: str) -> int:
    """The memory that an advice names, in MiB."""
    found = re.search(r"--memory (\d+)MiB", text)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("snapshot_mib", [10, 1000])
@pytest.mark.parametrize("chunk_mib", [4, 12, 24])
def test_the_advice_names_the_least_memory_for_two_of_the_largest_groups(
    snapshot_mib: int, chunk_mib: int
) -> None:
    parts = snapshot_mib * MIB, chunk_mib * MIB
    needed = given_by(advice(100 * MIB, *parts)[0])
    text, window = advice((needed - 1) * MIB, *parts)
    assert 0 < window < 2 * GROUP_CHUNKS * chunk_mib * MIB
    assert text.startswith(f"{needed - 1} MiB of memory are too little"), "one MiB less"
    assert given_by(text) == needed
    text, window = advice(needed * MIB, *parts)
    assert text == ""
    assert window == 0 or window >= 2 * GROUP_CHUNKS * chunk_mib * MIB


def test_the_group_of_the_advice_fits_twice_into_the_window() -> None:
    text, window = advice(200 * MIB)
    (group,) = map(int, re.findall(r"group=(\d+)", text))
    assert 2 * group * CHUNK <= window < 2 * (group + 1) * CHUNK


def test_no_group_is_advised_if_not_even_one_chunk_fits_twice() -> None:
    assert "group=" not in advice(16 * MIB, 1 * MIB)[0]


def test_a_mount_that_pins_everything_or_has_the_default_memory_is_given_no_advice() -> None:
    assert advice(MOUNT_MEMORY_BYTES)[0] == ""
    assert advice(200 * GIB) == ("", 0)
