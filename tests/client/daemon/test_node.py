import json
import os
import time
from collections.abc import Awaitable, Callable

import numpy as np
import numpy.typing as npt
import pytest
import trio
import trio.testing

from dieselfs.errors import InvalidInput
from dieselfs.limits import MIB
from dieselfs.prefetch.extent_table import Extents
from dieselfs.settings.table import FUSE
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.share_name import ShareName
from dieselfs_client.daemon.node import Node, Prepared, allotment_of
from dieselfs_client.daemon.progress_keeper import Handover
from dieselfs_client.memory.budget import node_cache_evictable_bytes
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.mount.points.view_choice import Choice
from dieselfs_client.mount.views.view import open_view
from dieselfs_client.supervision.status import MemoryFile
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries

FILES = 1000
FILE_BYTES = 4096
CHUNK_BYTES = 10 * FILE_BYTES


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    names = [b"%d/%03d" % (n % 2, n) for n in range(FILES)]
    return pack_entries(
        [TreeEntry(name, 0o100644, 0, bytes(FILE_BYTES)) for name in names], chunk_bytes=CHUNK_BYTES
    )


class NoPages:
    def store(self, extents: Extents, payload: memoryview, starts: npt.NDArray[np.int64]) -> int:
        return int(extents.lengths.sum())

    def uncover(self, nodes: npt.NDArray[np.integer]) -> None:
        self.drop(nodes)

    def drop(self, nodes: npt.NDArray[np.integer]) -> None:
        pass

    def drop_parts(self, extents: Extents) -> None:
        pass

    def prepare(self) -> None:
        pass

    def reclaimed(self, extents: Extents, of_readers: bool = False) -> npt.NDArray[np.bool_]:
        return np.zeros(len(extents), np.bool_)


def run(
    packed: PackedDataset,
    scenario: Callable[[Node], Awaitable[None]],
    options: MountOptions | None = None,
    state: MemoryFile | None = None,
) -> None:
    options = options or MountOptions(memory_bytes=32 * MIB)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            allotment = allotment_of(packed.snapshot, options)
            source = packed.source()
            view = open_view(Choice(FUSE, ""), packed.snapshot, options, None)
            prepared = Prepared(packed.snapshot, options, allotment, view, NoPages())
            node = Node(prepared, lambda: source, nursery, Handover(state or MemoryFile("state")))
            with trio.fail_after(20):
                await scenario(node)
            nursery.cancel_scope.cancel()

    trio.run(main)


async def settled(node: Node) -> None:
    await trio.testing.wait_all_tasks_blocked()
    while node._prefetcher.is_busy:
        await trio.testing.wait_all_tasks_blocked(0.001)


def test_what_it_tells_goes_into_json(packed: PackedDataset) -> None:
    async def scenario(node: Node) -> None:
        share = node.share(ShareName.parse(b"seed=3,epoch=1,group=5,batch=10"))
        node.declare(share)
        await node.ahead_of(share)
        await settled(node)
        stats = json.loads(json.dumps(node.stats()))
        assert stats["memory"]["granted_bytes"] <= 32 * MIB
        updated_s = packed.snapshot.header.updated_ns / 1e9
        assert stats["snapshot"]["age_s"] == pytest.approx(time.time() - updated_s, abs=10)
        assert stats["hit_rate"] == {"best_possible": 1.0, "actual": 0.0}
        assert stats["fetches"]["chunks"] >= 10
        (plan,) = stats["plans"]
        assert (plan["seed"], plan["epoch"], plan["group"], plan["positions"]) == (3, 1, 5, FILES)
        assert plan["readers"] == [{"rank": 0, "world": 1, "worker": 0, "position": 0}]
        info = json.loads(json.dumps(node.info()))
        assert (info["dataset"], info["files"]) == (packed.snapshot.dataset, FILES)
        assert info["digest"] == packed.snapshot.digest.hex()

    run(packed, scenario)


def test_the_cursor_says_how_far_the_reader_is_known_to_be(packed: PackedDataset) -> None:
    async def scenario(node: Node) -> None:
        assert node.cursors() == []
        share = node.share(ShareName.parse(b"seed=3,epoch=1,group=0"))
        node.declare(share)
        await settled(node)
        for inode in (share.nodes(0, FILES // 2) + 1).tolist():
            node.reads.at_once(inode, 0, FILE_BYTES)
        (text,) = node.cursors()
        cursor = Cursor.parse(text)
        assert (cursor.spec.seed, cursor.spec.epoch) == (3, 1)
        assert FILES // 2 - 200 < cursor.position <= FILES // 2

    run(packed, scenario)


def test_oneshot_fetches_what_can_be_kept_at_once(packed: PackedDataset) -> None:
    async def scenario(node: Node) -> None:
        with trio.move_on_after(60):
            while node.stats()["memory"]["used_bytes"]["pinned"] < FILES * FILE_BYTES:
                await trio.sleep(0.01)
        assert node.stats()["memory"]["used_bytes"]["pinned"] == FILES * FILE_BYTES

    run(packed, scenario, MountOptions(memory_bytes=32 * MIB, policy="oneshot"))


def test_the_next_daemon_goes_on_with_plans_and_stock(packed: PackedDataset) -> None:
    book = MemoryFile("state")
    positions: list[int] = []

    async def first(node: Node) -> None:
        share = node.share(ShareName.parse(b"seed=3,epoch=1,group=0,folder=0"))
        node.declare(share)
        await settled(node)
        for inode in (share.nodes(0, FILES // 4) + 1).tolist():
            node.reads.at_once(inode, 0, FILE_BYTES)
        node.control.lookup(1 << 62, b"stats")  # whatever it tells the kernel is written down first
        positions.append(Cursor.parse(node.cursors()[0]).position)

    async def second(node: Node) -> None:
        while not node.cursors():
            await trio.sleep(0.001)
        (text,) = node.cursors()
        assert Cursor.parse(text).position == positions[0] > 0
        assert node.stats()["memory"]["used_bytes"]["pinned"] > 0
        assert len(node.control.files()) == 1

    run(packed, first, state=book)
    run(packed, second, state=MemoryFile("state", os.dup(book.descriptor)))


def test_what_cannot_fit_is_refused(packed: PackedDataset) -> None:
    large = pack_entries([TreeEntry(b"a", 0o100644, 0, bytes(6 * MIB))], chunk_bytes=6 * MIB)
    with pytest.raises(InvalidInput, match="give at least --memory"):
        allotment_of(large.snapshot, MountOptions(memory_bytes=8 * MIB))


def test_the_memory_of_a_node_in_a_job_holds_what_it_owns_whatever_chance_gives_it(
    packed: PackedDataset,
) -> None:
    options = MountOptions(memory_bytes=64 * MIB)
    alone = allotment_of(packed.snapshot, options)
    assert alone.node_cache == 0
    total = FILES * FILE_BYTES
    for nodes in (1, 2, 4, 8):
        node_cache = allotment_of(packed.snapshot, options, nodes).node_cache
        assert total / nodes * 0.99 < node_cache - node_cache_evictable_bytes(node_cache, nodes) <= total + 1
    assert (
        allotment_of(packed.snapshot, options, 8).node_cache
        < allotment_of(packed.snapshot, options, 2).node_cache
    )
