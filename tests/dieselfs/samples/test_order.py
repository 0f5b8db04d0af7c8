"""The order of samples that are files: subsets, and several samples of one file."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.errors import InvalidInput
from dieselfs.samples.order import Ordered, SampleNames, SamplePlaces
from dieselfs.samples.sampler_state import SamplerState
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.skips import Skips
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec
from tests.support.shuffled_folder import ShuffledFolder

FOLDER = ShuffledFolder(60)


def whole(places: SamplePlaces, spec: PlanSpec) -> list[int]:
    order = places.order(spec)
    return list(map(int, order.indices(np.arange(len(order)))))


def test_datasets_are_ordered() -> None:
    assert isinstance(FOLDER, Ordered) and isinstance(FOLDER.places, Ordered)
    assert not isinstance([1, 2], Ordered)


@given(st.lists(st.integers(0, 59), max_size=80), st.integers(0, 3), st.sampled_from([0, 1, 4]))
def test_the_order_of_a_part_is_that_of_the_whole_without_the_rest(
    chosen: list[int], seed: int, group_chunks: int
) -> None:
    spec = PlanSpec(seed, 1, group_chunks)
    part = FOLDER.subset(chosen)
    found = whole(part, spec)
    assert sorted(found) == list(range(len(chosen)))
    # The first occurrence of each sample is where it is in the whole order.
    firsts = [chosen[index] for index in found if chosen.index(chosen[index]) == index]
    assert firsts == [index for index in whole(FOLDER.places, spec) if index in set(chosen)]


def test_samples_of_one_file_are_spread_over_its_group() -> None:
    nodes = np.repeat(FOLDER.nodes[:6], 10)
    order = SamplePlaces(FOLDER.places.source, b"train", nodes).order(PlanSpec(group_chunks=0))
    found = order.indices(np.arange(60))
    assert sorted(found.tolist()) == list(range(60))
    assert (np.diff(nodes[found].astype(int)) == 0).sum() < 25
    assert order.plan.nodes().tolist() == nodes[found].tolist()


def test_names_number_the_samples_of_a_file() -> None:
    names = SampleNames(np.array([7, 5, 7, 7], np.uint32))
    assert names.names.tolist() == [5, 7, (1 << 32) + 7, (2 << 32) + 7]
    assert names.samples(names.names[::-1]).tolist() == [3, 2, 0, 1]
    assert SampleNames(np.array([], np.uint32)).names.tolist() == []


def test_a_cursor_knows_which_samples_it_counts() -> None:
    folder, half = FOLDER.order(PlanSpec(3)), FOLDER.subset(range(30)).order(PlanSpec(3))
    assert str(folder.cursor(5)) == str(Plan(FOLDER.snapshot, PlanSpec(3, folder=b"train")).cursor(5))
    half.check_cursor(half.cursor(30))
    for other in (folder, FOLDER.subset(range(1, 31)).order(PlanSpec(3))):
        with pytest.raises(InvalidInput, match="and choose the same files"):
            other.check_cursor(half.cursor(5))
    FOLDER.subset([*range(29, -1, -1)]).order(PlanSpec(3)).check_cursor(half.cursor(5))


def test_every_sample_of_a_part_is_read_once_by_ranks_that_change() -> None:
    part = FOLDER.subset([*range(0, 60, 2), 4, 4])
    state = None
    served: list[int] = []
    for world, steps in ((1, 2), (3, 2), (2, None)):
        ranks = [
            SamplerState(part, 6, seed=1, group_chunks=2, rank=rank, world=world) for rank in range(world)
        ]
        for rank in ranks:
            if state is not None:
                rank.load_state_dict(state)
            for number, (_, of_step) in enumerate(rank.steps(rank.position), start=1):
                rank.advance()
                served += of_step
                if number == steps:
                    break
        assert len({rank.position for rank in ranks}) == 1
        state = ranks[0].state_dict()
    assert sorted(served) == list(range(32))


def test_a_part_declares_the_groups_of_its_folder() -> None:
    folder = ShuffledFolder(60)
    reader = ReaderSpec(1, 2, 10, 20)
    folder.order(PlanSpec(3, 1, 2)).declare(reader)
    assert folder.declared.pop().reader == reader
    order = folder.subset(range(30)).order(PlanSpec(3, 1, 2, Skips([range(3)])))
    order.declare(ReaderSpec(1, 2, 10, 12))
    share = folder.declared.pop()
    assert (share.plan.spec, share.rank, share.world) == (PlanSpec(3, 1, 2, folder=b"train"), 0, 1)
    read = set(order.plan.nodes(12).tolist())
    assert read <= set(share.nodes().tolist())
    assert len(share) < 60
    order.declare(ReaderSpec(start=len(order)))
    assert not folder.declared
