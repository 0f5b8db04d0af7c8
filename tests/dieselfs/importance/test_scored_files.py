"""Orders by importance: drawn by the losses, fixed at the first request, and the same in the next daemon."""

from collections import Counter

import numpy as np
import pytest

from dieselfs.errors import InvalidInput
from dieselfs.importance.score_lines import LossBatch
from dieselfs.importance.scored_files import ORDERS_KEPT, OrderKey, ScoredFiles
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.subtree import files_below
from tests.support.snapshots import SOURCE, file_of, snapshot_bytes

PATHS = [b"f/%03d" % number for number in range(400)]
SNAPSHOT = Snapshot(snapshot_bytes(dict.fromkeys(PATHS, file_of())), SOURCE)
FILES = np.sort(files_below(SNAPSHOT)).astype(np.uint32)


def key(epoch: int, seed: int = 1, folder: bytes = b"") -> OrderKey:
    return OrderKey(folder, seed, epoch)


def losses(high: int) -> LossBatch:
    """The first `high` files are hard."""
    return LossBatch(PATHS, np.array([10.0] * high + [0.0] * (len(PATHS) - high)))


@pytest.fixture
def scored() -> ScoredFiles:
    return ScoredFiles(SNAPSHOT)


def test_without_losses_each_file_comes_once(scored: ScoredFiles) -> None:
    orders = [scored.order(key(epoch), FILES).tolist() for epoch in range(2)]
    assert sorted(orders[0]) == sorted(orders[1]) == FILES.tolist()
    assert orders[0] != orders[1]


def test_files_with_large_losses_come_more_often(scored: ScoredFiles) -> None:
    scored.take(losses(100))
    assert scored.scored == 400 and scored.batches == 1
    served = Counter(node for epoch in range(20) for node in scored.order(key(epoch), FILES).tolist())
    hard, easy = (
        sum(served[node] for node in part.tolist()) / len(part) for part in (FILES[:100], FILES[100:])
    )
    assert served.total() == 20 * 400 and 2 < hard / easy < 3  # scores of ranks 300 and 0: 5.7 and 2.3


def test_an_order_does_not_change_once_it_is_there(scored: ScoredFiles) -> None:
    first = scored.order(key(3), FILES).tolist()
    scored.take(losses(10))
    assert scored.order(key(3), FILES).tolist() == first
    assert sorted(scored.order(key(4), FILES).tolist()) != FILES.tolist()
    for epoch in range(5, 4 + ORDERS_KEPT):
        scored.order(key(epoch), FILES)
    with pytest.raises(InvalidInput, match="epoch 3 is not kept any more"):
        scored.order(key(3), FILES)


def test_the_next_daemon_has_the_same_orders(scored: ScoredFiles) -> None:
    scored.take(losses(7))
    mine = scored.order(key(1, folder=b"f"), FILES).tolist()
    scored.take(losses(200))
    other = ScoredFiles(SNAPSHOT)
    other.load(scored.encode())
    assert other.order(key(1, folder=b"f"), FILES).tolist() == mine and other.orders() == scored.orders()
    assert other.order(key(2), FILES).tolist() == scored.order(key(2), FILES).tolist()
    for content in (
        b"",
        b"PK",
        scored.encode()[:-50],
        scored.encode().replace(b"PK\x03\x04", b"PK\x03\x04\xff"),
    ):
        with pytest.raises(InvalidInput, match="not the scores"):
            other.load(content)
    with pytest.raises(InvalidInput, match="the snapshot has"):
        ScoredFiles(Snapshot(snapshot_bytes({b"a": file_of()}), SOURCE)).load(scored.encode())


def test_a_batch_with_an_unknown_path_does_not_count(scored: ScoredFiles) -> None:
    for path in (b"f/nothing", b"f"):
        with pytest.raises(InvalidInput, match="is no file of pets"):
            scored.take(LossBatch([PATHS[0], path], np.array([1.0, 2.0])))
    assert scored.scored == 0
    with pytest.raises(InvalidInput, match="no files"):
        scored.order(key(0), FILES[:0])
