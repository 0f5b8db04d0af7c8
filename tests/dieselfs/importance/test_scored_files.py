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
    assert not other.left
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


SIZES, NODES = np.ones(len(SNAPSHOT), np.int64), FILES.astype(np.int64)


def accuracy(value: float) -> LossBatch:
    return LossBatch([], np.empty(0), value)


def test_important_files_replace_others_in_the_cache_and_are_repeated(scored: ScoredFiles) -> None:
    assert scored.keep(50, SIZES, FILES[:10].tolist()).tolist() == FILES[:10].tolist()
    assert scored.read(NODES).tolist() == FILES[50:].tolist() and (scored.hits, scored.reads) == (10, 400)
    scored.take(losses(100))
    assert scored.read(NODES[100:]).tolist() == FILES[100:].tolist()
    for _ in range(2):
        scored.read(NODES[50:100])  # as important as the cached ones, so they replace them
    order = scored.order(key(1), FILES)
    served = Counter(order.tolist())
    kept, others = (sum(served[node] for node in part.tolist()) for part in (FILES[50:100], FILES[:50]))
    assert kept > 2 * others and len(order) == 400

    other = ScoredFiles(SNAPSHOT)
    other.load(scored.encode())
    assert other.left == FILES[50:100].tolist()
    assert other.keep(50, SIZES, other.left).tolist() == other.left
    assert other.order(key(2), FILES).tolist() == scored.order(key(2), FILES).tolist()


def test_files_are_not_repeated_while_the_accuracy_stagnates(scored: ScoredFiles) -> None:
    scored.keep(50, SIZES, FILES[:50].tolist())
    distinct_files = []
    for epoch, value in enumerate([0.3, 0.4, 0.5, 0.4, 0.3, 0.3]):
        scored.take(losses(50))
        for _ in range(2):  # each of two ranks writes it
            scored.take(accuracy(value))
        distinct_files.append(len(set(scored.order(key(epoch + 1), FILES).tolist())))
        other = ScoredFiles(SNAPSHOT)
        other.load(scored.encode())
        scored = other
        scored.keep(50, SIZES, scored.left)
    assert max(distinct_files[:3]) + 40 < min(distinct_files[4:])


def test_a_batch_with_an_unknown_path_does_not_count(scored: ScoredFiles) -> None:
    for path in (b"f/nothing", b"f"):
        with pytest.raises(InvalidInput, match="is no file of pets"):
            scored.take(LossBatch([PATHS[0], path], np.array([1.0, 2.0])))
    assert scored.scored == 0
    with pytest.raises(InvalidInput, match="no files"):
        scored.order(key(0), FILES[:0])
