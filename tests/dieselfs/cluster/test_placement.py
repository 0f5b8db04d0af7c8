"""Placement: the same everywhere, in proportion to memory, and a change moves only what it must."""

from collections.abc import Sequence
from decimal import Decimal, localcontext

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from dieselfs.cluster.member import Member
from dieselfs.cluster.placement import Placement, logarithms, weight_of
from dieselfs.errors import InvalidInput
from dieselfs.limits import GIB, MIB
from dieselfs.net.address import TcpAddress
from tests.support.documents import table

WORD = (1 << 64) - 1


def offer(node: str, memory_bytes: int = 16 * GIB) -> Member:
    return Member(node, 0, TcpAddress("127.0.0.1", 1), memory_bytes, bytes(16))


def chunk_ids(count: int) -> npt.NDArray[np.uint8]:
    """IDs as a writer makes them: a time, a machine, a process, and a counter."""
    parts = (
        (1_700_000_000 + number // 50).to_bytes(4, "big")
        + bytes.fromhex("0242ac110003001007")
        + number.to_bytes(3, "big")
        for number in range(count)
    )
    return np.frombuffer(b"".join(parts), np.uint8)


IDS = chunk_ids(20_000)
SOME_IDS = [bytes(row) for row in IDS.reshape(-1, 16)[:300]]


def nodes(count: int, memory_bytes: int = 16 * GIB) -> list[Member]:
    return [offer(f"node-{number}", memory_bytes) for number in range(count)]


def owner(placement: Placement, chunk_id: bytes) -> str:
    return placement.members[int(placement.owners(np.frombuffer(chunk_id, np.uint8))[0])].node


def names(members: Sequence[Member], ids: npt.NDArray[np.uint8] = IDS) -> npt.NDArray[np.str_]:
    placement = Placement(members)
    return np.array([member.node for member in placement.members])[placement.owners(ids)]


# -- a second implementation, written from docs/internals/cache.md alone ---------------------------------------


def scramble(value: int) -> int:
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        value = value * factor & WORD
        value ^= value >> 32
    return value


def logarithm(row: int) -> int:
    with localcontext() as context:
        context.prec = 60
        return int((1 + Decimal(row) / 1024).ln() / Decimal(2).ln() * (1 << 32))


TABLE = [logarithm(row) for row in range(1025)]


def weight(memory_bytes: int) -> int:
    mib = memory_bytes // MIB
    while mib >= 64 and mib % (unit := 1 << (mib.bit_length() - 6)):
        mib -= mib % unit
    return mib


def plain_owner(members: Sequence[Member], chunk_id: bytes) -> str:
    low, high = (int.from_bytes(half, "little") for half in (chunk_id[:8], chunk_id[8:]))
    chunk_key = scramble(scramble(low) ^ high)
    has_memory = any(weight(member.memory_bytes) for member in members)
    ranked = []
    for member in members:
        share = weight(member.memory_bytes) if has_memory else 1
        if share:
            hashed = scramble(chunk_key ^ xxh3_64_intdigest(member.node.encode()))
            number = max(hashed >> 11, 1)
            length = number.bit_length()
            bits = f"{number << (53 - length):053b}"
            row, rest = int(bits[1:11], 2), int(bits[11:43], 2)
            fraction = TABLE[row] + ((TABLE[row + 1] - TABLE[row]) * rest >> 32)
            distance = (54 << 32) - ((length << 32) + fraction)
            ranked.append(((distance << 24) // share, -hashed, member.node))
    return min(ranked)[2]


@pytest.mark.parametrize(
    "members",
    [
        nodes(1),
        nodes(8),
        [offer(f"n{number}", (number + 1) * 700 * MIB) for number in range(9)],
        [offer("small", 5 * MIB), offer("none", 0), offer("large", 1 << 44), offer("large-too", 1 << 44)],
        [offer("a", 0), offer("b", MIB - 1)],
        [offer("b"), offer("a"), offer("knoten-ä")],
    ],
    ids=["one", "equal", "nine-weights", "extremes", "none-has-memory", "unordered"],
)
def test_it_is_what_the_page_says(members: list[Member]) -> None:
    placement = Placement(members)
    expected = [plain_owner(members, chunk_id) for chunk_id in SOME_IDS]
    assert [owner(placement, chunk_id) for chunk_id in SOME_IDS] == expected
    assert names(members, IDS[: 16 * len(SOME_IDS)]).tolist() == expected


def test_golden_vectors() -> None:
    """They never change: two versions in one job must agree."""
    equal = Placement(nodes(4))
    different = Placement([offer("node-0", GIB), offer("node-1", 2 * GIB), offer("node-2", 5 * GIB)])
    rows = [[cell.strip("`") for cell in row] for row in table("internals/cache.md", "### Vectors")]
    assert len(rows) == 8
    for chunk_id, *owners in rows:
        ids = bytes.fromhex(chunk_id)
        assert [owner(equal, ids), owner(different, ids)] == owners


def test_the_table_of_logarithms_is_exact() -> None:
    assert logarithms().tolist() == TABLE


@pytest.mark.parametrize(
    "memory_bytes", [0, 1, MIB, 63 * MIB, 64 * MIB, 65 * MIB, 127 * MIB + 5, 3 * GIB + 1, 1 << 50]
)
def test_weights_are_memory_rounded_down_a_little(memory_bytes: int) -> None:
    assert weight_of(memory_bytes) == weight(memory_bytes)
    assert memory_bytes // MIB * 32 / 33 <= weight_of(memory_bytes) <= memory_bytes / MIB


# -- what it is for ----------------------------------------------------------------------------------------------

members_lists = st.lists(
    st.builds(offer, st.text("abcxyz-0123", min_size=1, max_size=6), st.integers(0, 1 << 36)),
    min_size=2,
    max_size=12,
    unique_by=lambda member: member.node,
)


@settings(max_examples=60)
@given(members=members_lists, data=st.data())
def test_a_node_that_goes_moves_only_what_it_owned(members: list[Member], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(members))
    if not any(weight_of(member.memory_bytes) for member in members if member is not gone):
        return  # the weights of those that are left change
    ids = IDS[: 16 * 2000]
    before = names(members, ids)
    after = names([member for member in members if member is not gone], ids)
    is_moved = before != after
    assert (before[is_moved] == gone.node).all() and (after != gone.node).all()
    assert is_moved.sum() == (before == gone.node).sum()
    left = Placement(members).without({gone.node})
    assert np.array([member.node for member in left.members])[left.owners(ids)].tolist() == after.tolist()
    assert names(members[::-1], ids).tolist() == before.tolist()  # and the returning node has its old share


@settings(max_examples=60)
@given(members=members_lists, memory_bytes=st.integers(1 << 20, 1 << 37), data=st.data())
def test_a_node_that_grows_only_gains(members: list[Member], memory_bytes: int, data: st.DataObject) -> None:
    small = data.draw(st.sampled_from(members))
    if not any(weight_of(member.memory_bytes) for member in members):
        return
    grown = offer(small.node, small.memory_bytes + memory_bytes)
    ids = IDS[: 16 * 2000]
    before = names(members, ids)
    after = names([grown if member is small else member for member in members], ids)
    assert (after[before != after] == small.node).all()


@settings(max_examples=60)
@given(members=members_lists)
def test_what_one_node_owns_can_be_found_alone(members: list[Member]) -> None:
    placement = Placement(members)
    owners = placement.owners(IDS)
    for place, member in enumerate(placement.members):
        assert placement.owned_by(member.node, IDS).tolist() == np.flatnonzero(owners == place).tolist()
    assert placement.owned_by(members[0].node, IDS[:0]).tolist() == []


@pytest.mark.parametrize("count", [2, 8, 64])
def test_equal_nodes_own_equal_shares(count: int) -> None:
    shares = np.unique(names(nodes(count)), return_counts=True)[1]
    check_shares(shares, np.full(count, 1 / count))


def test_shares_are_in_proportion_to_memory() -> None:
    members = [offer(f"node-{number}", number * GIB) for number in (1, 2, 4, 8, 3)]
    owners = names(members)
    shares = np.array([(owners == member.node).sum() for member in members])
    check_shares(shares, np.array([1, 2, 4, 8, 3]) / 18)


def check_shares(shares: npt.NDArray[np.int64], expected: npt.NDArray[np.float64]) -> None:
    """Each within five standard deviations of what independent draws would give."""
    total = shares.sum()
    deviations = np.sqrt(total * expected * (1 - expected))
    assert (np.abs(shares - total * expected) < 5 * deviations).all()


def test_the_chunks_of_a_lost_node_go_to_all_the_others() -> None:
    owners = names(nodes(8))
    heirs = names(nodes(8)[1:])[owners == "node-0"]
    assert set(heirs.tolist()) == {f"node-{number}" for number in range(1, 8)}
    check_shares(np.unique(heirs, return_counts=True)[1], np.full(7, 1 / 7))


def test_what_cannot_be() -> None:
    with pytest.raises(InvalidInput):
        Placement([])
    with pytest.raises(InvalidInput):
        Placement([offer("a"), offer("a", GIB)])
    placement = Placement(nodes(2))
    assert placement.owners(IDS[:0]).tolist() == []
    with pytest.raises(InvalidInput):
        placement.owners(IDS[:20])
    assert placement.without({"node-0", "node-1"}) is placement
