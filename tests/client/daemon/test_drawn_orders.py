"""Opportunistic orders of a mount: what is near first, one for all ranks of the node, kept for the next daemon."""

import logging
from functools import partial

import numpy as np
import pytest

from dieselfs.arrays import Numbers
from dieselfs.cluster.holdings import FAR, HERE, NEAR
from dieselfs.errors import InvalidInput
from dieselfs.shuffle.assignment import ChunkHomes
from dieselfs.shuffle.opportunistic import Parts, served
from dieselfs.shuffle.order import Layout
from dieselfs.shuffle.run_log import RunLog
from dieselfs.shuffle.share_name import ShareName
from dieselfs_client.daemon.drawn_orders import DrawnOrders, KeptOrder
from tests.support.dataset import TreeEntry, pack_entries

FILES = 400
SNAPSHOT = pack_entries(
    [TreeEntry(b"train/%03d" % number, 0o100644, 0, bytes(200)) for number in range(FILES)], chunk_bytes=2000
).snapshot
DISTANCES = np.arange(SNAPSHOT.chunk_count) % 3
ROOM = 1 << 20


def orders_of(
    distances: Numbers = DISTANCES, node: str | None = None, **left: list[KeptOrder]
) -> DrawnOrders:
    return DrawnOrders(SNAPSHOT, partial(Layout.of, SNAPSHOT), lambda: distances.copy(), node, **left)


def read(orders: DrawnOrders, text: str) -> list[int]:
    name = f"policy=opportunistic,seed=3,folder=train,group=1,{text}"
    nodes: list[int] = orders.share(ShareName.parse(name.encode())).nodes().tolist()
    return nodes


def chunks_of(nodes: list[int]) -> Numbers:
    found: Numbers = SNAPSHOT.column("extent_chunks")[SNAPSHOT.column("firsts")[nodes]]
    return found


def test_what_is_near_comes_first_and_an_order_stays_as_it_is() -> None:
    distances = DISTANCES.copy()
    orders = DrawnOrders(SNAPSHOT, partial(Layout.of, SNAPSHOT), lambda: distances)
    order = read(orders, "epoch=1")
    assert len(set(order)) == FILES
    found = distances[chunks_of(order)]
    means = [np.flatnonzero(found == distance).mean() for distance in (HERE, NEAR, FAR)]
    assert means == sorted(means) and set(found[:100]) == {HERE} and (found[-100:] == FAR).mean() > 0.9
    distances[:] = distances[::-1]
    assert read(orders, "epoch=1") == order != read(orders, "epoch=2")
    assert read(orders, "epoch=1,start=70") == order[70:]


def test_mounts_of_two_nodes_share_an_epoch() -> None:
    """They see different memories, and talk to nobody."""
    seen, homes_of = [], ChunkHomes(SNAPSHOT, ("a", "b")).of_files
    every = read(orders_of(), "epoch=0")
    for number, distances in enumerate((DISTANCES, DISTANCES[::-1])):
        orders, name = orders_of(distances, "ab"[number]), "rank=%d,world=4,batch=10,nodes=a+b"
        ranks = [read(orders, name % rank) for rank in (2 * number, 2 * number + 1)]
        own = [*ranks[0], *ranks[1]]
        owned = (homes_of(np.array(every)) == number).sum()
        assert (homes_of(np.array(own)) == number).sum() == min(owned, FILES // 2)
        for rank in ranks:
            found = distances[chunks_of(rank)]
            assert np.flatnonzero(found == HERE).mean() < np.flatnonzero(found == FAR).mean()
        seen += own
    assert sorted(seen) == sorted(every)


def test_the_log_of_an_order_repeats_it() -> None:
    orders = orders_of()
    name = "policy=opportunistic,seed=3,folder=train,group=1,epoch=1,batch=4"
    run = RunLog.parse(orders.log(ShareName.parse(f"{name},log=1".encode())))
    parts = Parts(Layout.of(SNAPSHOT, b"train"), 3, 1)
    assert served(parts, run.logs[0]).nodes.tolist() == read(orders, "epoch=1,batch=4")


def test_the_next_daemon_has_the_same_order(caplog: pytest.LogCaptureFixture) -> None:
    first = orders_of()
    whole = read(first, "epoch=1"), read(first, "epoch=2")
    left = first.kept(ROOM)
    second = orders_of(DISTANCES[::-1], left=left)
    assert (read(second, "epoch=1"), read(second, "epoch=2")) == whole
    assert {*second.kept(ROOM)} == {*left} and len(second.kept(len(left[0].text) + 200)) == 1
    with caplog.at_level(logging.WARNING):
        third = orders_of(left=[left[0]._replace(text=left[0].text[:-5])])
        assert sorted(read(third, "epoch=2")) == sorted(whole[1])
    assert "an order of the previous daemon is drawn again: " in caplog.text


def test_what_cannot_be_drawn() -> None:
    orders = orders_of()
    read(orders, "world=2,batch=8")
    with pytest.raises(InvalidInput, match="drawn for other ranks: give world=2,batch=8 and the nodes"):
        read(orders, "world=4,batch=8")
    with pytest.raises(InvalidInput, match="has no skips: leave out skip="):
        read(orders, "skip=0-3")
