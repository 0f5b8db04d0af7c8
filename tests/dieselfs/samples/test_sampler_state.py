"""Whatever changes between two steps (ranks, batch size, what is skipped), every sample is read exactly once."""

import pickle  # noqa: TID251  # as a DataLoader hands a sampler to spawned workers
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs.errors import InvalidInput
from dieselfs.samples.sampler_state import SamplerState
from dieselfs.shuffle.cursor import REPLAY_VARIABLE, Cursor
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.spec import PlanSpec
from tests.support.shuffled_folder import ShuffledFolder

SAMPLES = 101
FOLDER = ShuffledFolder(SAMPLES)


def read(sampler_state: SamplerState, steps: int | None = None) -> list[int]:
    """What a rank reads in its next steps (default: to the end of the epoch), all of it trained on."""
    indices = []
    for _, (_, of_step) in zip(
        range(SAMPLES if steps is None else steps), sampler_state.steps(sampler_state.position), strict=False
    ):
        sampler_state.advance()
        indices += of_step
    return indices


def whole(seed: int, epoch: int, group_chunks: int) -> list[int]:
    sampler_state = SamplerState(FOLDER, SAMPLES, seed=seed, group_chunks=group_chunks, rank=0, world=1)
    sampler_state.set_epoch(epoch)
    return read(sampler_state)


def test_an_epoch_is_the_plan_of_the_folder() -> None:
    sampler_state = SamplerState(FOLDER, 8, seed=3, group_chunks=2, rank=0, world=1)
    sampler_state.set_epoch(5)
    assert sampler_state.order.spec == PlanSpec(3, 5, 2, folder=b"train")
    plan = Plan(FOLDER.snapshot, sampler_state.order.spec)
    assert FOLDER.nodes[read(sampler_state)].tolist() == plan.nodes().tolist()
    assert sorted(whole(3, 5, 2)) == list(range(SAMPLES))
    assert len({tuple(whole(seed, epoch, 2)) for seed in range(3) for epoch in range(3)}) == 9


@settings(max_examples=60)
@given(
    seed=st.integers(0, 3),
    epoch=st.integers(0, 3),
    group_chunks=st.sampled_from([0, 1, 3]),
    jobs=st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 20), st.integers(0, 6), st.integers(0, 3)),
        min_size=1,
        max_size=4,
    ),
)
def test_ranks_batches_and_nodes_may_change_whenever_the_job_is_interrupted(
    seed: int, epoch: int, group_chunks: int, jobs: list[tuple[int, int, int, int]]
) -> None:
    """Each job has its number of ranks, batch size, number of steps until it stops, and of nodes if its assignment is
    local; the last runs to the end.
    """
    state: dict[str, str] | None = None
    served: list[int] = []
    position = 0
    for number, (world, batch, steps, nodes) in enumerate(jobs):
        is_last = number == len(jobs) - 1
        ranks = [
            SamplerState(
                FOLDER,
                batch * world,
                seed=seed,
                group_chunks=group_chunks,
                rank=rank,
                world=world,
                uneven_steps="uneven" if SAMPLES - position < world else "join",
                assignment=[f"node{node}" for node in range(min(nodes, world))] or "even",
            )
            for rank in range(world)
        ]
        for sampler_state in ranks:
            sampler_state.set_epoch(epoch) if state is None else sampler_state.load_state_dict(state)
            served += read(sampler_state, None if is_last else steps)
        # Fewer samples than ranks may be left over: ranks that have none of them do not hear of their end.
        state = max(ranks, key=lambda sampler_state: sampler_state.position).state_dict()
        assert (
            is_last
            or len({sampler_state.position for sampler_state in ranks}) == 1
            or SAMPLES - position < world
        )
        position = max(sampler_state.position for sampler_state in ranks)
    assert sorted(served) == list(range(SAMPLES))


@pytest.mark.parametrize("interruptions", [[3], [3, 5], [1, 1, 1, 9]])
def test_a_job_that_was_interrupted_reads_what_it_would_have_read(interruptions: list[int]) -> None:
    expected = whole(seed=1, epoch=2, group_chunks=3)
    sampler_state = SamplerState(FOLDER, 7, seed=1, group_chunks=3, rank=0, world=1)
    sampler_state.set_epoch(2)
    found = []
    for steps in interruptions:
        found += read(sampler_state, steps)
        state = sampler_state.state_dict()
        sampler_state = SamplerState(
            FOLDER, 7, seed=99, rank=0, world=1
        )  # the state knows the seed and the group size
        sampler_state.load_state_dict(state)
    assert found + read(sampler_state) == expected


