"""Randomness: counted by hand where that can be done, and the figures that the papers' datasets give."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product
from math import factorial, lgamma, log

import numpy as np
import pytest

from dieselfs.errors import InvalidInput
from dieselfs.shuffle.opportunistic import Arrival, Parts, ServedLog
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.quality import (
    FULL_SHUFFLE_DISTANCE,
    mean_distance_moved,
    measure,
    measure_served,
    order_entropy_ratio,
    repeats,
    repeats_expected,
    served_nodes,
)
from dieselfs.shuffle.spec import PlanSpec
from tests.support.dataset import TreeEntry, pack_entries

IMAGENET_CHUNKS, IMAGENET_PER_CHUNK = 34_625, 37
CIFAR_FILES, CIFAR_CHUNKS = 50_000, 38  # 1,300 files in a chunk


@pytest.mark.parametrize(
    ("group_chunks", "percent"), [(1, 22), (10, 39), (50, 51), (100, 56), (500, 68), (1000, 74), (0, 100)]
)
def test_imagenet(group_chunks: int, percent: int) -> None:
    files = IMAGENET_CHUNKS * IMAGENET_PER_CHUNK
    assert 100 * order_entropy_ratio(files, IMAGENET_CHUNKS, group_chunks) == pytest.approx(percent, abs=0.6)


@pytest.mark.parametrize(("group_chunks", "percent"), [(5, 79), (15, 89), (30, 95), (38, 100)])
def test_cifar_10(group_chunks: int, percent: int) -> None:
    assert round(100 * order_entropy_ratio(CIFAR_FILES, CIFAR_CHUNKS, group_chunks)) == percent


@pytest.mark.parametrize("group_chunks", [1, 2, 3, 4, 0])
def test_every_order_is_counted_once(group_chunks: int) -> None:
    def orders() -> Iterator[tuple[int, ...]]:
        size = group_chunks or 4
        for chunks in permutations(range(4)):  # chunk c holds the files 2c and 2c + 1
            groups = [chunks[first : first + size] for first in range(0, 4, size)]
            files = [[2 * chunk + half for chunk in group for half in (0, 1)] for group in groups]
            for shuffled in product(*(permutations(group) for group in files)):
                yield tuple(file for group in shuffled for file in group)

    counted = log(len(set(orders()))) / log(factorial(8))
    assert order_entropy_ratio(8, 4, group_chunks) == pytest.approx(counted)


def test_with_one_order_only_that_one_is_given() -> None:
    assert order_entropy_ratio(1, 1, 1) == order_entropy_ratio(0, 0, 0) == order_entropy_ratio(0, 1, 1) == 1.0


def test_how_far_files_are_moved() -> None:
    assert mean_distance_moved(np.arange(100)) == 0 == mean_distance_moved(np.empty(0, np.int64))
    assert mean_distance_moved(np.array([30, 20, 10])) == pytest.approx((2 + 0 + 2) / 3 / 3)


def test_repeats() -> None:
    labels = np.array([1, 1, 2, 2, 2, 1])
    assert repeats(labels) == 3 / 5
    everywhere = [repeats(np.array(order)) for order in permutations(labels.tolist())]
    assert repeats_expected(labels) == pytest.approx(sum(everywhere) / len(everywhere))
    assert repeats(labels[:1]) == repeats_expected(labels[:1]) == 0


def test_larger_groups_are_more_random_and_need_more_memory() -> None:
    files = [TreeEntry(b"%d/%04d" % (n // 200, n), 0o100644, 0, b"x" * 10) for n in range(4000)]
    snapshot = pack_entries(files, chunk_bytes=200).snapshot
    single, several, full = (
        measure(Plan(snapshot, PlanSpec(1, 0, group_chunks))) for group_chunks in (1, 10, 0)
    )
    assert single.entropy_ratio < several.entropy_ratio < full.entropy_ratio == pytest.approx(1)
    assert single.group_bytes_max == 200 == single.group_bytes_mean
    assert several.group_bytes_max == 2_000 and full.group_bytes_max == 40_000
    assert abs(full.mean_distance - FULL_SHUFFLE_DISTANCE) < 0.02
    assert single.folder_repeats > 0.9 > several.folder_repeats > 0.1 > full.folder_repeats
    assert full.folder_repeats_expected == pytest.approx(199 / 3999)


def test_the_quality_of_an_order_that_was_served() -> None:
    files = [TreeEntry(b"%d/%04d" % (n // 20, n), 0o100644, 0, b"x" * 10) for n in range(80)]
    plan = Plan(pack_entries(files, chunk_bytes=200).snapshot, PlanSpec(1, 2))
    parts = Parts(plan.layout, 1, 2).order
    assert len(parts) == 4
    at_once = tuple(Arrival(0, part) for part in parts)
    in_turn = tuple(Arrival(20 * number, part) for number, part in enumerate(parts))
    log_ = ServedLog(plan.cursor(0).snapshot, 1, 2, 0, 1)
    full, ordered = (measure_served(plan, replace(log_, arrivals=those)) for those in (at_once, in_turn))
    assert full.entropy_ratio == pytest.approx(1) and full.buffered_bytes_max == 800
    assert (
        ordered.entropy_ratio == pytest.approx(4 * lgamma(21) / lgamma(81)) and ordered.folder_repeats > 0.9
    )
    assert ordered.buffered_bytes_max == 200 and ordered.files == full.files == 80
    assert set(served_nodes(plan, replace(log_, arrivals=in_turn[:2]))) == {
        node for part in parts[:2] for node in Parts(plan.layout, 1, 2).nodes[part].tolist()
    }
    for other in (replace(log_, epoch=3), replace(log_, snapshot="0" * 24)):
        with pytest.raises(InvalidInput, match="another order"):
            measure_served(plan, other)
