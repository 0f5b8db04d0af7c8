"""A process that is attached to the job of its node: whom it asks for what, and what it does when somebody is gone."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from dieselfs.cluster.attachment import Attachment
from dieselfs.cluster.daemon import JobDaemon
from dieselfs.cluster.failure_detector import PEER_AVOIDED_MAX_S, PEER_RETURN_S
from dieselfs.cluster.holdings import FAR, HERE, NEAR, decoded, distances_in_job, encoded
from dieselfs.cluster.member import Member
from dieselfs.cluster.node_client import NodeClient
from dieselfs.cluster.peer_client import PeerClient
from dieselfs.errors import ProtocolError
from dieselfs.limits import JOB_MASTER_WAIT_S, NODE_AVOIDED_S, NODE_MEMBERS_INTERVAL_S
from dieselfs.net.address import TcpAddress
from dieselfs.sources.interface import fetch_extent
from tests.support.dataset import MemoryChunkSource, PackedDataset, TreeEntry, pack_entries
from tests.support.node_master import running_master
from tests.support.peer_nodes import CREDENTIAL, running_node

CHUNKS = 32
CHUNK_BYTES = 3000
PATIENCE_S = 60.0
ME = Member("me", 0, TcpAddress("127.0.0.1", 1), 1 << 30, bytes(16))


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    entries = [TreeEntry(b"%d" % n, 0o100644, 0, bytes([n]) * CHUNK_BYTES) for n in range(CHUNKS)]
    return pack_entries(entries, chunk_bytes=CHUNK_BYTES)


@pytest.fixture
def path() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="node-"))
    yield folder / "master.sock"
    shutil.rmtree(folder)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Keeper(JobDaemon):
    """Notes how long it may wait, and does something then."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.waits_s: list[float] = []
        self.is_closed = False
        self._then = then

    def ensure(self, wait_s: float) -> None:
        self.waits_s.append(wait_s)
        self._then()

    def close(self) -> None:
        self.is_closed = True


class Attached:
    """An attached process, and what it has from the server by itself."""

    def __init__(self, packed: PackedDataset, path: Path, keeper: Keeper | None = None) -> None:
        self.clock = Clock()
        self.packed = packed
        self.server = packed.source()
        self.to = Attachment(
            packed.snapshot,
            self.server,
            NodeClient(path, packed.snapshot.digest, self.clock),
            "me",
            CREDENTIAL,
            keeper,
            self.clock,
        )

    @property
    def fetched(self) -> int:
        """How often it had to go to the server itself."""
        return len(self.server.fetched_chunks) + len(self.server.fetched_extents)

    def reads_all(self) -> bool:
        return all(self.reads(chunk) for chunk in range(CHUNKS))

    def reads(self, chunk: int) -> bool:
        """Each chunk is one file."""
        (extent,) = self.packed.snapshot.extents(self.packed.snapshot.find(b"%d" % chunk))
        return fetch_extent(self.to.source, extent) == bytes([chunk]) * CHUNK_BYTES

    def own_chunks(self) -> list[int]:
        return sorted(self.to.own_among(range(CHUNKS)))

    def until(self, condition: Callable[[], bool]) -> None:
        """Use it now and then, for as long as its clock has to go on and it has something to do in the background."""
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end_s
            self.clock.now_s += NODE_MEMBERS_INTERVAL_S
            self.to.own_among((0,))
            time.sleep(0.001)


class Liar(MemoryChunkSource):
    def fetch_chunk(self, chunk: int) -> bytes:
        return b"\xff" * len(self.payloads[chunk])


def figures_add_up(figures: dict[str, int]) -> bool:
    ways = ("from_node", "from_peers", "from_servers", "failed")
    return figures["extents"] == sum(figures[way] for way in ways)


def test_each_node_is_asked_for_its_own_chunks(packed: PackedDataset, path: Path) -> None:
    with running_node(packed, "other") as other, running_master(packed, path, [ME, other.member]) as master:
        attached = Attached(packed, path)
        assert attached.reads_all()
        own = attached.own_chunks()
        assert 0 < len(own) < CHUNKS and attached.fetched == 0
        assert sorted(master.node_cache.chunks()) == own
        assert sorted([*master.node_cache.chunks(), *other.node_cache.chunks()]) == [*range(CHUNKS)]
        figures = attached.to.source.metrics.as_dict()["requested"]
        assert figures_add_up(figures) and figures["from_node"] == len(own)
        assert figures["from_peers"] == CHUNKS - len(own)
        attached.to.close()


