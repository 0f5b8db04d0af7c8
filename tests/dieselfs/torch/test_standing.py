"""Whatever changes between two steps (ranks, batch size, what is skipped), every sample is read exactly once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs.errors import InvalidInput
from dieselfs.shuffle.plan import Plan
from dieselfs.torch.standing import Standing
from tests.support.shuffled_folder import ShuffledFolder

SAMPLES = 101
FOLDER = ShuffledFolder(SAMPLES)


def read(standing: Standing, steps: int | None = None) -> list[int]:
    """What a rank reads in its next steps (default: to the end of the epoch), all of it trained on."""
    indices = []
    for _, (_, of_step) in zip(
        range(SAMPLES if steps is None else steps), standing.steps(standing.position), strict=False
    ):
        standing.advance()
        indices += of_step
    return indices


def whole(seed: int, epoch: int, group_chunks: int) -> list[int]:
    standing = Standing(FOLDER, SAMPLES, seed=seed, group_chunks=group_chunks, rank=0, world=1)
    standing.set_epoch(epoch)
    return read(standing)


def test_an_epoch_is_the_plan_of_the_folder() -> None:
    standing = Standing(FOLDER, 8, seed=3, group_chunks=2, rank=0, world=1)
    standing.set_epoch(5)
    assert (standing.plan.folder, standing.plan.seed, standing.plan.epoch) == (b"train", 3, 5)
    assert FOLDER.samples.nodes[read(standing)].tolist() == standing.plan.nodes().tolist()
    assert sorted(whole(3, 5, 2)) == list(range(SAMPLES))
    assert len({tuple(whole(seed, epoch, 2)) for seed in range(3) for epoch in range(3)}) == 9


@settings(max_examples=60)
@given(
    seed=st.integers(0, 3),
    epoch=st.integers(0, 3),
    group_chunks=st.sampled_from([0, 1, 3]),
    jobs=st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 20), st.integers(0, 6)), min_size=1, max_size=4
    ),
)
def test_ranks_and_batches_may_change_whenever_the_job_is_interrupted(
    seed: int, epoch: int, group_chunks: int, jobs: list[tuple[int, int, int]]
) -> None:
    """Each job has so many ranks and so large a batch, and is stopped after so many steps; the last goes to the end."""
    state: dict[str, str] | None = None
    served: list[int] = []
    position = 0
    for number, (world, batch, steps) in enumerate(jobs):
        is_last = number == len(jobs) - 1
        ranks = [
            Standing(FOLDER, batch * world, seed=seed, group_chunks=group_chunks, rank=rank, world=world)
            for rank in range(world)
        ]
        for standing in ranks:
            standing.set_epoch(epoch) if state is None else standing.load_state_dict(state)
            served += read(standing, None if is_last else steps)
        # Fewer samples than ranks may be left over: ranks that have none of them do not hear of their end.
        state = max(ranks, key=lambda standing: standing.position).state_dict()
        assert is_last or len({standing.position for standing in ranks}) == 1 or SAMPLES - position < world
        position = max(standing.position for standing in ranks)
    assert sorted(served) == list(range(SAMPLES))


@pytest.mark.parametrize("interruptions", [[3], [3, 5], [1, 1, 1, 9]])
def test_a_job_that_was_interrupted_reads_what_it_would_have_read(interruptions: list[int]) -> None:
    expected = whole(seed=1, epoch=2, group_chunks=3)
    standing = Standing(FOLDER, 7, seed=1, group_chunks=3, rank=0, world=1)
    standing.set_epoch(2)
    found = []
    for steps in interruptions:
        found += read(standing, steps)
        state = standing.state_dict()
        standing = Standing(
            FOLDER, 7, seed=99, rank=0, world=1
        )  # the state knows the seed and the group size
        standing.load_state_dict(state)
    assert found + read(standing) == expected


def test_only_what_was_counted_is_consumed() -> None:
    standing = Standing(FOLDER, 10, rank=0, world=1)
    steps = standing.steps(0)
    for _ in range(4):  # as the workers of a loader fetch ahead
        next(steps)
    assert standing.position == 0
    standing.advance()
    standing.advance()
    assert standing.position == 20
    assert len(list(standing.consumed([None, None]))) == 2
    assert (standing.epoch, standing.position) == (1, 0)
    with pytest.raises(InvalidInput, match="counted already"):
        standing.advance()


def test_an_epoch_is_over_behind_its_last_batch_and_the_next_begins() -> None:
    standing = Standing(FOLDER, 10, seed=4, rank=0, world=1)
    for epoch in range(3):
        standing.set_epoch(epoch)
        batches = [indices for _, indices in standing.steps(standing.position)]
        assert [len(batch) for batch in batches] == [10] * 10 + [1]
        standing_ends = len(list(standing.consumed(batches[:0])))
        assert standing_ends == 0 and (standing.epoch, standing.position) == (epoch + 1, 0)


def test_setting_the_present_epoch_changes_nothing() -> None:
    standing = Standing(FOLDER, 10, rank=0, world=1)
    read(standing, 3)
    standing.set_epoch(0)
    assert standing.position == 30
    standing.set_epoch(1)
    assert standing.position == 0


def test_a_step_may_be_skipped_by_a_job_that_goes_back_to_before_it() -> None:
    expected = whole(1, 0, 100)
    standing = Standing(FOLDER, 10, seed=1, rank=0, world=1)
    read(standing, 3)
    state = standing.state_dict()
    again = Standing(FOLDER, 10, seed=1, rank=0, world=1, skips={0: [range(50, 70)], 1: [range(5)]})
    again.load_state_dict(state)
    assert read(again) == expected[30:50] + expected[70:]
    third = Standing(FOLDER, 10, rank=0, world=1)
    third.load_state_dict(again.state_dict())
    assert read(third) == [] and third.plan.skips == again.plan.skips
    again.set_epoch(1)
    assert len(read(again)) == SAMPLES - 5


def test_a_short_last_step_can_be_dropped() -> None:
    standing = Standing(FOLDER, 10, rank=0, world=1, drop_last=True)
    assert len(read(standing)) == 100


def test_files_that_are_no_samples_keep_their_positions() -> None:
    folder = ShuffledFolder(SAMPLES, others=9)
    standing = Standing(folder, 10, seed=2, rank=0, world=1)
    steps = list(standing.steps(0))
    assert [end for end, _ in steps] == [*range(10, 110, 10), 110]
    assert sorted(np.concatenate([indices for _, indices in steps]).tolist()) == list(range(SAMPLES))
    assert len(standing.plan) == SAMPLES + 9


def test_what_is_read_is_declared_once_it_begins() -> None:
    folder = ShuffledFolder(SAMPLES)
    standing = Standing(folder, 10, rank=1, world=2)
    steps = standing.steps(30)
    assert not folder.declared
    next(steps)
    next(steps)
    (share,) = folder.declared
    assert (share.rank, share.world, share.batch, share.start) == (1, 2, 10, 30)


def test_a_state_of_something_else_is_refused() -> None:
    standing = Standing(FOLDER, 10, rank=0, world=1)
    other = ShuffledFolder(SAMPLES + 1)
    with pytest.raises(InvalidInput, match="of snapshot"):
        standing.load_state_dict(Standing(other, 10, rank=0, world=1).state_dict())
    with pytest.raises(InvalidInput, match="of snapshot"):
        standing.load_state_dict({"cursor": str(Plan(FOLDER.snapshot).cursor(0))})
    with pytest.raises(InvalidInput, match="no cursor"):
        standing.load_state_dict({"cursor": "something"})


@pytest.mark.parametrize(
    ("start", "batch", "world"), [(0, 10, 5), (9, 10, 5), (8, 10, 5), (7, 33, 7), (100, 10, 5)]
)
def test_all_ranks_have_the_same_number_of_batches(start: int, batch: int, world: int) -> None:
    """Also where the first or the last step is too short to give each of them something."""
    ranks = [list(Standing(FOLDER, batch, rank=rank, world=world).steps(start)) for rank in range(world)]
    if SAMPLES - start >= world:
        assert len({len(batches) for batches in ranks}) == 1
        assert len({tuple(end for end, _ in batches) for batches in ranks}) == 1
    assert sum(len(indices) for batches in ranks for _, indices in batches) == SAMPLES - start


def test_a_rank_with_nothing_but_other_files_says_so() -> None:
    folder = ShuffledFolder(30, others=300)
    with pytest.raises(InvalidInput, match="nothing but files that are no samples"):
        list(Standing(folder, 4, rank=0, world=4).steps(0))
    alone = [indices for _, indices in Standing(folder, 4, rank=0, world=1).steps(0)]
    assert sorted(np.concatenate(alone).tolist()) == list(range(30))


def test_numbers_that_cannot_be() -> None:
    with pytest.raises(InvalidInput, match="too few for 11 ranks"):
        Standing(FOLDER, 10, rank=0, world=11)
    with pytest.raises(InvalidInput, match="rank 2 of 2"):
        Standing(FOLDER, 10, rank=2, world=2)
    with pytest.raises(InvalidInput, match="batch of 0"):
        Standing(FOLDER, 0, rank=0, world=1)
    with pytest.raises(InvalidInput, match="cannot skip"):
        Standing(FOLDER, 10, rank=0, world=1, skips={0: [range(1000)]})
