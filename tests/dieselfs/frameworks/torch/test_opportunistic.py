"""The sampler that follows the memory, with real loaders, and with a server and what processes hold of its dataset."""

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from dieselfs.cluster.holdings import FAR, HERE, NEAR
from dieselfs.dataset import connect
from dieselfs.errors import InvalidInput
from dieselfs.samples.ranks import Gather
from dieselfs.samples.source import LibrarySource
from dieselfs.shuffle.assignment import ChunkHomes
from dieselfs.torch import ChunkShuffleBatchSampler, FolderDataset, MixedDataset, OpportunisticSampler
from tests.support.gathering import run_ranks
from tests.support.shuffled_folder import ShuffledFolder

SAMPLES = 203
FOLDER = ShuffledFolder(SAMPLES)
NODES = ("a", "b")


class Near(ShuffledFolder):
    """Its chunks are at `distances`."""

    def __init__(self, distances: Any) -> None:
        super().__init__(SAMPLES)
        self.source.distances = lambda: distances  # type: ignore[method-assign]  # a node that holds something


def sampler_of(
    rank: int, gather: Gather | None, folder: Any = FOLDER, batch: int = 16, **options: Any
) -> OpportunisticSampler:
    options = {"seed": 3, "group_chunks": 2, "assignment": NODES if gather else "even", **options}
    world = options.pop("world", 2 if gather else 1)
    return OpportunisticSampler(folder, batch, rank=rank, world=world, gather=gather, **options)


def flat(batches: Iterable[Sequence[int]]) -> list[int]:
    return [int(index) for batch in batches for index in batch]


def chunk_of(index: int) -> int:
    snapshot = FOLDER.snapshot
    return int(snapshot.column("extent_chunks")[snapshot.column("firsts")[FOLDER.nodes[index]]])


@pytest.mark.parametrize("batch", [16, 17, SAMPLES])
def test_each_sample_once_over_all_ranks_and_each_rank_reads_what_its_node_owns(batch: int) -> None:
    ranks = run_ranks(2, lambda rank, gather: [*sampler_of(rank, gather, batch=batch)])
    assert sorted(flat(step for batches in ranks for step in batches)) == list(range(SAMPLES))
    assert all(abs(len(a) - len(b)) <= 1 for a, b in zip(*ranks, strict=True))
    homes = ChunkHomes(FOLDER.snapshot, NODES)
    owned = [
        homes.of_files(FOLDER.nodes[flat(batches)]).tolist().count(rank) for rank, batches in enumerate(ranks)
    ]
    every = homes.of_files(FOLDER.nodes)
    for rank, count in enumerate(owned):
        assert count == min((every == rank).sum(), len(flat(ranks[rank])))


def test_what_is_near_comes_first() -> None:
    chunks = sorted({chunk_of(index) for index in range(SAMPLES)})
    distances = np.full(FOLDER.snapshot.chunk_count, FAR)
    distances[chunks[:5]], distances[chunks[5:9]] = HERE, NEAR
    order = distances[[*map(chunk_of, flat(sampler_of(0, None, Near(distances), group_chunks=1)))]]
    means = [np.flatnonzero(order == distance).mean() for distance in (HERE, NEAR, FAR)]
    assert set(order[:12]) == {HERE} and means == sorted(means) and set(order[80:]) == {FAR}
    whole = distances[[*map(chunk_of, flat(sampler_of(0, None, Near(distances), group_chunks=0)))]]
    assert FAR in whole[:12]  # all chunks are mixed, so nothing comes first


def test_the_log_repeats_a_run_whatever_is_in_memory() -> None:
    def run(rank: int, gather: Gather) -> tuple[list[list[int]], str]:
        sampler = sampler_of(rank, gather, Near(np.arange(FOLDER.snapshot.chunk_count) % 3))
        sampler.set_epoch(4)
        assert not sampler.log
        return [*sampler], sampler.log

    (first, log), (second, other) = run_ranks(2, run)
    assert log == other

    def again(rank: int, gather: Gather) -> list[list[int]]:
        sampler = sampler_of(rank, gather, seed=9)
        sampler.repeat(log)
        return [*sampler]

    assert run_ranks(2, again) == [first, second]
    assert flat(first) != flat(run_ranks(2, lambda rank, gather: [*sampler_of(rank, gather)])[0])


