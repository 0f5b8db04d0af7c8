"""Lists as plans: the same files in the same order, in groups of about as many bytes."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.shuffle.listed import ListedPlan
from tests.support.dataset import TreeEntry, pack_entries

SIZES = [10, 0, 25, 3, 40, 7]
PACKED = pack_entries([TreeEntry(b"%d" % n, 0o100644, 0, b"x" * size) for n, size in enumerate(SIZES)])
FILES = [PACKED.snapshot.require(b"%d" % number) for number in range(len(SIZES))]


@given(st.lists(st.sampled_from(FILES), max_size=40), st.integers(1, 60), st.integers(1, 60))
def test_a_plan_has_the_files_of_its_list(files: list[int], first_bytes: int, group_bytes: int) -> None:
    plan = ListedPlan(PACKED.snapshot, np.array(files, np.int64), first_bytes, group_bytes)
    assert len(plan) == len(files)
    assert plan.nodes().tolist() == files
    assert plan.share().nodes().tolist() == files
    bounds = plan.group_bounds().tolist()
    assert bounds == sorted(set(bounds)) and bounds[0] == 0 and bounds[-1] == len(files)
    for group, (first, end) in enumerate(pairwise(bounds)):
        assert plan.group_of(first) == plan.group_of(end - 1) == group
        assert plan.nodes_of(group, np.arange(first, end)).tolist() == files[first:end]
        assert plan.nodes_of(group, np.array([end - 1])).tolist() == [files[end - 1]]
        assert end - first == 1 or PACKED.snapshot.column("sizes")[files[first:end]].sum() <= 60 + max(SIZES)


@pytest.mark.parametrize(("first_bytes", "bounds"), [(35, [0, 3, 4, 6]), (100, [0, 6]), (1, [0, 4, 5, 6])])
def test_groups_are_cut_by_bytes(first_bytes: int, bounds: list[int]) -> None:
    plan = ListedPlan(PACKED.snapshot, np.array(FILES, np.int64), first_bytes, 40)
    assert plan.group_bounds().tolist() == bounds


def test_files_that_the_list_has_once() -> None:
    plan = ListedPlan(PACKED.snapshot, np.array([FILES[0], FILES[1], FILES[0], FILES[3]], np.int64))
    assert plan.is_single(np.array(FILES)).tolist() == [False, True, False, True, False, False]
