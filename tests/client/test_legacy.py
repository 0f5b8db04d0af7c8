"""What a daemon's shelf leaves, as the next daemon of the mount finds it."""

import os
from collections.abc import Iterator

import pytest
import trio

from dieselfs.cache.segment import Segment
from dieselfs_client.legacy import Legacy
from dieselfs_client.shelf import Shelf
from dieselfs_client.supervision.guardian import Guardian
from dieselfs_client.supervision.tether import Tether
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries

CHUNKS = 4
CHUNK_BYTES = 5000


class Supervisor:
    """Holds what daemons leave, and starts the next one."""

    def __init__(self) -> None:
        self.kept: dict[str, int] = {}
        self._ends: list[Tether] = []
        self._daemon_ends: list[Tether] = []

    def daemon(self) -> Guardian:
        ours, theirs = Tether.pair()
        for name, descriptor in self.kept.items():
            ours.send("keep", name, descriptor)
        ours.send("go")
        daemon_end = Tether(theirs)
        self._ends.append(ours)
        self._daemon_ends.append(daemon_end)
        return Guardian(daemon_end)

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
                    assert message.about not in self.kept and message.descriptor is not None
                    self.kept[message.about] = message.descriptor
                elif message.word == "drop":
                    os.close(self.kept.pop(message.about))

    def close(self) -> None:
        for descriptor in self.kept.values():
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
        self, packed: PackedDataset, guardian: Guardian, nursery: trio.Nursery, room: int = CHUNKS
    ) -> None:
        self._source = packed.source()
        self.legacy = Legacy(guardian, packed.snapshot)
        room_bytes = room * CHUNK_BYTES
        self.shelf = Shelf(packed.snapshot, self.fetch, room_bytes, CHUNK_BYTES, nursery, legacy=self.legacy)

    def fetch(self, chunk: int) -> Segment:
        segment = Segment.create(CHUNK_BYTES)
        segment.view[:] = self._source.fetch_chunk(chunk)
        segment.seal()
        return segment

    async def fill(self) -> None:
        for chunk in range(CHUNKS):
            assert await self.shelf.payload(chunk) == self._source.fetch_chunk(chunk)


async def test_the_next_daemon_has_what_was_kept(supervisor: Supervisor) -> None:
    packed = pack()
    async with trio.open_nursery() as nursery:
        first = Life(packed, supervisor.daemon(), nursery, room=3)
        await first.fill()
        first.shelf.drop([1])
        supervisor.listen()
        assert len(supervisor.kept) == 2, "not what was dropped, nor what is in transit"
        for _ in range(2):
            life = Life(packed, supervisor.daemon(), nursery)
            assert sorted(life.shelf.chunks()) == [0, 2]
            assert life.shelf.kept_bytes == 2 * CHUNK_BYTES
        await life.fill()
        assert (life.shelf.figures.inherited, life.shelf.figures.loads) == (2, 2)
        supervisor.listen()
        assert len(supervisor.kept) == 4


async def test_what_has_no_room_any_more_is_let_go_of(supervisor: Supervisor) -> None:
    packed = pack()
    async with trio.open_nursery() as nursery:
        await Life(packed, supervisor.daemon(), nursery).fill()
        supervisor.listen()
        smaller = Life(packed, supervisor.daemon(), nursery, room=1)
        supervisor.listen()
        assert len(smaller.shelf.chunks()) == len(supervisor.kept) == 1


async def test_chunks_of_another_snapshot_are_let_go_of(supervisor: Supervisor) -> None:
    async with trio.open_nursery() as nursery:
        await Life(pack(), supervisor.daemon(), nursery).fill()
        supervisor.listen()
        other = Life(pack(fill=100), supervisor.daemon(), nursery)
        assert other.shelf.chunks() == []
        supervisor.listen()
        assert supervisor.kept == {}
        await other.fill()


async def test_who_is_not_the_master_lets_go_of_all(supervisor: Supervisor) -> None:
    packed = pack()
    async with trio.open_nursery() as nursery:
        await Life(packed, supervisor.daemon(), nursery).fill()
        supervisor.listen()
        guardian = supervisor.daemon()
        legacy = Legacy(guardian, packed.snapshot)
        assert guardian.inherited == {}
        legacy.renounce()
        supervisor.listen()
        assert supervisor.kept == {} and list(legacy.take()) == []


async def test_what_is_not_sealed_is_not_taken(supervisor: Supervisor) -> None:
    packed = pack()
    name = f"chunk-{packed.snapshot.digest.hex()}-0"
    supervisor.kept[name] = os.memfd_create("false", os.MFD_ALLOW_SEALING)
    os.truncate(supervisor.kept[name], CHUNK_BYTES)
    async with trio.open_nursery() as nursery:
        assert Life(packed, supervisor.daemon(), nursery).shelf.chunks() == []
        supervisor.listen()
        assert supervisor.kept == {}
