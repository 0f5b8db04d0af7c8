"""Every number of docs/reference/order.md and order-vectors.json, against the code and a second implementation."""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.cluster.placement import Placement
from dieselfs.shuffle.assignment import NOWHERE
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.order import Layout, Order
from dieselfs.shuffle.partition import Partition
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.quality import order_entropy_ratio
from dieselfs.shuffle.skips import Skips
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec
from dieselfs.snapshot.reader import Snapshot
from tests.support import reference_order
from tests.support.snapshots import SAMPLE, SOURCE, snapshot_bytes

DOCS = Path(__file__).parents[3] / "docs" / "reference"
PAGE = (DOCS / "order.md").read_text(encoding="utf-8")
VECTORS = json.loads((DOCS / "order-vectors.json").read_text(encoding="utf-8"))

SNAPSHOT = Snapshot(snapshot_bytes(SAMPLE), SOURCE)
SEED, EPOCH = 24, 2


def row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def test_the_worked_example() -> None:
    ids = [SNAPSHOT.chunk_id(chunk) for chunk in range(SNAPSHOT.chunk_count)]
    for number, chunk_id in enumerate(ids):
        name = reference_order.chunk_name(chunk_id)
        key = reference_order.key(SEED, EPOCH, 1, name)
        assert row(number, f"`{chunk_id.hex()}`", f"`{name:016x}`", f"`{key:016x}`") in PAGE
    files = {
        node: extents[0].chunk if (extents := SNAPSHOT.extents(node)) else None
        for node in range(len(SNAPSHOT))
        if SNAPSHOT.stat(node).is_file
    }
    for node, chunk in files.items():
        name = reference_order.mix(node)
        key = reference_order.key(SEED, EPOCH, 2, name)
        belongs = node % len(ids) if chunk is None else chunk
        path = SNAPSHOT.path(node).decode()
        assert row(node, f"`{path}`", belongs, f"`{name:016x}`", f"`{key:016x}`") in PAGE
    for group_chunks in (0, 1):
        nodes = Plan(SNAPSHOT, PlanSpec(SEED, EPOCH, group_chunks)).nodes().tolist()
        assert nodes == reference_order.order(ids, files, SEED, EPOCH, group_chunks)
        assert row(group_chunks, ", ".join(map(str, nodes))) in PAGE


def test_the_example_of_a_cursor() -> None:
    cursor = Plan(SNAPSHOT, PlanSpec(SEED, EPOCH, 1, Skips([range(1, 2)]))).cursor(2)
    assert f"    {cursor}\n" in PAGE and Cursor.parse(str(cursor)) == cursor


def test_the_example_of_ranks() -> None:
    for start, steps in ((0, (0, 1, 2)), (5, (1, 2))):
        for step in steps:
            shares = []
            for rank in range(3):
                deal = Partition(10, ReaderSpec(rank=rank, world=3, batch=4, start=start))
                expected = reference_order.read_by(10, rank, 3, 4, start, drop_last=False)
                assert [list(batch) for batch in map(deal.positions_of, deal.steps)] == expected
                shares.append(", ".join(map(str, deal.positions_of(step))) or "none")
            assert row(start, step, *shares) in PAGE


def test_the_entropy_ratios() -> None:
    ratios = [order_entropy_ratio(34_625 * 37, 34_625, group) for group in (1, 10, 50, 100, 500, 1000, 0)]
    assert row("ImageNet, 37 files in a chunk", *(f"{100 * ratio:.0f} %" for ratio in ratios)) in PAGE


def ordered(layout: Layout, vector: dict[str, Any]) -> Any:
    order = Order(layout, PlanSpec(int(vector["seed"]), int(vector["epoch"]), vector["group"]))
    return order.nodes(0, len(order.bounds) - 1)


SMALL_IDS = [bytes.fromhex(one) for one in VECTORS["small"]["chunk_ids"]]
SMALL_FILES = {one["node"]: one["chunk"] for one in VECTORS["small"]["files"]}
SMALL = Layout(
    np.frombuffer(b"".join(SMALL_IDS), ">u8").astype(np.uint64).reshape(-1, 2),
    np.array(list(SMALL_FILES), np.uint32),
    np.array([node % len(SMALL_IDS) if chunk is None else chunk for node, chunk in SMALL_FILES.items()]),
)


@pytest.mark.parametrize(
    "vector", VECTORS["small"]["orders"], ids=lambda one: f"{one['seed']}-{one['group']}"
)
def test_the_vectors(vector: dict[str, Any]) -> None:
    assert ordered(SMALL, vector).tolist() == vector["nodes"]
    seed, epoch = int(vector["seed"]), int(vector["epoch"])
    assert reference_order.order(SMALL_IDS, SMALL_FILES, seed, epoch, vector["group"]) == vector["nodes"]


@pytest.mark.parametrize("vector", VECTORS["local"], ids=lambda one: "-".join(one["nodes"]))
def test_the_vectors_of_local_assignments(vector: dict[str, Any]) -> None:
    names, world, batch, start = (vector[key] for key in ("nodes", "world", "batch", "start"))
    placement = Placement.of_names(dict.fromkeys(names))
    owners = placement.owners(np.frombuffer(b"".join(SMALL_IDS), np.uint8).reshape(-1, CHUNK_ID_BYTES))
    assert [placement.members[owner].node for owner in owners] == vector["homes"]
    numbers = [*dict.fromkeys(names)]
    files = ordered(SMALL, vector).tolist()
    homes = [
        None if SMALL_FILES[file] is None else numbers.index(vector["homes"][SMALL_FILES[file]])
        for file in files
    ]
    ranks = [
        Partition(
            len(files),
            ReaderSpec(rank, world, batch, start, nodes=tuple(names)),
            lambda places: np.array([NOWHERE if homes[place] is None else homes[place] for place in places]),
        )
        for rank in range(world)
    ]
    rank_nodes = [numbers.index(names[rank * len(names) // world]) for rank in range(world)]
    for step, expected in zip(ranks[0].steps, vector["read"], strict=True):
        read = [[files[place] for place in rank.positions_of(step)] for rank in ranks]
        first, end = max(step * batch, start), min((step + 1) * batch, len(files))
        reference = reference_order.local_step(homes[first:end], rank_nodes)
        assert read == expected == [[files[first + place] for place in mine] for mine in reference]


def test_the_vectors_of_a_hundred_thousand_files() -> None:
    large = VECTORS["large"]
    files = np.arange(large["files"])
    chunks = files // large["files_per_chunk"]
    numbers = np.arange(chunks[-1] + 1, dtype=np.uint64)
    ids = np.stack([np.zeros_like(numbers), numbers], axis=1)
    layout = Layout(ids, files.astype(np.uint32), chunks)
    for vector in large["orders"]:
        nodes = ordered(layout, vector)
        assert nodes[:10].tolist() == vector["first_nodes"]
        assert f"{zlib.crc32(nodes.astype('<u4').tobytes()):08x}" == vector["crc32"]