def test_a_state_continues_with_other_ranks_workers_and_batches() -> None:
    """Also after a skip, in a sampler that was copied, and in the next epoch."""

    def begin(rank: int, gather: Gather) -> tuple[list[int], Any]:
        sampler = sampler_of(rank, gather, skips={0: [range(40, 60)]})
        loader = DataLoader(FOLDER, batch_sampler=sampler, num_workers=0)
        batches = sampler.consumed(loader)
        return flat(next(batches).tolist() for _ in range(4)), sampler.state_dict()

    (first, state), (second, same) = run_ranks(2, begin)
    assert state == same and len(first) + len(second) == 64

    def go_on(rank: int, gather: Gather) -> list[int]:
        sampler = OpportunisticSampler(FOLDER, 9, rank=rank, world=3, gather=gather)
        sampler.load_state_dict(state)
        loader = DataLoader(FOLDER, batch_sampler=sampler, num_workers=0)
        return flat(batch.tolist() for batch in sampler.consumed(loader))

    rest = [index for found in run_ranks(3, go_on) for index in found]
    assert len({*first, *second, *rest}) == len(first + second + rest) == SAMPLES - 20
    alone = sampler_of(0, None, batch=9)
    alone.load_state_dict(state)
    copied = deepcopy(alone)
    order = flat(alone)
    assert flat(copied) == order and sorted(order) == sorted(rest)
    copied.set_epoch(1)
    assert not copied.log and sorted(flat(copied)) == list(range(SAMPLES))


def test_logs_and_states_of_others() -> None:
    sampler = sampler_of(0, None)
    flat(sampler)
    for log, says in (
        ("", "not a log of a sampler"),
        ("order2.abc", "not a log of a sampler in opportunistic order: it begins with 'order2"),
        (sampler.log.replace("rank=0", "rank=1"), "checksum does not match"),
        (sampler.log.rsplit("\n", 2)[0] + "\n", "checksum does not match"),
        (sampler.log.split("\n")[0] + "\n", "truncated or changed"),
    ):
        with pytest.raises(InvalidInput, match=says):
            sampler.repeat(log)
    other = sampler_of(0, None, ShuffledFolder(60))
    with pytest.raises(InvalidInput, match="the log is of another order: give the generation, folder"):
        other.repeat(sampler.log)
    with pytest.raises(InvalidInput, match="the cursor is of snapshot"):
        other.load_state_dict(sampler.state_dict())
    chunkwise = ChunkShuffleBatchSampler(FOLDER, 16, rank=0, world=1)
    with pytest.raises(InvalidInput, match="not a state of a sampler"):
        chunkwise.load_state_dict(sampler.state_dict())
    with pytest.raises(InvalidInput, match="it has no 'opportunistic'"):
        sampler.load_state_dict(chunkwise.state_dict())
    with pytest.raises(InvalidInput, match="2 ranks must exchange"):
        sampler_of(0, None, world=2)
    with pytest.raises(InvalidInput, match="files of one dataset"):
        sampler_of(0, None, MixedDataset([FOLDER, FOLDER]))


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Path]:
    with connect("data", home=tmp_path, create=True) as data:
        for number in range(60):
            data.put(f"train/{number % 3}/{number:02}.jpg", b"%02d" % number * 200)
            if number % 6 == 5:
                data.flush()  # a chunk
    yield tmp_path


def test_with_a_server_what_the_process_holds_comes_first(stored: Path) -> None:
    """Then the library loads ahead what was drawn."""
    with FolderDataset("data/train", loader=bytes, home=stored) as dataset:
        assert isinstance(dataset.source, LibrarySource)
        data = dataset.source.dataset
        assert set(data.distances()) == {FAR}
        dataset.__getitems__([0, 1, 2] * 20)
        held = np.flatnonzero(data.distances() == HERE)
        assert 0 < len(held) < 10
        sampler = sampler_of(0, None, dataset, batch=3, group_chunks=1)
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=0, collate_fn=list)
        batches = sampler.consumed(loader)
        read = [int(content[:2]) for content, _ in next(batches)]
        nodes = [data.snapshot.find(b"train/%d/%02d.jpg" % (number % 3, number)) for number in read]
        chunks = data.snapshot.column("extent_chunks")[data.snapshot.column("firsts")[nodes]]
        assert set(chunks.tolist()) <= set(held.tolist())
        read += [int(content[:2]) for batch in batches for content, _ in batch]
        assert sorted(read) == list(range(60))
