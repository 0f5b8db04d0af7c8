"""A node answers what it is asked, once it knows who asks: with what it has, and word of what it has not."""

from collections.abc import Iterator
from contextlib import closing

import pytest
import trio

from dieselfs.chunk.segment import Segment
from dieselfs.cluster.chunk_requests import ChunkAvailability, PeerRequest, encode_requests
from dieselfs.cluster.credential import JobCredential
from dieselfs.cluster.peer_client import PeerClient
from dieselfs.cluster.secret import secret_of_key
from dieselfs.errors import DieselfsError, InvalidInput, ProtocolError, Unavailable
from dieselfs.limits import KIB, MIB, PEER_ANSWER_BYTES_MAX
from dieselfs.net.auth import PEER_ROLE, Key
from dieselfs.rpc.connection import Connection, connected
from dieselfs.telemetry.registry import Report
from dieselfs.telemetry.series import Recorded
from dieselfs_client.cluster import peer_service
from dieselfs_client.memory.node_cache import NodeCache
from tests.support.dataset import MemoryChunkSource, PackedDataset, TreeEntry, pack_entries
from tests.support.peer_nodes import CREDENTIAL, SECRET, PeerNode, running_node

CHUNKS = 4
CHUNK_BYTES = 1 * MIB
EXTENT_BYTES = 4 * KIB


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    extents = CHUNK_BYTES // EXTENT_BYTES
    entries = [
        TreeEntry(b"%04d" % n, 0o100644, 0, bytes([n % 251]) * EXTENT_BYTES) for n in range(CHUNKS * extents)
    ]
    return pack_entries(entries, chunk_bytes=CHUNK_BYTES)


def connect(node: PeerNode, key: Key | None = None, credential: JobCredential = CREDENTIAL) -> Connection:
    address = node.member.address
    sock = connected(address, credential.client_tls(node.member))
    return Connection(sock, address, key or credential.key, role=PEER_ROLE)


@pytest.fixture
def node(packed: PackedDataset) -> Iterator[PeerNode]:
    with running_node(packed) as running:
        yield running


def call(
    connection: Connection, packed: PackedDataset, wanted: list[PeerRequest]
) -> tuple[list[ChunkAvailability], bytes]:
    asked = {"digest": packed.snapshot.digest, **encode_requests(wanted)}
    reply, bulk = connection.call("get_extents", asked, bulk_bytes_max=PEER_ANSWER_BYTES_MAX)
    return [ChunkAvailability(state) for state in reply.states], bytes(bulk or b"")


def test_whole_payloads_and_extents_come_in_the_order_they_were_asked_for(
    node: PeerNode, packed: PackedDataset
) -> None:
    snapshot, payloads = packed.snapshot, packed.source().payloads
    extents = [snapshot.extents(snapshot.find(b"%04d" % n))[0] for n in (300, 511, 256)]
    connection = connect(node)
    wanted = [
        PeerRequest.whole(snapshot, 3),
        PeerRequest.of_extents(1, extents),
        PeerRequest.whole(snapshot, 0),
    ]
    for _ in range(2):
        states, bulk = call(connection, packed, wanted)
        assert states == [ChunkAvailability.HERE] * 3
        expected = [payloads[1][extent.offset : extent.offset + extent.length] for extent in extents]
        assert bulk == payloads[3] + b"".join(expected) + payloads[0]
    served = node.service.metrics.as_dict()["served"]
    assert (served["requests"], served["chunks"], served["chunks_here"]) == (2, 6, 6)
    assert (
        node.node_cache.metrics.numbers()["node_cache.fetched_chunks"],
        node.node_cache.metrics.numbers()["node_cache.hits"],
    ) == (3, 3)
    connection.close()


def test_what_is_not_here_yet_is_told(packed: PackedDataset) -> None:
    with running_node(packed, answer_s=0.05) as node:
        connection = connect(node)
        while call(connection, packed, [PeerRequest.whole(packed.snapshot, 2)])[0] != [
            ChunkAvailability.HERE
        ]:
            pass
        node.gate.clear()
        wanted = [PeerRequest.whole(packed.snapshot, chunk) for chunk in (1, 2)]
        states, bulk = call(connection, packed, wanted)
        assert states == [ChunkAvailability.LATER, ChunkAvailability.HERE] and len(bulk) == CHUNK_BYTES
        node.gate.set()
        while states[0] == ChunkAvailability.LATER:
            states, bulk = call(connection, packed, wanted)
        assert (
            states == [ChunkAvailability.HERE, ChunkAvailability.HERE]
            and node.node_cache.metrics.numbers()["node_cache.fetched_chunks"] == 2
        )
        connection.close()