def test_where_chunks_are_is_known_of_all_nodes(packed: PackedDataset, path: Path) -> None:
    """What has not been read is in no memory, and a node that is gone holds nothing."""
    with running_node(packed, "other") as other, running_node(packed, "me") as me:
        with running_master(packed, path, [me.member, other.member]):
            attached = Attached(packed, path)
            assert set(attached.to.distances()) == {FAR}
            assert all(attached.reads(chunk) for chunk in range(CHUNKS) if chunk % 2)
            peers, masters = [*other.node_cache.chunks()], [*me.node_cache.chunks()]
            assert peers and not masters
            found = attached.to.distances()
            assert np.flatnonzero(found == NEAR).tolist() == sorted(peers)
            attached.to.close()
        with closing(PeerClient(CREDENTIAL, packed.snapshot.digest)) as client:
            assert client.held(other.member) == encoded(CHUNKS, peers)
            gone = distances_in_job(CHUNKS, "other", [other.member, ME], client.held)
            assert np.flatnonzero(gone == HERE).tolist() == sorted(peers) and set(gone) == {HERE, FAR}
    with pytest.raises(ProtocolError, match="1 bytes of a bit for each of 32 chunks"):
        decoded(CHUNKS, b"1")


def test_what_is_mapped_is_of_the_own_node_alone(packed: PackedDataset, path: Path) -> None:
    with running_node(packed, "other") as other, running_master(packed, path, [ME, other.member]):
        attached = Attached(packed, path)
        own = set(attached.own_chunks())
        for chunk in range(CHUNKS):
            memory = attached.to.memory(chunk, CHUNK_BYTES, CHUNK_BYTES)
            assert (memory is not None) == (chunk in own)
            assert memory is None or memory[0:] == bytes(packed.source().payloads[chunk])
        attached.to.close()


def test_without_a_master_everything_comes_from_the_server(packed: PackedDataset, path: Path) -> None:
    keeper = Keeper()
    attached = Attached(packed, path, keeper)
    assert attached.reads_all() and attached.reads_all()
    figures = attached.to.source.metrics.as_dict()["requested"]
    assert figures_add_up(figures) and figures["from_servers"] == figures["extents"] == 2 * CHUNKS
    assert keeper.waits_s == [JOB_MASTER_WAIT_S]
    attached.until(lambda: len(keeper.waits_s) > 2)
    assert set(keeper.waits_s[1:]) == {0.0}  # later nobody waits
    assert not keeper.is_closed
    attached.to.close()
    assert keeper.is_closed


def test_a_master_that_appears_is_found(packed: PackedDataset, path: Path) -> None:
    attached = Attached(packed, path)
    assert attached.reads_all() and not attached.to.members
    with running_node(packed, "other") as other, running_master(packed, path, [ME, other.member]):
        attached.until(lambda: len(attached.to.members) == 2)
        fetched = attached.fetched
        assert attached.reads_all() and attached.fetched == fetched
        attached.to.close()


def test_a_master_that_is_made_at_the_first_use_is_asked_at_once(packed: PackedDataset, path: Path) -> None:
    with ExitStack() as stack:
        keeper = Keeper(lambda: stack.enter_context(running_master(packed, path, [ME])))
        attached = Attached(packed, path, keeper)
        assert attached.reads_all() and attached.fetched == 0 and keeper.waits_s == [JOB_MASTER_WAIT_S]
        attached.to.close()


def test_when_the_master_is_gone_only_its_chunks_come_from_the_server(
    packed: PackedDataset, path: Path
) -> None:
    with running_node(packed, "other") as other:
        with running_master(packed, path, [ME, other.member]):
            attached = Attached(packed, path)
            own = attached.own_chunks()
        assert attached.reads_all() and attached.fetched == len(own)
        assert sorted(other.node_cache.chunks()) == sorted(set(range(CHUNKS)) - set(own))
        with running_master(packed, path, [ME, other.member]) as again:
            attached.clock.now_s += NODE_AVOIDED_S
            assert attached.reads_all() and attached.fetched == len(own)
            assert sorted(again.node_cache.chunks()) == own
        attached.to.close()


