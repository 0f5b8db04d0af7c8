"""The daemon's end of the socket, and the library that reads through it."""

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
import trio

from dieselfs.chunk.segment import Segment
from dieselfs.cluster.holdings import FAR, HERE
from dieselfs.cluster.member import Member
from dieselfs.cluster.node_client import (
    NodeClient,
    NodeConnection,
    NodeMembers,
    socket_path,
)
from dieselfs.cluster.node_messages import ChunkRequest, Hello, Refusal, Welcome, decode, encode
from dieselfs.dataset import Dataset
from dieselfs.errors import (
    Damaged,
    DieselfsError,
    InvalidInput,
    MountError,
    Unavailable,
)
from dieselfs.net.address import TcpAddress
from dieselfs.process.state_dirs import make_private, runtime_folder
from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.server import ServerSource
from dieselfs_client.cluster import local_service as sharing
from dieselfs_client.cluster.local_service import LocalService, bound
from dieselfs_client.memory.node_cache import NodeCache
from tests.client.conftest import FILES
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries
from tests.support.server import RunningServer
from tests.support.users import as_nobody

CHUNK_BYTES = 100_000


class Shelf:
    """Chunks by their number: a segment, an error, or nothing. Counts what was asked for."""

    def __init__(self, **chunks: Segment | DieselfsError | None) -> None:
        self.chunks = {int(name[1:]): chunk for name, chunk in chunks.items()}
        self.asked: list[tuple[int, int]] = []

    def is_worth_fetching(self, chunk: int, wanted_bytes: int) -> bool:
        self.asked.append((chunk, wanted_bytes))
        return self.chunks.get(chunk) is not None

    async def fetch(self, chunk: int) -> Segment:
        await trio.lowlevel.checkpoint()
        found = self.chunks[chunk]
        assert found is not None
        if isinstance(found, DieselfsError):
            raise found
        return found


class FetchingShelf:
    """All chunks of a snapshot, fetched when they are asked for and held from then on."""

    def __init__(self, chunks: ServerSource) -> None:
        self._chunks = chunks
        self.segments: dict[int, Segment] = {}
        self.policy = self.segments
        self._fetching = trio.Lock()

    def is_worth_fetching(self, chunk: int, wanted_bytes: int) -> bool:
        return True

    async def fetch(self, chunk: int) -> Segment:
        async with self._fetching:
            if chunk not in self.segments:
                fetch = self._chunks.fetch_segment
                self.segments[chunk] = await trio.to_thread.run_sync(fetch, chunk)
            return self.segments[chunk]


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    entries = [TreeEntry(b"%04d" % number, 0o100644, 0, os.urandom(1000)) for number in range(300)]
    return pack_entries(entries, chunk_bytes=CHUNK_BYTES)


@pytest.fixture
def path() -> Iterator[Path]:
    """Of a socket in a folder that is yet to be made."""
    folder = Path(tempfile.mkdtemp(prefix="sharing-"))
    yield folder / "run" / "daemon.sock"
    shutil.rmtree(folder)


def sealed(content: bytes) -> Segment:
    segment = Segment.create(len(content))
    segment.view[:] = content
    segment.seal()
    return segment


def member(node: str) -> Member:
    return Member(node, 0, TcpAddress("127.0.0.1", 7070), 1 << 30, bytes(16))


@asynccontextmanager
async def shared(
    path: Path, snapshot: Snapshot, node_cache: Shelf | FetchingShelf, members: Sequence[Member] = ()
) -> AsyncIterator[LocalService]:
    chunks = LocalService(cast(NodeCache, node_cache), snapshot)
    if members:
        chunks.change_members(members)
    make_private(path.parent)
    with bound(path) as listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(chunks.serve, listener)
            yield chunks
            nursery.cancel_scope.cancel()


async def asked(path: Path, *packets: bytes) -> list[bytes]:
    """What comes back for these packets, up to the end of the conversation or as many answers as packets."""
    answers = []
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection, trio.fail_after(30):
        await connection.connect(str(path))
        for packet in packets:
            try:
                await connection.send(packet)
                answers.append(await connection.recv(4096))
            except (BrokenPipeError, ConnectionResetError):  # closed before this packet was looked at
                answers.append(b"")
            if not answers[-1]:
                break
    return answers