class Broken(MemoryChunkSource):
    def fetch_chunk(self, chunk: int) -> bytes:
        raise Unavailable("no server answers")


def test_a_peer_is_told_how_warm_the_shelf_is_and_may_have_it_warmed(packed: PackedDataset) -> None:
    with running_node(packed) as node:
        connection = connect(node)
        assert call(connection, packed, [PeerRequest.whole(packed.snapshot, 2)])[0] == [
            ChunkAvailability.HERE
        ]
        for is_to_warm in (False, True):
            reply, _ = connection.call(
                "get_warmth", {"digest": packed.snapshot.digest, "is_to_warm": is_to_warm}
            )
            assert (reply.pinned_bytes, reply.wanted_bytes) == (CHUNK_BYTES, CHUNKS * CHUNK_BYTES)
            assert node.times_warmed == is_to_warm
        with pytest.raises(InvalidInput, match="snapshot"):
            connection.call("get_warmth", {"digest": bytes(32), "is_to_warm": True})
        assert node.times_warmed == 1
        connection.close()


def test_a_peer_is_told_what_this_node_counts(packed: PackedDataset) -> None:
    with running_node(packed) as node, closing(PeerClient(CREDENTIAL, packed.snapshot.digest)) as client:
        report = Report.parse(client.report(node.member))
        assert report.about == {"node": "a peer"} and "dieselfs_served_requests_total" in {
            family["name"] for family in report.families
        }
        recorded = Recorded.parse(client.report(node.member, (0.0, 1e10)))
        assert len(recorded.times_s) == 1
    stranger = PeerClient(CREDENTIAL, bytes(32))
    with running_node(packed) as node, closing(stranger), pytest.raises(Unavailable, match="snapshot"):
        stranger.report(node.member)
    assert stranger.detector.suspected() == frozenset()  # such a failure does not count


def test_what_cannot_be_had_here_is_told(packed: PackedDataset) -> None:
    with running_node(packed, server=Broken(packed.snapshot, {})) as node:
        connection = connect(node)
        assert call(connection, packed, [PeerRequest.whole(packed.snapshot, 1)]) == (
            [ChunkAvailability.ELSEWHERE],
            b"",
        )
        connection.close()


