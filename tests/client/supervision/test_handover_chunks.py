"""What a daemon's shelf leaves, as the next daemon of the mount finds it."""

import os
from collections.abc import Iterator

import pytest
import trio

from dieselfs.chunk.segment import Segment
from dieselfs_client.memory.node_cache import NodeCache
from dieselfs_client.supervision.control_channel import ControlChannel
from dieselfs_client.supervision.supervisor_client import HandoverChunks, SupervisorClient
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries

CHUNKS = 4
CHUNK_BYTES = 5000


class Supervisor:
    """Holds what daemons leave, and starts the next one."""

    def __init__(self) -> None:
        self.pinned: dict[str, int] = {}
        self._ends: list[ControlChannel] = []
        self._daemon_ends: list[ControlChannel] = []

    def daemon(self) -> SupervisorClient:
        ours, theirs = ControlChannel.pair()
        for name, descriptor in self.pinned.items():
            ours.send("keep", name, descriptor)
        ours.send("go")
        daemon_end = ControlChannel(theirs)
        self._ends.append(ours)
        self._daemon_ends.append(daemon_end)
        return SupervisorClient(daemon_end)

    def listen(self) -> None:
        """Take what the daemons have said so far."""
        for end in self._ends:
            while True:
                try:
                    message = end.receive()
                except BlockingIOError:
                    break
                assert message is not None
                if message.word == "keep":
                    assert message.about not in self.pinned and message.descriptor is not None
                    self.pinned[message.about] = message.descriptor
                elif message.word == "drop":
                    os.close(self.pinned.pop(message.about))

    def close(self) -> None:
        for descriptor in self.pinned.values():
            os.close(descriptor)
        for end in (*self._ends, *self._daemon_ends):
            end.close()


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    supervisor = Supervisor()
    yield supervisor
    supervisor.close()


def pack(fill: int = 0) -> PackedDataset:
    entries = [TreeEntry(b"%d" % n, 0o100644, 0, bytes([fill + n]) * CHUNK_BYTES) for n in range(CHUNKS)]
    return pack_entries(entries, chunk_bytes=CHUNK_BYTES)


class Life:
    """Of a daemon: a shelf that is filled from the dataset."""

    def __init__(
        self,
        packed: PackedDataset,
        supervisor_client: SupervisorClient,
        nursery: trio.Nursery,
        room: int = CHUNKS,
    ) -> None:
        self._source = packed.source()
        self.handover_chunks = HandoverChunks(supervisor_client, packed.snapshot)
        room_bytes = room * CHUNK_BYTES
        self.node_cache = NodeCache(
            packed.snapshot,
            self.fetch,
            room_bytes,
            CHUNK_BYTES,
            nursery,
            keeper=self.handover_chunks,
        )

    def fetch(self, chunk: int) -> Segment:
        segment = Segment.create(CHUNK_BYTES)
        segment.view[:] = self._source.fetch_chunk(chunk)
        segment.seal()
        return segment

    async def fill(self) -> None:
        for chunk in range(CHUNKS):
            assert (await self.node_cache.fetch(chunk)).view == self._source.fetch_chunk(chunk)


async def test_the_next_daemon_has_what_was_kept(supervisor: Supervisor) -> None:
    packed = pack()
    async with trio.open_nursery() as nursery:
        first = Life(packed, supervisor.daemon(), nursery, room=3)
        await first.fill()
        first.node_cache.drop([1])
        supervisor.listen()
        assert len(supervisor.pinned) == 2, "not what was dropped, nor what is in transit"
        for _ in range(2):
            life = Life(packed, supervisor.daemon(), nursery)
            assert sorted(life.node_cache.chunks()) == [0, 2]
            assert life.node_cache.policy.pinned_bytes == 2 * CHUNK_BYTES
        await life.fill()
        assert (
            life.node_cache.metrics.numbers()["node_cache.inherited_chunks"],
            life.node_cache.metrics.numbers()["node_cache.fetched_chunks"],
        ) == (2, 2)
        supervisor.listen()
        assert len(supervisor.pinned) == 4


async def test_what_has_no_room_any_more_is_let_go_of(supervisor: Supervisor) -> None:
    packed = pack()
    async with trio.open_nursery() as nursery:
        await Life(packed, supervisor.daemon(), nursery).fill()
        supervisor.listen()
        smaller = Life(packed, supervisor.daemon(), nursery, room=1)
        supervisor.listen()
        assert len(smaller.node_cache.chunks()) == len(supervisor.pinned) == 1


async def test_chunks_of_another_snapshot_are_let_go_of(supervisor: Supervisor) -> None:
    async with trio.open_nursery() as nursery:
        await Life(pack(), supervisor.daemon(), nursery).fill()
        supervisor.listen()
        other = Life(pack(fill=100), supervisor.daemon(), nursery)
        assert other.node_cache.chunks() == []
        supervisor.listen()
        assert supervisor.pinned == {}
        await other.fill()


async def test_who_is_not_the_master_lets_go_of_all(supervisor: Supervisor) -> None:
    packed = pack()
    async with trio.open_nursery() as nursery:
        await Life(packed, supervisor.daemon(), nursery).fill()
        supervisor.listen()
        supervisor_client = supervisor.daemon()
        handover_chunks = HandoverChunks(supervisor_client, packed.snapshot)
        assert supervisor_client.inherited == {}
        handover_chunks.renounce()
        supervisor.listen()
        assert supervisor.pinned == {} and list(handover_chunks.take()) == []


async def test_what_is_not_sealed_is_not_taken(supervisor: Supervisor) -> None:
    packed = pack()
    name = f"chunk-{packed.snapshot.digest.hex()}-0"
    supervisor.pinned[name] = os.memfd_create("false", os.MFD_ALLOW_SEALING)
    os.truncate(supervisor.pinned[name], CHUNK_BYTES)
    async with trio.open_nursery() as nursery:
        assert Life(packed, supervisor.daemon(), nursery).node_cache.chunks() == []
        supervisor.listen()
        assert supervisor.pinned == {}