def test_members_that_change_are_heard_of(packed: PackedDataset, path: Path) -> None:
    with running_node(packed, "other") as other, running_master(packed, path, [ME]) as master:
        attached = Attached(packed, path)
        assert len(attached.own_chunks()) == CHUNKS
        master.change([ME, other.member])
        attached.until(lambda: len(attached.own_chunks()) < CHUNKS)
        assert attached.reads_all() and attached.fetched == 0
        attached.to.close()


def test_a_peer_that_is_avoided_proves_itself_while_others_read(packed: PackedDataset, path: Path) -> None:
    with running_node(packed, "other") as other, running_master(packed, path, [ME, other.member]):
        attached = Attached(packed, path)
        own = attached.own_chunks()
        attached.to.peers.detector.sent_corrupt("other")
        assert attached.own_chunks() == [*range(CHUNKS)] != own  # this node has its chunks meanwhile
        attached.until(lambda: not attached.to.peers.detector.is_avoided("other"))
        attached.clock.now_s += PEER_RETURN_S
        assert attached.own_chunks() == own
        attached.to.close()


def test_peers_that_are_lost_together_are_not_waited_for_one_after_the_other(
    packed: PackedDataset, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [replace(ME, node=f"lost-{number}") for number in range(3)]
    together = Barrier(len(lost))
    asked: list[str] = []

    def ping(peers: PeerClient, peer: Member) -> bool:
        if peer.node not in asked:
            together.wait(PATIENCE_S)  # raises unless the others are asked meanwhile
            asked.append(peer.node)
        return False

    monkeypatch.setattr(PeerClient, "ping", ping)
    with running_master(packed, path, [ME, *lost]):
        attached = Attached(packed, path)
        attached.own_chunks()
        for member in lost:
            attached.to.peers.detector.sent_corrupt(member.node)
        attached.clock.now_s += PEER_AVOIDED_MAX_S
        attached.until(lambda: len(asked) == len(lost))
        attached.to.close()


def test_many_threads_begin_at_once(packed: PackedDataset, path: Path) -> None:
    with (
        running_node(packed, "other") as other,
        running_master(packed, path, [ME, other.member]),
        ThreadPoolExecutor(8) as threads,
    ):
        attached = Attached(packed, path)
        assert all(threads.map(attached.reads, [*range(CHUNKS)] * 8))
        assert attached.fetched == 0 and figures_add_up(attached.to.source.metrics.as_dict()["requested"])
        attached.to.close()


def test_a_forked_child_has_connections_of_its_own(packed: PackedDataset, path: Path) -> None:
    with running_node(packed, "other") as other, running_master(packed, path, [ME, other.member]):
        attached = Attached(packed, path)
        assert attached.reads_all()
        children = []
        for _ in range(2):
            child = os.fork()
            if not child:
                code = 1
                try:
                    is_right = attached.reads_all() and attached.fetched == 0
                    figures = attached.to.source.metrics.as_dict()["requested"]
                    code = 0 if is_right and figures["extents"] == CHUNKS and figures_add_up(figures) else 2
                finally:
                    os._exit(code)
            children.append(child)
        assert attached.reads_all()
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
        assert (
            attached.reads_all() and attached.to.source.metrics.numbers()["requested.extents"] == 3 * CHUNKS
        )
        attached.to.close()


def test_after_it_is_closed_reads_go_to_the_server(packed: PackedDataset, path: Path) -> None:
    with running_node(packed, "other") as other, running_master(packed, path, [ME, other.member]):
        attached = Attached(packed, path)
        assert attached.reads(0)
        attached.to.close()
        assert attached.reads_all() and attached.fetched == CHUNKS


def test_a_master_that_shares_other_bytes_is_not_believed(packed: PackedDataset, path: Path) -> None:
    with running_master(packed, path, [ME], Liar(packed.snapshot, packed.source().payloads)):
        attached = Attached(packed, path)
        assert attached.reads_all() and attached.fetched == CHUNKS
        attached.to.close()