def test_only_what_was_counted_is_consumed() -> None:
    sampler_state = SamplerState(FOLDER, 10, rank=0, world=1)
    steps = sampler_state.steps(0)
    for _ in range(4):  # as the workers of a loader fetch ahead
        next(steps)
    assert sampler_state.position == 0
    sampler_state.advance()
    sampler_state.advance()
    assert sampler_state.position == 20
    assert len(list(sampler_state.consumed([None, None]))) == 2
    assert (sampler_state.epoch, sampler_state.position) == (1, 0)
    with pytest.raises(InvalidInput, match="advance was called more often"):
        sampler_state.advance()


def test_an_epoch_is_over_behind_its_last_batch_and_the_next_begins() -> None:
    sampler_state = SamplerState(FOLDER, 10, seed=4, rank=0, world=1)
    for epoch in range(3):
        sampler_state.set_epoch(epoch)
        batches = [indices for _, indices in sampler_state.steps(sampler_state.position)]
        assert [len(batch) for batch in batches] == [10] * 10 + [1]
        standing_ends = len(list(sampler_state.consumed(batches[:0])))
        assert standing_ends == 0 and (sampler_state.epoch, sampler_state.position) == (epoch + 1, 0)


def test_setting_the_present_epoch_changes_nothing() -> None:
    sampler_state = SamplerState(FOLDER, 10, rank=0, world=1)
    read(sampler_state, 3)
    sampler_state.set_epoch(0)
    assert sampler_state.position == 30
    sampler_state.set_epoch(1)
    assert sampler_state.position == 0


def test_a_step_may_be_skipped_by_a_job_that_goes_back_to_before_it() -> None:
    expected = whole(1, 0, 100)
    sampler_state = SamplerState(FOLDER, 10, seed=1, rank=0, world=1)
    read(sampler_state, 3)
    state = sampler_state.state_dict()
    again = SamplerState(FOLDER, 10, seed=1, rank=0, world=1, skips={0: [range(50, 70)], 1: [range(5)]})
    again.load_state_dict(state)
    assert read(again) == expected[30:50] + expected[70:]
    third = SamplerState(FOLDER, 10, rank=0, world=1)
    third.load_state_dict(again.state_dict())
    assert read(third) == [] and third.order.spec.skips == again.order.spec.skips
    again.set_epoch(1)
    assert len(read(again)) == SAMPLES - 5


