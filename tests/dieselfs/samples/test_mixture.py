"""Mixtures: one order, one cursor; every source is read in its own order, evenly, over all epochs."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs.errors import InvalidInput
from dieselfs.samples.mixture import MixedSamples, Mixture
from dieselfs.samples.sampler_state import SamplerState
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec
from tests.support.shuffled_folder import ShuffledFolder

FIRST, SECOND = ShuffledFolder(40), ShuffledFolder(15, classes=2)
WEIGHTED = Mixture([FIRST, SECOND], [1, 2], 30)


def epoch_of(mixture: Mixture, epoch: int, seed: int = 1) -> list[int]:
    order = mixture.order(PlanSpec(seed, epoch, 3))
    return [int(index) for index in order.indices(np.arange(len(order)))]


def read(sampler: SamplerState, steps: int) -> list[int]:
    found: list[int] = []
    for number, (_, of_step) in enumerate(sampler.steps(sampler.position), start=1):
        sampler.advance()
        found += of_step
        if number == steps:
            break
    return found


def test_without_weights_each_sample_comes_once_in_each_epoch() -> None:
    mixture = Mixture([FIRST, SECOND])
    assert len(mixture) == 55
    epochs = [epoch_of(mixture, epoch) for epoch in range(3)]
    assert all(sorted(epoch) == list(range(55)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_weights_decide_how_often_and_no_sample_is_favoured() -> None:
    """An epoch has 10 of 40 and 20 of 15 samples, so after twelve epochs each is read 3 or 16 times."""
    assert WEIGHTED.counts == [10, 20]
    served = Counter(index for epoch in range(12) for index in epoch_of(WEIGHTED, epoch))
    assert {served[index] for index in range(40)} == {3}
    assert {served[index] for index in range(40, 55)} == {16}


def test_a_pass_over_a_source_is_its_own_epoch() -> None:
    second = [index - 40 for epoch in range(3) for index in epoch_of(WEIGHTED, epoch) if index >= 40]
    passes = [second[first:end] for first, end in pairwise(range(0, 61, 15))]
    assert all(sorted(one) == list(range(15)) for one in passes)
    assert len({tuple(one) for one in passes}) == 4


def test_one_dataset_twice_is_read_in_two_orders() -> None:
    indices = epoch_of(Mixture([FIRST, FIRST]), 0)
    first, second = [i for i in indices if i < 40], [i - 40 for i in indices if i >= 40]
    assert sorted(first) == sorted(second) != first != second


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=4), st.integers(0, 4))
def test_ranks_may_change_whenever_the_job_is_interrupted(jobs: list[tuple[int, int]], epoch: int) -> None:
    state = None
    served: list[int] = []
    for number, (world, steps) in enumerate([*jobs, (1, 100)]):
        options = {"uneven_steps": "uneven"} if number else {}
        ranks = [
            SamplerState(WEIGHTED, 6, seed=1, group_chunks=3, rank=rank, world=world, **options)  # type: ignore[arg-type]  # options of one kind
            for rank in range(world)
        ]
        for rank in ranks:
            rank.set_epoch(epoch) if state is None else rank.load_state_dict(state)
            if steps:
                served += read(rank, steps)
        state = max(ranks, key=lambda rank: rank.position).state_dict()
    assert sorted(served) == sorted(epoch_of(WEIGHTED, epoch))


def test_resumed_twice_it_reads_what_it_would_have_read() -> None:
    sampler = SamplerState(WEIGHTED, 7, seed=1, group_chunks=3, rank=0, world=1)
    found = []
    for steps in (1, 2, 1, 9):
        found += read(sampler, steps)
        state = sampler.state_dict()
        assert state["cursor"].startswith("mix1.")
        sampler = SamplerState(WEIGHTED, 7, seed=5, rank=0, world=1)
        sampler.load_state_dict(state)
    assert found == epoch_of(WEIGHTED, 0)


def test_skips_are_positions_of_the_mixture() -> None:
    sampler = SamplerState(WEIGHTED, 5, seed=1, group_chunks=3, rank=0, world=1, skips={0: [range(10, 20)]})
    whole = epoch_of(WEIGHTED, 0)
    assert read(sampler, 100) == whole[:10] + whole[20:]
    with pytest.raises(InvalidInput, match="cannot skip position 30: the epoch has 30"):
        SamplerState(WEIGHTED, 5, rank=0, world=1, skips={0: [range(31)]})


def test_a_cursor_of_another_mixture_is_refused() -> None:
    state = SamplerState(WEIGHTED, 5, rank=0, world=1).state_dict()
    for other in (
        Mixture([FIRST, SECOND], [1, 3], 30),
        Mixture([SECOND, FIRST], [2, 1], 30),
        Mixture([FIRST, SECOND.subset(range(14))], [1, 2], 30),
        Mixture([ShuffledFolder(41), SECOND], [1, 2], 30),
    ):
        with pytest.raises(InvalidInput, match=r"the cursor is of mix .* with the same weights"):
            SamplerState(other, 5, rank=0, world=1).load_state_dict(state)
    with pytest.raises(InvalidInput, match="of policy mixture: it is made by MixedDataset"):
        SamplerState(FIRST, 5, rank=0, world=1).load_state_dict(state)
    with pytest.raises(InvalidInput, match=r"the cursor is of order .*, not of mix"):
        SamplerState(WEIGHTED, 5, rank=0, world=1).load_state_dict(
            SamplerState(FIRST, 5, rank=0, world=1).state_dict()
        )
    SamplerState(Mixture([FIRST, SECOND], [0.5, 1.0], 30), 5, rank=0, world=1).load_state_dict(state)


def test_a_part_of_a_mixture_is_a_mixture_of_parts() -> None:
    chosen = [54, 3, 3, 40, 17]
    part = Mixture([FIRST, SECOND]).subset(chosen)
    assert sorted(epoch_of(part, 0)) == [0, 1, 2, 3, 4]
    assert sorted(epoch_of(part.subset([4, 0]), 0)) == [0, 1]
    assert len(part.subset([4, 0])) == 2
    weighted = WEIGHTED.subset(range(50))
    assert weighted.counts == [17, 33]
    alone = Mixture([FIRST, SECOND]).subset([45, 41])
    assert alone.counts == [2]
    with pytest.raises(InvalidInput, match="empty"):
        WEIGHTED.subset([])
    with pytest.raises(IndexError):
        WEIGHTED.subset([55])


def test_every_source_is_declared_where_it_is() -> None:
    first, second = ShuffledFolder(40), ShuffledFolder(15, classes=2)
    order = Mixture([first, second], [1, 2], 30).order(PlanSpec(1, 1, 3))
    order.declare(ReaderSpec(start=12))
    for folder, offset in ((first, 0), (second, 40)):
        (share,) = folder.declared
        indices = order.indices(np.arange(12, 30))
        expected = next(int(index) - offset for index in indices if (index >= 40) == (offset == 40))
        assert share.nodes()[0] == folder.nodes[expected]
    order.declare(ReaderSpec(start=30))
    assert len(first.declared) == 1


def test_later_passes_are_declared_when_a_reader_gets_there() -> None:
    first, second = ShuffledFolder(40), ShuffledFolder(1_100)
    mixture = Mixture([first, second], [1, 4], 4_000)  # 3,200 of the second: epoch 1 begins in its third pass
    whole = epoch_of(mixture, 1)
    skipped = range(100, 150)
    sampler = SamplerState(mixture, 100, seed=1, group_chunks=3, rank=0, world=1, skips={1: [skipped]})
    sampler.set_epoch(1)
    for end, _ in sampler.steps(0):
        told = min(end + 100, 3_950)  # a step further than this one
        told += len(skipped) * (told > skipped.start)
        read = 3_200 + sum(index >= 40 for index in whole[:told])
        begun = {place // 1_100 for place in range(3_200, read)}
        assert {share.plan.spec.epoch for share in second.declared} == begun
    assert [share.start for share in second.declared] == [1_000, 0, 0, 0]
    assert len(first.declared) == 1, "a small dataset stays in memory"


def test_items_are_those_of_the_datasets() -> None:
    closed = []

    class Letters(list[str]):
        def close(self) -> None:
            closed.append(self)

    with MixedSamples(
        [Letters("abc"), "xy"], [1, 1], orders=[FIRST.subset([0, 1, 2]), FIRST.subset([5, 6])]
    ) as mixed:
        assert mixed.__getitems__([4, 0, 3, 2]) == ["y", "a", "x", "c"]
        assert mixed[-1] == "y"
        with pytest.raises(IndexError):
            mixed[5]
    assert closed == [["a", "b", "c"]]


def test_sources_of_a_mixture_have_their_own_orders() -> None:
    plan = Plan(FIRST.snapshot, PlanSpec(1, 0, 3, folder=b"train"))
    nodes = [int(FIRST.nodes[index]) for index in epoch_of(Mixture([FIRST, SECOND]), 0) if index < 40]
    assert nodes != plan.nodes().tolist()
