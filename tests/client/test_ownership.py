import numpy as np
import pytest

from dieselfs.cache.member import INCARNATION_BYTES, Member
from dieselfs.cache.placement import Placement
from dieselfs.limits import GIB
from dieselfs.rpc.address import TcpAddress
from dieselfs_client.ownership import Ownership
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries

CHUNKS = 400


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    return pack_entries([TreeEntry(b"%d" % n, 0o100644, 0, b"0123456789") for n in range(CHUNKS)], chunk_bytes=10)


def member(number: int) -> Member:
    return Member(f"node-{number}", number, TcpAddress("10.0.0.1", 7000 + number), GIB, bytes(INCARNATION_BYTES))


ALL = tuple(member(number) for number in range(4))


def nodes(ownership: Ownership, me: Member) -> list[str]:
    return [(owner or me).node for owner in map(ownership.owner, range(CHUNKS))]


def test_alone_a_node_owns_everything(packed: PackedDataset) -> None:
    ownership = Ownership(packed.snapshot, ALL[0], lambda node, key: True)
    assert ownership.own().tolist() == list(range(CHUNKS))
    assert all(ownership.owner(chunk) is None for chunk in range(CHUNKS))


def test_all_nodes_see_the_same_owners(packed: PackedDataset) -> None:
    views = []
    for me in ALL:
        ownership = Ownership(packed.snapshot, me, lambda node, key: True)
        assert ownership.place(ALL[::-1], ())
        assert not ownership.place(ALL[::-1], ()), "nothing has changed"
        views.append(nodes(ownership, me))
        assert [views[-1][chunk] for chunk in ownership.own().tolist()] == [me.node] * len(ownership.own())
    assert views[0] == views[1] == views[2] == views[3]
    assert set(views[0]) == {each.node for each in ALL}


def test_the_chunks_of_a_node_that_is_avoided_go_to_those_who_would_own_them_without_it(
    packed: PackedDataset,
) -> None:
    me = ALL[0]
    ownership = Ownership(packed.snapshot, me, lambda node, key: node != "node-2")
    ownership.place(ALL, {"node-2"})
    ids = packed.snapshot.column("chunk_ids")
    rest = Placement(ALL).without({"node-2"})
    assert nodes(ownership, me) == [rest.members[index].node for index in rest.owners(ids)]


def test_one_that_returns_gets_a_part_of_its_chunks_first(packed: PackedDataset) -> None:
    me = ALL[0]
    full = Ownership(packed.snapshot, me, lambda node, key: True)
    full.place(ALL, ())
    half = Ownership(packed.snapshot, me, lambda node, key: key < 1 << 63)
    half.place(ALL, {"node-2"})
    before, after = np.array(nodes(full, me)), np.array(nodes(half, me))
    changed = before != after
    assert set(before[changed].tolist()) == {"node-2"}
    assert 0.3 < np.mean(after[before == "node-2"] == "node-2") < 0.7


def test_a_node_never_doubts_itself(packed: PackedDataset) -> None:
    ownership = Ownership(packed.snapshot, ALL[1], lambda node, key: False)
    ownership.place(ALL[:2], {"node-0", "node-1"})
    assert nodes(ownership, ALL[1]) == ["node-1"] * CHUNKS