def test_a_full_shelf_fetches_no_chunk_for_a_few_of_its_bytes(packed: PackedDataset) -> None:
    snapshot = packed.snapshot
    extents = [snapshot.extents(snapshot.find(b"%04d" % n))[0] for n in range(CHUNK_BYTES // EXTENT_BYTES)]
    with running_node(packed, room_bytes=0) as node:
        connection = connect(node)
        assert call(connection, packed, [PeerRequest.of_extents(0, extents[:1])])[0] == [
            ChunkAvailability.ELSEWHERE
        ]
        assert call(connection, packed, [PeerRequest.of_extents(0, extents[1:80])])[0] == [
            ChunkAvailability.HERE
        ]
        assert call(connection, packed, [PeerRequest.of_extents(0, extents[:1])])[0] == [
            ChunkAvailability.HERE
        ]
        connection.close()


def test_a_full_shelf_fetches_a_chunk_whole_whose_rest_others_want_and_once(packed: PackedDataset) -> None:
    snapshot = packed.snapshot
    extents = [snapshot.extents(snapshot.find(b"%04d" % n))[0] for n in range(CHUNK_BYTES // EXTENT_BYTES)]
    with running_node(packed, room_bytes=0) as node:
        connection = connect(node)
        for extent in extents[:8]:
            assert call(connection, packed, [PeerRequest.of_extents(0, [extent], is_shared_plan=True)])[
                0
            ] == [ChunkAvailability.HERE]
        assert node.node_cache.metrics.numbers()["node_cache.fetched_chunks"] == 1
        assert node.node_cache.policy.evictable_bytes == CHUNK_BYTES
        connection.close()


def test_one_request_fetches_no_more_than_so_many_chunks(
    packed: PackedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_service, "PEER_FETCHES_MAX", 3)
    with running_node(packed) as node:
        connection = connect(node)
        wanted = [PeerRequest.whole(packed.snapshot, chunk) for chunk in range(CHUNKS)]
        assert call(connection, packed, wanted)[0] == [ChunkAvailability.HERE] * 3 + [ChunkAvailability.LATER]
        assert node.node_cache.metrics.numbers()["node_cache.fetched_chunks"] == 3
        assert call(connection, packed, wanted)[0] == [ChunkAvailability.HERE] * CHUNKS
        connection.close()


def test_what_may_not_be_asked_is_refused_and_the_connection_lives_on(
    node: PeerNode, packed: PackedDataset
) -> None:
    connection = connect(node)
    wanted = encode_requests([PeerRequest.whole(packed.snapshot, 0)])
    with pytest.raises(InvalidInput, match="snapshot"):
        connection.call("get_extents", {"digest": bytes(32), **wanted})
    with pytest.raises(InvalidInput, match="chunk 99"):
        connection.call(
            "get_extents", {"digest": packed.snapshot.digest, **encode_requests([PeerRequest(99, 1)])}
        )
    connection.call("ping", {"digest": packed.snapshot.digest})
    served = node.service.metrics.as_dict()["served"]
    assert (served["requests"], served["refused"], served["chunks"]) == (3, 2, 0)
    connection.close()


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("get_payload", {"dataset": "packed", "chunk_id": bytes(16)}),
        ("hello", {"protocol_version": 1, "user": "", "key_id": "", "client_nonce": bytes(32)}),
    ],
)
def test_a_node_is_no_server(
    node: PeerNode, packed: PackedDataset, method: str, arguments: dict[str, object]
) -> None:
    connection = connect(node)
    with pytest.raises(DieselfsError) as caught:
        connection.call(method, arguments)
    assert isinstance(caught.value, Unavailable | ProtocolError)
    healthy = connect(node)
    healthy.call("ping", {"digest": packed.snapshot.digest})
    healthy.close()


def test_a_user_who_does_not_know_the_secret_gets_nothing(node: PeerNode, packed: PackedDataset) -> None:
    """Another user may read the dataset too: with the secret of that key, or with a certificate of nobody."""
    secret = secret_of_key(Key("eve", "k1", bytes(32)), packed.snapshot.dataset, "job")
    for credential in (JobCredential(secret), JobCredential(SECRET, has_tls=False)):
        with pytest.raises((OSError, DieselfsError)):
            tls = credential.client_tls(node.member) if credential.has_tls else None
            with closing(connected(node.member.address, tls)) as sock:
                Connection(sock, node.member.address, credential.key, role=PEER_ROLE)
    assert node.service.metrics.numbers()["served.requests"] == 0
    with closing(connect(node)) as connection:  # a process of the job is served
        connection.call("ping", {"digest": packed.snapshot.digest})


def test_whoever_is_not_of_the_job_is_not_let_in(node: PeerNode) -> None:
    ours = SECRET.peer_key()
    for key in (Key(ours.user, ours.key_id, bytes(32)), Key("other", ours.key_id, ours.secret)):
        with pytest.raises(DieselfsError, match="key"):
            connect(node, key)
    assert node.service.metrics.numbers()["served.requests"] == 0


def test_a_node_has_a_limit_of_its_own_for_those_who_ask(
    packed: PackedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_service, "PEER_CLIENTS_MAX", 2)
    with running_node(packed) as node:
        connections = [connect(node), connect(node)]
        with pytest.raises(Unavailable):
            connect(node)
        for connection in connections:
            connection.close()


async def test_a_chunk_is_worth_fetching_when_it_stays_or_much_of_it_is_wanted(packed: PackedDataset) -> None:
    async with trio.open_nursery() as nursery:
        node_cache = NodeCache(packed.snapshot, Segment.create, CHUNK_BYTES, 0, nursery)
        assert node_cache.is_worth_fetching(0, 1)
        node_cache = NodeCache(packed.snapshot, Segment.create, 0, 0, nursery)
        assert not node_cache.is_worth_fetching(0, 1)
        assert node_cache.is_worth_fetching(1, CHUNK_BYTES // 4)
        asked = 1
        while not node_cache.is_worth_fetching(0, 1):
            asked += 1
        assert asked < 5
