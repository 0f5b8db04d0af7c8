"""The order of an epoch: a permutation, group by group, the same everywhere, and as its page says."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs import arrays
from dieselfs.errors import InvalidInput
from dieselfs.shuffle import order as order_module
from dieselfs.shuffle.groups import GROWN_CHUNKS_MAX
from dieselfs.shuffle.order import Layout, Order, mix, stream
from dieselfs.shuffle.spec import SEED_MAX, PlanSpec
from dieselfs.snapshot.reader import Snapshot
from tests.support import reference_order
from tests.support.dataset import TreeEntry, pack_entries
from tests.support.snapshots import SOURCE, file_of, snapshot_bytes

FILES = [TreeEntry(b"d%d/f%03d" % (n % 7, n), 0o100644, n, b"x" * (n % 50)) for n in range(400)]
SNAPSHOT = pack_entries(FILES, chunk_bytes=200).snapshot
GRID = list(product((0, 1, SEED_MAX), (0, 1, 7), (1, 3, 10, 0, None)))

NUMBERS = st.integers(0, SEED_MAX)


def order_of(
    snapshot: Snapshot = SNAPSHOT, seed: int = 0, epoch: int = 0, group_chunks: int | None = 0
) -> list[int]:
    order = Order(Layout.of(snapshot), PlanSpec(seed, epoch, group_chunks))
    return [int(node) for node in order.nodes(0, len(order.bounds) - 1)]


def first_chunks(snapshot: Snapshot) -> dict[int, int | None]:
    """Of each file, the chunk that it begins in."""
    return {
        node: extents[0].chunk if (extents := snapshot.extents(node)) else None
        for node in range(len(snapshot))
        if snapshot.stat(node).is_file
    }


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
    seed: int, epoch: int, group_chunks: int | None
) -> None:
    order = order_of(SNAPSHOT, seed, epoch, group_chunks)
    files = first_chunks(SNAPSHOT)
    assert sorted(order) == list(files)
    chunks = [chunk for node in order if (chunk := files[node]) is not None]
    for chunk in set(chunks):  # the files of a chunk all lie in one group
        places = [place for place, other in enumerate(chunks) if other == chunk]
        inside = set(chunks[places[0] : places[-1] + 1])
        largest = GROWN_CHUNKS_MAX if group_chunks is None else group_chunks or SNAPSHOT.chunk_count
        assert len(inside) <= largest
    assert order == order_of(SNAPSHOT, seed, epoch, group_chunks)


def test_a_large_group_is_sorted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [order_of(seed=seed, group_chunks=0) for seed in range(3)]
    for module in (arrays, order_module):
        monkeypatch.setattr(module, "AT_ONCE", 7)
    assert [order_of(seed=seed, group_chunks=0) for seed in range(3)] == whole


@given(NUMBERS, NUMBERS, st.none() | st.integers(0, 1000))
def test_the_order_is_that_of_its_page(seed: int, epoch: int, group_chunks: int | None) -> None:
    ids = [SNAPSHOT.chunk_id(chunk) for chunk in range(SNAPSHOT.chunk_count)]
    expected = reference_order.order(ids, first_chunks(SNAPSHOT), seed, epoch, group_chunks)
    assert order_of(SNAPSHOT, seed, epoch, group_chunks) == expected


@given(
    st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=90, unique=True).map(sorted),
    st.dictionaries(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), max_size=60),
    NUMBERS,
    st.none() | st.integers(0, 25),
)
def test_any_ids_and_numbers_are_ordered_as_the_page_says(
    ids: list[bytes], files: dict[int, int], seed: int, group_chunks: int | None
) -> None:
    chunk_of = {node: files[node] % len(ids) for node in sorted(files)}
    layout = Layout(
        np.frombuffer(b"".join(ids), ">u8").astype(np.uint64).reshape(-1, 2),
        np.array(list(chunk_of), np.uint32),
        np.array(list(chunk_of.values()), np.int64),
    )
    order = Order(layout, PlanSpec(seed, 3, group_chunks))
    expected = reference_order.order(ids, chunk_of, seed, 3, group_chunks)
    assert order.nodes(0, len(order.bounds) - 1).tolist() == expected


def test_a_group_can_be_had_without_the_others() -> None:
    order = Order(Layout.of(SNAPSHOT), PlanSpec(5, 6, 7))
    whole = order.nodes(0, len(order.bounds) - 1).tolist()
    assert len(order.bounds) > 6 and order.bounds[-1] == len(whole)
    for group, (first, end) in enumerate(zip(order.bounds, order.bounds[1:], strict=False)):
        assert order.nodes(group, group + 1).tolist() == whole[first:end]
    assert order.nodes(2, 5).tolist() == whole[order.bounds[2] : order.bounds[5]]


@given(NUMBERS, st.sampled_from([1, 3, 10, 0, None]), st.data())
def test_some_places_of_a_group_are_as_in_all_of_it(
    seed: int, group_chunks: int | None, data: st.DataObject
) -> None:
    order = Order(Layout.of(SNAPSHOT), PlanSpec(seed, 0, group_chunks))
    group = data.draw(st.integers(0, len(order.bounds) - 2))
    nodes = order.nodes(group, group + 1)
    places = np.array(data.draw(st.lists(st.sampled_from(range(len(nodes))))) if len(nodes) else [], np.int64)
    assert order.nodes_at(group, places).tolist() == nodes[places].tolist()


def test_chunks_of_equal_keys_come_in_the_order_of_their_ids() -> None:
    # For any first half there is a second half that gives the same key: the mixer can be undone by search of its
    # argument, mix(first half) XOR second half.
    halves = np.array([9, 4, 7, 1], np.uint64)
    ids = np.stack([halves, mix(halves) ^ np.uint64(12345)], axis=1)
    ids = ids[np.lexsort((ids[:, 1], ids[:, 0]))]
    layout = Layout(ids, np.arange(4, dtype=np.uint32), np.arange(4))
    assert len(set(layout.chunk_names.tolist())) == 1
    for seed in range(10):
        assert Order(layout, PlanSpec(seed, 0, 1)).nodes(0, 4).tolist() == [0, 1, 2, 3]


def test_more_groups_and_chunks_than_sixteen_bits_can_count() -> None:
    count = 70_000
    ids = np.stack([np.zeros(count, np.uint64), np.arange(count, dtype=np.uint64)], axis=1)
    chunks = np.arange(count)[::-1].copy()
    order = Order(Layout(ids, np.arange(count, dtype=np.uint32), chunks), PlanSpec(1, 1, 1))
    assert (order.nodes(0, count) == count - 1 - order.chunks).all()


def test_a_chunk_more_leaves_the_order_of_the_others() -> None:
    ids = np.stack([np.arange(100, dtype=np.uint64)] * 2, axis=1)

    def chunks_in_order(pinned: list[int]) -> list[int]:
        layout = Layout(ids[pinned], np.arange(len(pinned), dtype=np.uint32), np.arange(len(pinned)))
        return [pinned[chunk] for chunk in Order(layout, PlanSpec(8, 9, 10)).chunks]

    fewer = [chunk for chunk in range(100) if chunk not in (0, 31, 99)]
    assert [chunk for chunk in chunks_in_order(list(range(100))) if chunk in fewer] == chunks_in_order(fewer)


def test_a_full_shuffle_does_not_depend_on_how_files_lie_in_chunks() -> None:
    other = pack_entries(FILES[::-1], chunk_bytes=1000).snapshot
    assert other.chunk_count != SNAPSHOT.chunk_count
    assert order_of(other, 3, 4) == order_of(SNAPSHOT, 3, 4)


def test_files_without_bytes_are_spread_over_the_chunks() -> None:
    tree = {b"%03d" % number: file_of() for number in range(300)}
    tree |= {b"with bytes %d" % chunk: file_of((chunk, 0, 5)) for chunk in range(3)}
    snapshot = Snapshot(snapshot_bytes(tree, chunks=3), SOURCE)
    order = Order(Layout.of(snapshot), PlanSpec(0, 0, 1))
    assert np.diff(order.bounds).tolist() == [101, 101, 101]
    assert order_of(snapshot, 1, 1, 1) == reference_order.order(
        [snapshot.chunk_id(chunk) for chunk in range(3)], first_chunks(snapshot), 1, 1, 1
    )


@pytest.mark.parametrize("names", [(), (b"a", b"b", b"c")])
def test_a_dataset_without_chunks_has_one_group(names: tuple[bytes, ...]) -> None:
    snapshot = Snapshot(snapshot_bytes({name: file_of() for name in names}, chunks=0), SOURCE)
    assert sorted(order_of(snapshot, 1, 2, 1)) == list(range(1, len(names) + 1))
    assert order_of(snapshot, 1, 2, 1) == reference_order.order([], first_chunks(snapshot), 1, 2, 1)


def test_seeds_epochs_and_groups_give_different_orders() -> None:
    orders = {tuple(order_of(SNAPSHOT, *cell)) for cell in GRID}
    assert len(orders) == len(GRID)


def test_chunks_and_files_of_one_name_get_unrelated_keys() -> None:
    assert stream(1, 1, 1) != stream(1, 1, 2)


@pytest.mark.parametrize(
    ("seed", "epoch", "group_chunks"), [(-1, 0, 1), (2**64, 0, 1), (0, -1, 1), (0, 0, -1), (0, 0, 2**32)]
)
def test_numbers_out_of_range_are_refused(seed: int, epoch: int, group_chunks: int) -> None:
    with pytest.raises(InvalidInput, match="from 0 to"):
        Order(Layout.of(SNAPSHOT), PlanSpec(seed, epoch, group_chunks))


@given(st.data(), st.integers(0, 3), st.sampled_from([0, 1, 3]))
def test_a_selection_is_the_folder_without_other_files(
    data: st.DataObject, seed: int, group_chunks: int
) -> None:
    """Written out from the page: names node + i * 2^32, sorted by key within the group of the file."""
    layout, spec = Layout.of(SNAPSHOT), PlanSpec(seed, 1, group_chunks)
    whole = Order(layout, spec)
    nodes = [whole.nodes(group, group + 1) for group in range(len(whole.bounds) - 1)]
    counts = data.draw(
        st.dictionaries(st.sampled_from(np.concatenate(nodes).tolist()), st.integers(1, 3), min_size=1)
    )
    names = sorted(node + (number << 32) for node, count in counts.items() for number in range(count))
    selected = layout.select(np.array(names, np.uint64))
    order = Order(selected, spec)
    group_stream = stream(seed, 1, 2)
    for group, of_group in enumerate(nodes):
        mine = [name for name in names if name & 0xFFFFFFFF in of_group]
        keys = mix(group_stream ^ mix(np.array(mine, np.uint64))).tolist()
        expected = [name for _, name in sorted(zip(keys, mine, strict=True))]
        assert order.nodes(group, group + 1).tolist() == expected
    assert len(selected) == len(names) and len(selected.selection) == 32


def test_a_selection_of_everything_is_the_folder() -> None:
    layout = Layout.of(SNAPSHOT)
    nodes = np.sort(Order(layout, PlanSpec(0, 0, 0)).nodes(0, 1)).astype(np.uint64)
    assert len(nodes) == len(layout)
    assert layout.select(nodes) is layout
    assert layout.select(nodes[1:]) is not layout
    with pytest.raises(InvalidInput, match="not below"):
        layout.select(np.array([0], np.uint64))  # the root is no file