def test_a_replay_leaves_out_files_of_its_order_only(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = whole(1, 0, 100), whole(1, 1, 100)
    sampler_state = SamplerState(FOLDER, 10, seed=1, group_chunks=100, rank=0, world=1)
    read(sampler_state, 3)
    state = sampler_state.state_dict()
    replayed = Cursor.parse(state["cursor"]).skipping([range(50, 70)])
    monkeypatch.setenv(REPLAY_VARIABLE, str(replayed))
    again = SamplerState(FOLDER, 10, rank=0, world=1, skips={0: [range(45, 50)]})
    assert len(again.order) == SAMPLES - 5  # its seed is another
    again.load_state_dict(state)
    assert read(again) == first[30:45] + first[70:]
    fresh = SamplerState(FOLDER, 10, seed=1, group_chunks=100, rank=0, world=1)
    assert read(fresh) == first[:50] + first[70:]
    fresh.set_epoch(1)
    assert read(fresh) == second
    others = ShuffledFolder(SAMPLES + 1)
    assert len(SamplerState(others, 10, seed=1, group_chunks=100, rank=0, world=1).order) == SAMPLES + 1


def test_a_short_last_step_can_be_dropped() -> None:
    sampler_state = SamplerState(FOLDER, 10, rank=0, world=1, drop_last=True)
    assert len(read(sampler_state)) == 100


def test_files_that_are_no_samples_have_no_positions() -> None:
    folder = ShuffledFolder(SAMPLES, others=9)
    sampler_state = SamplerState(folder, 10, seed=2, group_chunks=3, rank=0, world=1)
    steps = list(sampler_state.steps(0))
    assert [end for end, _ in steps] == [*range(10, 110, 10), 101]
    found = [index for _, indices in steps for index in indices]
    assert sorted(found) == list(range(SAMPLES))
    whole = Plan(folder.snapshot, PlanSpec(2, 0, 3, folder=b"train")).nodes().tolist()
    samples = set(folder.nodes.tolist())
    assert folder.nodes[found].tolist() == [node for node in whole if node in samples]


def test_what_is_read_is_declared_once_it_begins() -> None:
    folder = ShuffledFolder(SAMPLES)
    sampler_state = SamplerState(folder, 10, rank=1, world=2)
    steps = sampler_state.steps(30)
    assert not folder.declared
    next(steps)
    next(steps)
    (share,) = folder.declared
    assert (share.rank, share.world, share.batch, share.start) == (1, 2, 10, 30)
    assert next(sampler_state.steps(30, 1, 2)) == next(sampler_state.steps(30))
    assert [(share.reader.worker, share.reader.workers) for share in folder.declared[1:]] == [(1, 2), (0, 1)]


def test_the_position_of_each_step_is_passed_to_what_was_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    folder, positions = ShuffledFolder(SAMPLES), list[int]()
    monkeypatch.setattr(folder.source, "declare", lambda share: positions.append)
    sampler_state = SamplerState(folder, 10, rank=0, world=1)
    ends = [end for end, _ in sampler_state.steps(20)]
    assert positions == [20, *ends[:-1]]


def test_a_state_of_something_else_is_refused() -> None:
    sampler_state = SamplerState(FOLDER, 10, rank=0, world=1)
    other = ShuffledFolder(SAMPLES + 1)
    with pytest.raises(InvalidInput, match="of snapshot"):
        sampler_state.load_state_dict(SamplerState(other, 10, rank=0, world=1).state_dict())
    with pytest.raises(InvalidInput, match="of snapshot"):
        sampler_state.load_state_dict({"cursor": str(Plan(FOLDER.snapshot, PlanSpec()).cursor(0))})
    with pytest.raises(InvalidInput, match="not a cursor"):
        sampler_state.load_state_dict({"cursor": "something"})


@pytest.mark.parametrize(
    ("start", "batch", "world"), [(0, 10, 5), (9, 10, 5), (8, 10, 5), (7, 33, 7), (91, 5, 5)]
)
def test_all_ranks_have_the_same_number_of_batches(start: int, batch: int, world: int) -> None:
    """Also where the first or the last step is too short to give each of them something."""
    ranks = [list(SamplerState(FOLDER, batch, rank=rank, world=world).steps(start)) for rank in range(world)]
    assert len({len(batches) for batches in ranks}) == 1
    assert len({tuple(end for end, _ in batches) for batches in ranks}) == 1
    assert sum(len(indices) for batches in ranks for _, indices in batches) == SAMPLES - start


@pytest.mark.parametrize(
    ("start", "batch", "world"), [(0, 10, 4), (98, 10, 5), (100, 10, 5), (7, 33, 7), (3, 5, 5)]
)
def test_padded_steps_have_the_same_length_on_all_ranks(start: int, batch: int, world: int) -> None:
    ranks = [
        list(SamplerState(FOLDER, batch, rank=rank, world=world, uneven_steps="pad").steps(start))
        for rank in range(world)
    ]
    whole = [
        index for _, of_step in SamplerState(FOLDER, batch, rank=0, world=1).steps(0) for index in of_step
    ]
    first = start
    for parts in zip(*ranks, strict=True):
        (end,) = {end for end, _ in parts}
        assert {len(indices) for _, indices in parts} == {-(-(end - first) // world)}
        assert {index for _, indices in parts for index in indices} == set(whole[first:end])
        first = end
    assert first == SAMPLES


def test_uneven_steps_repeat_and_join_nothing() -> None:
    ranks = [
        [
            of_step
            for _, of_step in SamplerState(FOLDER, 10, rank=rank, world=4, uneven_steps="uneven").steps(0)
        ]
        for rank in range(4)
    ]
    assert [len(batches) for batches in ranks] == [10, 10, 10, 11]
    assert sorted(index for batches in ranks for of_step in batches for index in of_step) == list(
        range(SAMPLES)
    )
    assert [
        len(SamplerState(FOLDER, 10, rank=rank, world=4, uneven_steps="uneven").batch_ends(0))
        for rank in range(4)
    ] == [10, 10, 10, 11]


def test_ranks_without_samples_are_refused() -> None:
    with pytest.raises(
        InvalidInput, match="101 samples are left in the epoch, too few for 200 ranks: start fewer"
    ):
        SamplerState(FOLDER, 400, rank=0, world=200)
    sampler_state = SamplerState(FOLDER, 10, rank=0, world=5)
    with pytest.raises(InvalidInput, match="1 samples are left in the epoch, too few for 5 ranks"):
        next(sampler_state.steps(100))
    with pytest.raises(
        InvalidInput, match="101 samples are less than a step of 200, and drop_last leaves them out"
    ):
        SamplerState(FOLDER, 200, rank=0, world=1, drop_last=True)
    with pytest.raises(InvalidInput, match="the epoch has no samples"):
        SamplerState(FOLDER.subset([]), 200, rank=0, world=1)


def test_a_copy_continues_where_the_sampler_is() -> None:
    sampler_state = SamplerState(FOLDER, 10, seed=3, rank=0, world=1, skips={1: [range(7)]})
    read(sampler_state, 4)
    copy = pickle.loads(pickle.dumps(sampler_state))
    assert copy.state_dict() == sampler_state.state_dict()
    assert read(copy) == read(sampler_state)
    copy.set_epoch(1)
    assert len(read(copy)) == SAMPLES - 7


def test_numbers_that_cannot_be() -> None:
    with pytest.raises(InvalidInput, match="uneven_steps is 'drop': give one of join, pad, uneven"):
        SamplerState(FOLDER, 10, rank=0, world=1, uneven_steps="drop")
    with pytest.raises(InvalidInput, match="too few for 11 ranks"):
        SamplerState(FOLDER, 10, rank=0, world=11)
    with pytest.raises(InvalidInput, match="rank is 2"):
        SamplerState(FOLDER, 10, rank=2, world=2)
    with pytest.raises(InvalidInput, match="batch is 0"):
        SamplerState(FOLDER, 0, rank=0, world=1)
    with pytest.raises(InvalidInput, match="cannot skip"):
        SamplerState(FOLDER, 10, rank=0, world=1, skips={0: [range(1000)]})


@pytest.mark.parametrize("state", [{}, {"position": 3}, None, "cursor"])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(InvalidInput, match="not a state of a sampler: it has no 'cursor'"):
        SamplerState(FOLDER, 10, rank=0, world=1).load_state_dict(state)


def test_an_epoch_that_is_read_twice_is_warned_of() -> None:
    sampler_state = SamplerState(FOLDER, 10, rank=0, world=1)
    first = list(sampler_state.steps(0))
    with pytest.warns(UserWarning, match="epoch 0 is read again, in the same order: call set_epoch"):
        assert list(sampler_state.steps(0)) == first
    assert (
        list(sampler_state.steps(0)) == first
    )  # one warning per sampler: warnings are errors in these tests
    sampler_state.set_epoch(0)  # is meant
    assert list(sampler_state.steps(0)) == first
    sampler_state.set_epoch(1)
    assert list(sampler_state.steps(0)) != first


NODES = ["a", "b"]


def test_a_local_assignment_mixes_more_chunks_unless_told_otherwise() -> None:
    assert SamplerState(FOLDER, 8, rank=0, world=2, assignment=NODES).order.spec.group_chunks == 100
    assert (
        SamplerState(FOLDER, 8, rank=0, world=2, assignment=NODES, group_chunks=2).order.spec.group_chunks
        == 2
    )
    assert SamplerState(FOLDER, 8, rank=0, world=2).order.spec.group_chunks is None


@pytest.mark.parametrize("batch", [9, 10])
def test_padded_samples_are_of_the_same_step(batch: int) -> None:
    ranks = [
        SamplerState(FOLDER, batch, rank=rank, world=4, uneven_steps="pad", assignment=NODES)
        for rank in range(4)
    ]
    for step in zip(*(one.steps(0) for one in ranks), strict=True):
        (end, *_), parts = zip(*step, strict=True)
        read = {*chain(*parts)}
        assert {*ranks[0].order.indices(np.arange(end - len(read), end)).tolist()} == read
        assert len({*map(len, parts)}) == 1 and all(len({*part}) == len(part) for part in parts)
