"""Every chunk has one owner at any time, and a peer that is doubted keeps only what it is asked for."""

from dataclasses import replace

import numpy as np
import pytest

from dieselfs.cluster.failure_detector import FailureDetector
from dieselfs.cluster.member import Member
from dieselfs.cluster.placement import BLOCK_CHUNKS, ChunkOwners, Placement
from dieselfs.net.address import TcpAddress
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries

CHUNKS = 200


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    entries = [TreeEntry(b"%d" % n, 0o100644, 0, b"x") for n in range(CHUNKS)]
    return pack_entries(entries, chunk_bytes=1)


def member(node: str) -> Member:
    return Member(node, 0, TcpAddress("127.0.0.1", 1), 1 << 30, bytes(16))


NODES = [member(node) for node in "abcd"]


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def owners(of: ChunkOwners) -> list[str]:
    found = [of.owner(chunk) for chunk in range(CHUNKS)]
    return [each.node if each else "me" for each in found]


def test_alone_all_chunks_are_our_own(packed: PackedDataset) -> None:
    ownership = ChunkOwners(packed.snapshot, NODES[0], FailureDetector(Clock()))
    assert set(owners(ownership)) == {"me"}
    assert ownership.own_chunks().tolist() == [*range(CHUNKS)]


def test_chunks_are_placed_as_every_node_places_them(packed: PackedDataset) -> None:
    placement = Placement(NODES)
    placed = [
        placement.members[place].node for place in placement.owners(packed.snapshot.column("chunk_ids"))
    ]
    for me in NODES:
        ownership = ChunkOwners(packed.snapshot, me, FailureDetector(Clock()))
        ownership.change(NODES)
        assert owners(ownership) == ["me" if node == me.node else node for node in placed]
        assert ownership.own_chunks().tolist() == np.flatnonzero(np.array(placed) == me.node).tolist()


def test_what_a_doubted_peer_is_not_asked_for_goes_to_the_others(packed: PackedDataset) -> None:
    clock = Clock()
    suspicion = FailureDetector(clock)
    ownership = ChunkOwners(packed.snapshot, NODES[0], suspicion)
    ownership.change(NODES)
    well = owners(ownership)
    suspicion.failed("b")
    avoided = owners(ownership)
    assert "b" not in avoided and {"me", "c", "d"} == set(avoided)
    assert all(now == before for now, before in zip(avoided, well, strict=True) if before != "b")
    suspicion.recovered("b")
    counts = []
    for _ in range(12):
        returning = owners(ownership)
        assert all(
            now in (before, other) for now, before, other in zip(returning, well, avoided, strict=True)
        )
        counts.append(returning.count("b"))
        clock.now_s += 1
    assert counts == sorted(counts) and counts[0] < counts[5] < counts[-1]
    assert owners(ownership) == well


def test_members_that_leave_are_owners_no_more(packed: PackedDataset) -> None:
    ownership = ChunkOwners(packed.snapshot, NODES[0], FailureDetector(Clock()))
    ownership.change(NODES)
    ownership.change(NODES[:2])
    assert set(owners(ownership)) == {"me", "b"}


@pytest.mark.parametrize("order", [1, -1])
def test_owners_that_are_known_do_not_outlast_their_members(packed: PackedDataset, order: int) -> None:
    """Nodes leave, come, and offer other memory: what was worked out before is carried on, and right."""
    weak = replace(NODES[1], memory_bytes=1 << 28)
    lists = [NODES, NODES[:3], [NODES[0], weak, NODES[3]], [NODES[0]], [NODES[0], weak], NODES]
    ownership = ChunkOwners(packed.snapshot, NODES[0], FailureDetector(Clock()))
    for members in lists[::order]:
        ownership.change(members)
        fresh = ChunkOwners(packed.snapshot, NODES[0], FailureDetector(Clock()))
        fresh.change(members)
        assert owners(ownership) == owners(fresh)
        own = ownership.own_chunks().tolist()
        assert own == [chunk for chunk, owner in enumerate(owners(fresh)) if owner == "me"]
        some = range(0, CHUNKS, 3)
        assert ownership.own_among(some).tolist() == [chunk for chunk in some if chunk in own]


def test_of_many_chunks_blocks_are_worked_out_as_they_are_asked_for() -> None:
    entries = [TreeEntry(b"%d" % n, 0o100644, 0, b"x") for n in range(2 * BLOCK_CHUNKS + 3)]
    snapshot = pack_entries(entries, chunk_bytes=1).snapshot
    placement = Placement(NODES)
    ids = snapshot.column("chunk_ids")
    suspicion = FailureDetector(Clock())
    ownership = ChunkOwners(snapshot, NODES[0], suspicion)
    ownership.change(NODES)
    last = snapshot.chunk_count - 1
    for chunk in (BLOCK_CHUNKS, last, 0):
        owner = ownership.owner(chunk)
        assert (owner or NODES[0]) == placement.members[placement.owners(ids)[chunk]]
    suspicion.failed("b")
    ownership.change(NODES[:3])  # one goes while another is doubted; only some blocks are known
    left = placement.without({"b", "d"})
    for chunk in (BLOCK_CHUNKS + 1, BLOCK_CHUNKS - 1, last):
        owner = ownership.owner(chunk)
        assert (owner or NODES[0]) == left.members[left.owners(ids)[chunk]]