async def test_segments_are_handed_out_and_the_rest_is_said(path: Path, packed: PackedDataset) -> None:
    content = os.urandom(50_000)
    node_cache = Shelf(c0=sealed(content), c1=None, c2=Damaged("chunk 2 is damaged"))
    async with shared(path, packed.snapshot, node_cache) as chunks:
        connect = lambda: NodeConnection(path, packed.snapshot.digest)  # noqa: E731  # runs in a thread
        connection = await trio.to_thread.run_sync(connect)
        found = await trio.to_thread.run_sync(connection.memory, 0, len(content), 100)
        assert found is not None and found[0 : len(found)] == content
        assert await trio.to_thread.run_sync(connection.memory, 1, len(content), 200) is None
        with pytest.raises(Damaged, match="chunk 2 is damaged"):
            await trio.to_thread.run_sync(connection.memory, 2, len(content), 300)
        with pytest.raises(InvalidInput, match="there is no chunk 3"):
            await trio.to_thread.run_sync(connection.memory, packed.snapshot.chunk_count, len(content), 1)
        assert node_cache.asked == [(0, 100), (1, 200), (2, 300)]
        assert (chunks.readers, chunks.shared_segments) == (1, 1)
        connection.close()
    assert found[0 : len(found)] == content  # the daemon is gone, the memory is not
    assert not path.exists()


async def test_the_members_of_the_job_are_told_when_they_are_new(path: Path, packed: PackedDataset) -> None:
    async with shared(path, packed.snapshot, Shelf(), [member("node-0")]) as chunks:
        client = NodeClient(path, packed.snapshot.digest)
        first = await trio.to_thread.run_sync(client.members)
        assert first is not None and first.members == (member("node-0"),)
        again = await trio.to_thread.run_sync(client.members, first.version)
        assert again == NodeMembers(first.version, None)
        many = [member(f"node-{number}") for number in range(1_000)]
        chunks.change_members(many)
        second = await trio.to_thread.run_sync(client.members, first.version)
        assert second is not None and second.members == tuple(many) and second.version > first.version
        assert chunks.shared_segments == 0
    async with shared(path, packed.snapshot, Shelf(), [member("node-0")]):
        of_next_master = await trio.to_thread.run_sync(client.members, second.version)
        assert of_next_master is not None and of_next_master.version > second.version
        client.close()


async def test_a_daemon_of_no_job_has_no_members(path: Path, packed: PackedDataset) -> None:
    async with shared(path, packed.snapshot, Shelf(c0=sealed(b"x"))):
        client = NodeClient(path, packed.snapshot.digest)
        assert await trio.to_thread.run_sync(client.members) is None
        assert await trio.to_thread.run_sync(client.memory, 0, 1, 1) is not None, "it is not avoided for that"
        client.close()


async def test_a_segment_that_is_closed_meanwhile_is_not_handed_out(
    path: Path, packed: PackedDataset
) -> None:
    segment = sealed(b"x")
    segment.close()
    async with shared(path, packed.snapshot, Shelf(c0=segment)):
        client = NodeClient(path, packed.snapshot.digest)
        assert await trio.to_thread.run_sync(client.memory, 0, 1, 1) is None
        client.close()


async def test_strangers_are_refused_and_others_served_on(path: Path, packed: PackedDataset) -> None:
    hello = encode(1, Hello(digest=packed.snapshot.digest))
    async with shared(path, packed.snapshot, Shelf(c0=sealed(b"x"))):
        for packet, error, message in (
            (encode(1, Hello()), InvalidInput, packed.snapshot.digest.hex()[:16]),
            (encode(1, Hello(digest=packed.snapshot.digest, version=2)), Unavailable, "version"),
            (encode(1, ChunkRequest(0, 1)), Unavailable, "greeting"),
        ):
            answer, end = await asked(path, packet, hello)
            refusal = decode(answer)[1]
            assert isinstance(refusal, Refusal) and message in refusal.message and end == b""
            assert isinstance(refusal.error, error) or error is Unavailable
        for garbage in (b"\x01", hello[:-1], hello + b"x", bytes(4096)):
            assert await asked(path, garbage) == [b""]
        welcome, refused, _ = await asked(
            path, hello, bytes([5, 0, 0, 0, 2, 0, 0, 0]), encode(3, ChunkRequest(0, 1))
        )
        assert decode(welcome) == (1, Welcome())
        refusal = decode(refused)[1]
        assert isinstance(refusal, Refusal) and "another version" in refusal.message


async def test_those_who_say_nothing_are_sent_away(
    path: Path, packed: PackedDataset, autojump_clock: trio.testing.MockClock
) -> None:
    async with shared(path, packed.snapshot, Shelf()) as chunks:
        with trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            await connection.connect(str(path))
            assert await connection.recv(10) == b""
        assert chunks.readers == 0


