"""Simulated mounts: the daemon's part, with its real node, read path and prefetcher, over a page cache in memory. There
is no kernel: a read looks in the page cache, and then asks the daemon.
"""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import trio

from dieselfs.errors import DieselfsError
from dieselfs.prefetch.extent_table import Extents
from dieselfs.rpc.client import ServerClient
from dieselfs.settings.table import FUSE, JobSettings, Settings
from dieselfs.shuffle.plan import Share
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec
from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.server import ServerSource
from dieselfs_client.cluster.node_paths import lock_of
from dieselfs_client.daemon.node import Node, Prepared
from dieselfs_client.daemon.service import Service
from dieselfs_client.memory.budget import Allotment, allot_for
from dieselfs_client.memory.trio_cache import Foreground
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.mount.points.view_choice import Choice
from dieselfs_client.mount.views.view import View
from tests.simulation.green import Process
from tests.simulation.job_oracle import READ_S_MAX, JobOracle
from tests.simulation.world import World

SMALL_CHUNKS = 3
"""A mount with little memory holds this many in each part of it."""


class Pages:
    """The page cache: the extents of files, by node and place in the file. Some vanish, as the kernel reclaims them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stored: dict[int, dict[int, bytes]] = {}

    def store(self, extents: Extents, payload: memoryview, starts: npt.NDArray[np.int64]) -> int:
        self._world.pause(0.0005)
        taken = 0
        columns = zip(extents.nodes, extents.places, extents.lengths, starts, strict=True)
        for node, place, length, start in columns:
            self._stored.setdefault(int(node), {})[int(place)] = bytes(payload[start : start + length])
            taken += int(length)
        return taken

    def drop(self, nodes: npt.NDArray[np.integer]) -> None:
        for node in nodes.tolist():
            self._stored.pop(node, None)

    uncover = drop

    def drop_parts(self, extents: Extents) -> None:
        for node, place in zip(extents.nodes.tolist(), extents.places.tolist(), strict=True):
            self._stored.get(node, {}).pop(place, None)

    def prepare(self) -> None:
        pass

    def reclaimed(self, extents: Extents, of_readers: bool = False) -> npt.NDArray[np.bool_]:
        return np.array([int(node) not in self._stored for node in extents.nodes], np.bool_)

    def reclaim(self, source: random.Random) -> None:
        """Take some pages."""
        for node in [node for node in self._stored if source.random() < 0.2]:
            del self._stored[node]

    def file(self, node: int, size: int) -> bytes | None:
        """A file, if all of it is there."""
        content = b"".join(part for _, part in sorted(self._stored.get(node, {}).items()))
        return content if len(content) == size else None


def _allotment(snapshot: Snapshot, memory_bytes: int, nodes: int, is_small: bool) -> Allotment:
    if not is_small:
        return allot_for(snapshot, memory_bytes, nodes)
    part = SMALL_CHUNKS * int(snapshot.column("chunk_payload_lengths").max())
    return Allotment(0, 0, part, part, part, part)


class Mount:
    """A mount with its readers, as one process. It reads all the time, until the process ends."""

    def __init__(
        self,
        world: World,
        oracle: JobOracle,
        settings: Settings,
        snapshot: Snapshot,
        is_small: bool,
        rank: int,
    ) -> None:
        self._world, self._oracle, self._settings, self._snapshot = world, oracle, settings, snapshot
        self._is_small, self._rank = is_small, rank
        self.ready = trio.Event()

    async def run(self, process: Process) -> None:
        """Until the process is told to end."""
        settings, snapshot = self._settings, self._snapshot
        process.parts["mount"] = self
        await trio.sleep(self._world.delay_s(0.3))
        client = ServerClient(settings)
        options = MountOptions(
            **{name: getattr(settings.job, name) for name in JobSettings.__slots__},
            server=settings.server,
            key_file=settings.key_file,
            memory_bytes=settings.job_memory_bytes,
        )
        service = Service(snapshot, ServerSource(client, snapshot), options, client)
        lock = lock_of(snapshot, service.config)
        allotment = _allotment(snapshot, settings.job_memory_bytes, settings.job.job_nodes, self._is_small)
        async with trio.open_nursery() as nursery:
            foreground = Foreground()
            service.join(lock, allotment.node_cache, nursery, foreground)
            pages = Pages(self._world)
            view = View(Choice(FUSE, ""), snapshot, options)
            prepared = Prepared(snapshot, options, allotment, view, pages)
            node = Node(
                prepared, service.plain_source(), nursery, None, service.role, service.metrics, foreground
            )
            nursery.start_soon(service.keep_pinned)
            await service.settled()
            self.ready.set()
            nursery.start_soon(self._read_plans, node, pages)
            await process.parts["life"].stopping.wait()
            nursery.cancel_scope.cancel()
        await service.close_source()
        await service.unpin()

    async def _read_plans(self, node: Node, pages: Pages) -> None:
        """Epochs, whose order the mount knows; and now and then a file that is in no plan."""
        source = random.Random(f"{self._world.course.seed} mount {self._rank}")
        while True:
            spec = PlanSpec(7, source.randrange(8), 4)
            share = Share(node._plan(spec), ReaderSpec(0, 1))
            node.declare(share)
            await node.ahead_of(share)
            for inode in self._chosen(share, source):
                await self._read(node, pages, inode)
                await trio.sleep(0.2 * source.random())
            pages.reclaim(source)
            await trio.sleep(5.0 * source.random())

    def _chosen(self, share: Any, source: random.Random) -> Iterator[int]:
        for node in share.nodes().tolist():
            yield node
            if source.random() < 0.1:
                yield source.choice(share.nodes().tolist())

    async def _read(self, node: Node, pages: Pages, file: int) -> None:
        snapshot, oracle = self._snapshot, self._oracle
        path, size = snapshot.path(file).decode(), snapshot.size(file)
        content = pages.file(file, size)
        began_s, what = trio.current_time(), f"mount {self._rank}"
        try:
            if content is None:
                buffers = node.reads.at_once(file + 1, 0, size)
                if buffers is None:
                    buffers = await node.reads.fetch(file + 1, 0, size)
                content = b"".join(buffers)
        except DieselfsError as error:
            oracle.failed(what, error)
            return
        finally:
            oracle.took(what, trio.current_time() - began_s, READ_S_MAX)
        oracle.check_read(what, path, content)
