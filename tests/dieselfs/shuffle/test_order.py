"""The order of an epoch: a permutation, group by group, the same everywhere."""

from itertools import product

import numpy as np
import pytest

from dieselfs.errors import InvalidInput
from dieselfs.shuffle.order import epoch_order, keys, mix
from tests.support.dataset import TreeEntry, pack_entries

FILES = [TreeEntry(b"d%d/f%03d" % (n % 7, n), 0o100644, n, b"x" * (n % 50)) for n in range(400)]
DATASET = pack_entries(FILES, chunk_bytes=200)
GRID = list(product((0, 1, 2**64 - 1), (0, 1, 7), (1, 3, 10, 0)))


def test_the_mixer_is_splitmix64() -> None:
    # The first outputs of SplitMix64 from state 0, as published with the algorithm.
    states = np.arange(3, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert [hex(value) for value in mix(states).tolist()] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]


@pytest.mark.parametrize(("seed", "epoch", "group_chunks"), GRID)
def test_every_epoch_is_a_permutation_of_the_files_in_whole_groups(
    seed: int, epoch: int, group_chunks: int
) -> None:
    snapshot = DATASET.snapshot
    order = epoch_order(snapshot, seed, epoch, group_chunks).tolist()
    files = [node for node in range(len(snapshot)) if snapshot.stat(node).is_file]
    assert sorted(order) == files
    chunks = [extents[0].chunk if (extents := snapshot.extents(node)) else 0 for node in order]
    for chunk in set(chunks):  # the files of a chunk all lie in one group
        positions = [position for position, other in enumerate(chunks) if other == chunk]
        inside = set(chunks[positions[0] : positions[-1] + 1])
        assert len(inside) <= (group_chunks or snapshot.chunk_count)
    assert order == epoch_order(snapshot, seed, epoch, group_chunks).tolist()


def test_seeds_epochs_and_groups_give_different_orders() -> None:
    orders = {tuple(epoch_order(DATASET.snapshot, *cell).tolist()) for cell in GRID}
    assert len(orders) == len(GRID)


def test_a_full_shuffle_moves_files_far() -> None:
    order = epoch_order(DATASET.snapshot, seed=3, group_chunks=0).astype(np.int64)
    moved = np.abs(np.argsort(np.argsort(order)) - np.arange(len(order))).mean() / len(order)
    assert 0.28 < moved < 0.39  # a third, for random permutations


def test_chunks_and_files_of_one_number_get_unrelated_keys() -> None:
    numbers = np.arange(1000, dtype=np.uint64)
    assert not (keys(1, 1, 1, numbers) == keys(1, 1, 2, numbers)).any()


@pytest.mark.parametrize(
    ("seed", "epoch", "group_chunks"), [(-1, 0, 1), (2**64, 0, 1), (0, -1, 1), (0, 0, -1)]
)
def test_numbers_out_of_range_are_refused(seed: int, epoch: int, group_chunks: int) -> None:
    with pytest.raises(InvalidInput):
        epoch_order(DATASET.snapshot, seed, epoch, group_chunks)