async def test_more_readers_than_allowed_are_told_so(
    path: Path, packed: PackedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "NODE_READERS_MAX", 1)
    hello = encode(1, Hello(digest=packed.snapshot.digest))
    async with shared(path, packed.snapshot, Shelf()):
        with trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
            await first.connect(str(path))
            await first.send(hello)
            assert decode(await first.recv(4096)) == (1, Welcome())
            (answer,) = await asked(path, hello)
            refusal = decode(answer)[1]
            assert isinstance(refusal, Refusal) and "which is the limit" in refusal.message


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_another_user_is_sent_away_even_where_the_folder_is_open(
    path: Path, packed: PackedDataset
) -> None:
    async with shared(path, packed.snapshot, Shelf()) as chunks:
        for place, mode in ((path.parent.parent, 0o755), (path.parent, 0o755), (path, 0o666)):
            place.chmod(mode)
        script = (
            "import socket, sys\n"
            "connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
            "connection.connect(sys.argv[1])\n"
            "sys.exit(connection.recv(10) != b'')\n"
        )
        ended = await trio.to_thread.run_sync(as_nobody, sys.executable, "-I", "-c", script, str(path))
        assert ended.returncode == 0, ended.stderr
        assert chunks.readers == 0


def test_the_socket_is_for_this_user_alone(path: Path) -> None:
    make_private(path.parent)
    with bound(path):
        assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(MountError, match="cannot share"), bound(Path("/proc/nowhere/daemon.sock")):
        pass


def test_what_a_killed_daemon_left_behind_is_replaced(path: Path) -> None:
    make_private(path.parent)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))
    with bound(path), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as reader:
        reader.connect(str(path))
    assert list(path.parent.iterdir()) == [], "and one that ends leaves nothing behind"


def test_a_long_path_is_no_obstacle(path: Path) -> None:
    deep = path.parent / ("x" * 120) / "daemon.sock"
    make_private(deep.parent)
    with bound(deep):
        assert deep.is_socket()


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return runtime_folder()


def read_all(data: Dataset) -> bool:
    return data.get_many(list(FILES)) == list(FILES.values())


async def test_the_library_reads_through_a_daemon_and_on_without_it(
    server: RunningServer, runtime: Path
) -> None:
    with Dataset(server.settings(), "letters") as data, Dataset(server.settings(), "letters") as other:
        snapshot = await trio.to_thread.run_sync(lambda: data.snapshot)
        node_cache = FetchingShelf(data.chunks)
        async with shared(socket_path(runtime, "letters", snapshot.digest), snapshot, node_cache) as chunks:
            for reader in (data, other):
                assert await trio.to_thread.run_sync(read_all, reader)
                figures = reader.statistics()
                assert (
                    figures["chunk_cache"]["shared_chunks"]
                    == snapshot.chunk_count
                    == len(node_cache.segments)
                )
                assert figures["chunk_cache"]["fetched_chunks"] == figures["chunk_cache"]["extent_bytes"] == 0
            assert chunks.shared_segments == 2 * snapshot.chunk_count
            with Dataset(server.settings(), "letters") as third:
                assert set((await trio.to_thread.run_sync(third.distances)).tolist()) == {HERE}
        assert await trio.to_thread.run_sync(read_all, data)  # mapped, whoever is gone
        with Dataset(server.settings(), "letters") as late:
            assert set((await trio.to_thread.run_sync(late.distances)).tolist()) == {FAR}
            assert await trio.to_thread.run_sync(read_all, late)
            assert (
                late.statistics()["chunk_cache"]["shared_chunks"]
                == 0
                < late.statistics()["chunk_cache"]["fetched_chunks"]
            )


async def test_what_has_another_length_comes_from_the_server(server: RunningServer, runtime: Path) -> None:
    with Dataset(server.settings(), "letters") as data:
        snapshot = await trio.to_thread.run_sync(lambda: data.snapshot)
        wrong = Shelf()
        for chunk in range(snapshot.chunk_count):
            wrong.chunks[chunk] = sealed(bytes(snapshot.chunk_payload_length(chunk) + 1))
        async with shared(socket_path(runtime, "letters", snapshot.digest), snapshot, wrong):
            assert await trio.to_thread.run_sync(read_all, data)
        assert [chunk for chunk, _ in wrong.asked] == list(range(snapshot.chunk_count))
        assert data.statistics()["chunk_cache"]["shared_chunks"] == 0


async def test_what_a_daemon_does_not_hold_comes_from_the_server(
    server: RunningServer, runtime: Path
) -> None:
    with Dataset(server.settings(), "letters") as data:
        snapshot = await trio.to_thread.run_sync(lambda: data.snapshot)
        async with shared(socket_path(runtime, "letters", snapshot.digest), snapshot, Shelf()):
            assert await trio.to_thread.run_sync(read_all, data)
        assert (
            data.statistics()["chunk_cache"]["shared_chunks"]
            == 0
            < data.statistics()["chunk_cache"]["fetched_chunks"]
        )
