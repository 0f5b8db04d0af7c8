"""Peers that are dead, silent, false, or lie: each costs one bounded wait, and no wrong byte."""

import os
import socket
import threading
import time
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from dieselfs.cluster.chunk_requests import ChunkAvailability, PeerRequest, decode_requests
from dieselfs.cluster.credential import JobCredential
from dieselfs.cluster.failure_detector import PEER_AVOIDED_MAX_S
from dieselfs.cluster.member import Member
from dieselfs.cluster.peer_client import PeerClient
from dieselfs.cluster.peer_hedge import Overtaken
from dieselfs.cluster.pooled_source import PooledSource
from dieselfs.cluster.secret import JobSecret
from dieselfs.errors import ProtocolError, Unavailable
from dieselfs.net.address import TcpAddress
from dieselfs.net.auth import PEER_ROLE
from dieselfs.rpc.connection import Connection
from dieselfs.rpc.messages import decode_call, encode_reply, frame, thrift
from dieselfs.rpc.methods import PEER_METHODS
from dieselfs.rpc.serving.connection import ClientConnection
from dieselfs.rpc.serving.handshake import Identity
from dieselfs.rpc.serving.server import RpcServer, open_listeners
from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.interface import Slices, Wanted, fetch_extent
from dieselfs_client.cluster.peer_service import JobKeys
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries
from tests.support.peer_nodes import CREDENTIAL, SECRET, START_TIMEOUT_S, running_node

CHUNKS = 4
CHUNK_BYTES = 3000
SHORT_S = 0.2
"""A wait that is to end by its limit."""
LONG_S = 60.0
"""One that is not."""
SLOW_GREETING_BYTES = 3000


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    entries = [TreeEntry(b"%d" % n, 0o100644, 0, bytes([n]) * CHUNK_BYTES) for n in range(CHUNKS)]
    return pack_entries(entries, chunk_bytes=CHUNK_BYTES)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def peer_client(
    packed: PackedDataset, silence_s: float = LONG_S, secret: JobSecret = SECRET, clock: Clock | None = None
) -> PeerClient:
    return PeerClient(
        JobCredential(secret),
        packed.snapshot.digest,
        connect_timeout_s=silence_s,
        silence_s=silence_s,
        call_timeout_s=LONG_S,
        clock=clock or Clock(),
    )


def at_port(port: int, fingerprint: bytes = b"f" * 32) -> Member:
    return Member("liar", 0, TcpAddress("127.0.0.1", port), 1 << 30, bytes(16), fingerprint)


def ask(peers: PeerClient, peer: Member, snapshot: Snapshot, chunk: int = 0) -> bytes:
    came: dict[int, memoryview] = {}
    (state,) = peers.extents(peer, [PeerRequest.whole(snapshot, chunk)], into(came))
    assert state == ChunkAvailability.HERE
    return bytes(came[chunk])


def into(came: dict[int, memoryview]) -> Callable[[Sequence[PeerRequest], memoryview], Iterator[memoryview]]:
    """Receive content into a dictionary, by chunk."""

    def receive(requests: Sequence[PeerRequest], content: memoryview) -> Iterator[memoryview]:
        yield content
        (request,) = requests
        came[request.chunk] = content

    return receive


# -- peers that do not answer --------------------------------------------------------------------------------


@contextmanager
def silent_port(accepts: int) -> Iterator[int]:
    """A port where connections come about, and nobody says anything."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(accepts)
        yield int(listening.getsockname()[1])


def test_a_dead_port_is_avoided(packed: PackedDataset) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        peer = at_port(unused.getsockname()[1])
        peers = peer_client(packed)
        for _ in range(3):
            with pytest.raises(Unavailable, match="liar"):
                ask(peers, peer, packed.snapshot)
        assert peers.metrics.numbers()["peers.failures"] == peers.metrics.numbers()["peers.requests"] == 1
        assert peers.detector.is_avoided("liar") and peers.detector.suspected() == {"liar"}
        peers.close()


def test_a_silent_peer_costs_one_wait_however_many_want_something(packed: PackedDataset) -> None:
    with silent_port(accepts=64) as port:
        peers = peer_client(packed, silence_s=SHORT_S)

        def fails(_: int) -> bool:
            with pytest.raises(Unavailable):
                ask(peers, at_port(port), packed.snapshot)
            return True

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(fails, range(24)))
        assert peers.metrics.numbers()["peers.requests"] == 1
        peers.close()


def test_a_stranger_that_answers_byte_by_byte_is_not_waited_for(packed: PackedDataset) -> None:
    with socket.socket() as listening, ThreadPoolExecutor(1) as threads:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1)

        def answer() -> int:
            """A greeting that would take a minute; how much of it was sent."""
            greeting, sent = frame(bytes(SLOW_GREETING_BYTES)), 0
            connection, _ = listening.accept()
            with connection, suppress(ConnectionError):
                while sent < len(greeting):
                    sent += connection.send(greeting[sent : sent + 1])
                    time.sleep(LONG_S / len(greeting))
            return sent

        sent = threads.submit(answer)
        peers = peer_client(packed, silence_s=SHORT_S)
        fail(peers, at_port(listening.getsockname()[1]), packed.snapshot)
        assert peers.detector.is_avoided("liar") and sent.result(LONG_S) < SLOW_GREETING_BYTES
        peers.close()


def test_a_peer_with_another_secret_gives_and_gets_nothing(packed: PackedDataset) -> None:
    with running_node(packed, "b") as b:
        peers = peer_client(packed, secret=JobSecret(bytes(32)))
        with pytest.raises(Unavailable, match="certificate"):
            ask(peers, b.member, packed.snapshot)
        assert b.service.metrics.numbers()["served.requests"] == 0 and peers.detector.is_avoided("b")
        peers.close()


def test_a_peer_that_reads_another_snapshot_gives_nothing(packed: PackedDataset) -> None:
    other = pack_entries([TreeEntry(b"0", 0o100644, 0, bytes(CHUNK_BYTES))], chunk_bytes=CHUNK_BYTES)
    with running_node(other, "b") as b:
        peers = peer_client(packed)
        with pytest.raises(Unavailable, match="snapshot"):
            ask(peers, b.member, packed.snapshot)
        assert (
            b.service.metrics.numbers()["served.refused"],
            b.service.metrics.numbers()["served.chunks"],
        ) == (1, 0)
        assert not peers.ping(b.member)
        peers.close()


def test_a_peer_proves_itself_and_is_asked_again(packed: PackedDataset) -> None:
    with running_node(packed, "b") as b:
        clock = Clock()
        peers = peer_client(packed, clock=clock)
        peers.keep([b.member])
        peers.detector.sent_corrupt("b")
        with pytest.raises(Unavailable, match="avoided"):
            ask(peers, b.member, packed.snapshot)
        assert not peers.detector.due()
        clock.now_s += PEER_AVOIDED_MAX_S

        end_s = time.monotonic() + START_TIMEOUT_S
        while peers.detector.is_avoided("b"):
            assert time.monotonic() < end_s
            peers.probe()
            time.sleep(0.01)
        assert ask(peers, b.member, packed.snapshot) == bytes(CHUNK_BYTES)
        assert peers.detector.suspected() == {"b"}  # only for some of its chunks yet
        peers.close()


def test_a_new_incarnation_may_prove_itself_at_once(packed: PackedDataset) -> None:
    peers = peer_client(packed)
    peers.keep([at_port(1)])
    peers.detector.sent_corrupt("liar")
    peers.keep([at_port(1)])
    assert not peers.detector.due()
    peers.keep([at_port(2)])
    assert peers.detector.due() == ["liar"]
    peers.close()


def test_what_was_held_against_a_node_that_has_left_is_forgotten(packed: PackedDataset) -> None:
    peers = peer_client(packed)
    me = replace(at_port(1), node="me")
    peers.keep([me, at_port(2)])
    peers.detector.sent_corrupt("liar")
    peers.keep([me])
    assert not peers.detector.suspected()
    peers.was_slow(at_port(2))  # by a thread that still knows it
    with pytest.raises(Unavailable, match="has left"):
        ask(peers, at_port(2), packed.snapshot)
    assert not peers.detector.suspected()
    peers.close()


def test_an_old_incarnation_that_fails_is_not_held_against_the_new_one(packed: PackedDataset) -> None:
    with silent_port(accepts=8) as port, ThreadPoolExecutor(1) as threads:
        old, new = at_port(port), replace(at_port(port), incarnation=bytes(15) + b"1")
        peers = peer_client(packed, silence_s=1.0)
        peers.keep([old])
        asking = threads.submit(ask, peers, old, packed.snapshot)
        while not peers.metrics.numbers()["peers.requests"]:
            time.sleep(0.001)
        peers.keep([new])
        assert isinstance(asking.exception(), Unavailable)
        assert not peers.detector.is_avoided("liar")
        peers.close()


def test_who_has_no_time_left_does_not_wait_for_his_turn(packed: PackedDataset) -> None:
    with silent_port(accepts=8) as port, ThreadPoolExecutor(1) as threads:
        peers = peer_client(packed, silence_s=1.0)
        asking = threads.submit(ask, peers, at_port(port), packed.snapshot)
        while not peers.metrics.numbers()["peers.requests"]:
            time.sleep(0.001)
        with pytest.raises(Unavailable, match="busy"):
            peers.extents(
                at_port(port),
                [PeerRequest.whole(packed.snapshot, 0)],
                into({}),
                queue_timeout_s=0.0,
            )
        assert not peers.detector.is_avoided("liar")  # that is nothing against it
        assert isinstance(asking.exception(), Unavailable)
        peers.close()


def test_those_of_whom_nothing_was_heard_are_looked_at_when_a_peer_fails(packed: PackedDataset) -> None:
    clock = Clock()
    with running_node(packed, "b") as b, silent_port(8) as port:
        peers = peer_client(packed, silence_s=SHORT_S, clock=clock)
        ask(peers, b.member, packed.snapshot)
        assert peers.silent() == []  # nobody has failed
        clock.now_s += 2 * SHORT_S
        fail(peers, at_port(port), packed.snapshot)
        assert peers.silent() == ["b"] and peers.silent() == []
        assert peers.ping(b.member) and not peers.detector.suspected() - {"liar"}
        peers.keep([b.member, at_port(port)])  # it has begun anew
        assert peers.detector.due() == ["liar"] and not peers.ping(at_port(port))
        assert peers.silent() == []  # that it has failed is known
        peers.close()


def fail(peers: PeerClient, peer: Member, snapshot: Snapshot) -> None:
    with pytest.raises(Unavailable):
        ask(peers, peer, snapshot)


# -- connections ---------------------------------------------------------------------------------------------


def established(port: int) -> int:
    """Connections of this process to a port of this machine; other tests may have the same port at another address."""
    own = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            own.add(os.readlink(descriptor))
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(
        line[2].endswith(f":{port:04X}") and line[3] == "01" and f"socket:[{line[9]}]" in own
        for line in lines
    )


@pytest.mark.parametrize("each", [1, 3])
def test_p_nodes_have_p_times_n_minus_1_connections_at_most(packed: PackedDataset, each: int) -> None:
    """`each` is the number of processes that each node has of the job."""
    with (
        running_node(packed, "a") as a,
        running_node(packed, "b") as b,
        running_node(packed, "c") as c,
        ThreadPoolExecutor(8) as threads,
    ):
        nodes = [a.member, b.member, c.member]
        clients = {
            node.node: [PeerClient(CREDENTIAL, packed.snapshot.digest) for _ in range(each)] for node in nodes
        }
        jobs = [
            threads.submit(ask, peers, other, packed.snapshot, chunk)
            for chunk in [*range(CHUNKS)] * 10
            for me in nodes
            for peers in clients[me.node]
            for other in nodes
            if me != other
        ]
        assert all(len(job.result()) == CHUNK_BYTES for job in jobs)
        connections = sum(established(node.address.port) for node in nodes)
        p, n = len(nodes), len(nodes) * each
        assert p * (p - 1) <= connections <= p * (n - 1)
        for peers in chain.from_iterable(clients.values()):
            peers.close()


def test_requests_that_a_server_overtakes_leave_one_connection_at_most(packed: PackedDataset) -> None:
    def overtake(connection: Connection) -> None:
        raise Overtaken([])

    with running_node(packed, "b") as b, ThreadPoolExecutor(8) as threads:
        peers = peer_client(packed)

        def connections_after(number: int) -> int:
            if number % 2:
                with pytest.raises(Overtaken):
                    request = PeerRequest.whole(packed.snapshot, 0)
                    peers.extents(b.member, [request], into({}), asked=overtake)
            else:
                assert len(ask(peers, b.member, packed.snapshot)) == CHUNK_BYTES
            return established(b.member.address.port)

        assert set(threads.map(connections_after, range(40))) <= {0, 1}
        peers.close()


# -- peers that answer, and lie ------------------------------------------------------------------------------


class Liar:
    """Answers as a peer does that knows the secret, with what `answer` makes of it."""

    def __init__(self, packed: PackedDataset, reply: Callable[[list[bytes]], tuple[Any, bytes]]) -> None:
        self.keys = JobKeys(SECRET.peer_key())
        self._packed = packed
        self._reply = reply

    def logged_in(self, connection: ClientConnection, caller: Identity) -> None:
        """Nothing to note."""

    def refused(self, connection: ClientConnection, reason: str) -> None:
        """Nothing to note."""

    async def answer(self, connection: ClientConnection, caller: Identity, message: bytes) -> None:
        method, sequence, arguments = decode_call(message, PEER_METHODS)
        source = self._packed.source()
        asked = decode_requests(arguments, self._packed.snapshot)
        right = [b"".join(each.of(memoryview(source.payloads[each.chunk]))) for each in asked]
        reply, bulk = self._reply(right)
        await connection.send(
            reply if isinstance(reply, bytes) else encode_reply(method, sequence, reply), [bulk]
        )
        if len(bulk) < getattr(reply, "bulk_length", 0):
            raise ProtocolError("that was all")


@contextmanager
def lying_peer(packed: PackedDataset, reply: Callable[[list[bytes]], tuple[Any, bytes]]) -> Iterator[Member]:
    credential = JobCredential(SECRET)
    ports: list[int] = []
    stop: list[Callable[[], None]] = []
    listens = threading.Event()

    async def main() -> None:
        token = trio.lowlevel.current_trio_token()
        async with open_listeners(TcpAddress("127.0.0.1", 0)) as (listener,):
            ports.append(listener.socket.getsockname()[1])
            with trio.CancelScope() as scope:
                stop.append(lambda: token.run_sync_soon(scope.cancel))
                listens.set()
                server = RpcServer(Liar(packed, reply), credential.server_tls, role=PEER_ROLE)
                await server.serve(listener, is_encrypted=True)

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    assert listens.wait(START_TIMEOUT_S)
    try:
        yield at_port(ports[0], credential.fingerprint)
    finally:
        stop[0]()
        thread.join(START_TIMEOUT_S)


def extents(states: bytes, length_bytes: int) -> Any:
    return thrift.Extents(states=states, bulk_length=length_bytes)


HERE, LATER = bytes([ChunkAvailability.HERE]), bytes([ChunkAvailability.LATER])
LIES: dict[str, Callable[[list[bytes]], tuple[Any, bytes]]] = {
    "another chunk": lambda right: (extents(HERE, len(right[0])), bytes([9]) * len(right[0])),
    "one bit": lambda right: (extents(HERE, len(right[0])), right[0][:-1] + bytes([right[0][-1] ^ 1])),
    "too short": lambda right: (extents(HERE, len(right[0]) - 1), right[0][:-1]),
    "too long": lambda right: (extents(HERE, 1 << 60), right[0]),
    "negative": lambda right: (extents(HERE, -1), b""),
    "states of nothing": lambda right: (extents(b"", 0), b""),
    "states of more": lambda right: (extents(HERE * 2, len(right[0])), right[0]),
    "an unknown state": lambda right: (extents(b"\x09", 0), b""),
    "bytes of what is not there": lambda right: (extents(LATER, len(right[0])), right[0]),
    "garbage": lambda right: (b"\xff" * 16, b""),
    "another method's reply": lambda right: (encode_reply("ping", 3, None), b""),
}


@contextmanager
def pooled(packed: PackedDataset, peers: PeerClient, peer: Member) -> Iterator[PooledSource]:
    """A node whose chunks are all owned by one peer."""
    with running_node(packed, "me") as me:
        source = PooledSource(packed.snapshot, lambda _: peer, me.own, peers, packed.source())
        yield source
        source.close()
        peers.close()


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_lie_is_found_out_counted_and_avoided(packed: PackedDataset, lie: str, is_whole: bool) -> None:
    peers = peer_client(packed)
    with lying_peer(packed, LIES[lie]) as peer, pooled(packed, peers, peer) as source:
        (extent,) = packed.snapshot.extents(packed.snapshot.find(b"1"))
        for _ in range(3):
            content = source.fetch_chunk(1) if is_whole else fetch_extent(source, extent)
            assert bytes(content) == bytes([1]) * CHUNK_BYTES
        figures = peers.metrics.as_dict()["peers"]
        assert (figures["requests"], figures["failures"], figures["corrupt"]) == (1, 1, 1)
        assert peers.detector.is_avoided("liar") and not peers.detector.due()
        assert source.metrics.numbers()["requested.from_servers"] == 3


def test_one_lie_among_many_extents_brings_no_wrong_byte(packed: PackedDataset) -> None:
    def one_wrong(right: list[bytes]) -> tuple[Any, bytes]:
        return extents(HERE * len(right), sum(map(len, right))), b"".join(
            [*right[:-1], bytes(len(right[-1]))]
        )

    peers = peer_client(packed)
    with lying_peer(packed, one_wrong) as peer, pooled(packed, peers, peer) as source:
        wanted = {n: packed.snapshot.extents(packed.snapshot.find(b"%d" % n)) for n in range(CHUNKS)}
        brought = ChainMap(*source.fetch_many(Wanted(wanted)))
        for n, slices in brought.items():
            assert isinstance(slices, Slices) and [*map(bytes, slices)] == [bytes([n]) * CHUNK_BYTES]
        assert len(brought) == CHUNKS and peers.detector.is_avoided("liar")
        assert peers.metrics.as_dict()["peers"]["corrupt"] == 1


def test_a_peer_that_hangs_up_in_the_middle_costs_no_read(packed: PackedDataset) -> None:
    def half(right: list[bytes]) -> tuple[Any, bytes]:
        return extents(HERE, len(right[0])), right[0][:100]

    peers = peer_client(packed)
    with lying_peer(packed, half) as peer, pooled(packed, peers, peer) as source:
        assert bytes(source.fetch_chunk(1)) == bytes([1]) * CHUNK_BYTES
        figures = peers.metrics.as_dict()["peers"]
        assert (figures["failures"], figures["corrupt"]) == (1, 0)


def test_a_silent_peer_costs_no_read(packed: PackedDataset) -> None:
    peers = peer_client(packed, SHORT_S)
    with silent_port(8) as port, pooled(packed, peers, at_port(port)) as source:
        wanted = {n: packed.snapshot.extents(packed.snapshot.find(b"%d" % n)) for n in range(CHUNKS)}
        brought = ChainMap(*source.fetch_many(Wanted(wanted)))
        for n, slices in brought.items():
            assert isinstance(slices, Slices) and [*map(bytes, slices)] == [bytes([n]) * CHUNK_BYTES]
        assert len(brought) == CHUNKS
        assert peers.metrics.numbers()["peers.requests"] == 1


def test_what_has_a_destination_goes_there_and_nowhere_else(packed: PackedDataset) -> None:
    place = memoryview(bytearray(CHUNK_BYTES))
    wanted = [
        PeerRequest.whole(packed.snapshot, 0),
        PeerRequest.whole(packed.snapshot, 1, place),
        PeerRequest.of_extents(2, packed.snapshot.extents(packed.snapshot.find(b"2"))),
    ]
    came: dict[int, memoryview] = {}
    peers = peer_client(packed)
    with running_node(packed) as node:
        states = peers.extents(node.member, wanted, into(came))
        peers.close()
    assert states == [ChunkAvailability.HERE] * 3 and came[1] is place
    assert [*map(bytes, came.values())] == [bytes([chunk]) * CHUNK_BYTES for chunk in range(3)]


def test_extents_come_together_and_whole_chunks_alone(packed: PackedDataset) -> None:
    def of(chunk: int) -> PeerRequest:
        return PeerRequest.of_extents(chunk, packed.snapshot.extents(packed.snapshot.find(b"%d" % chunk)))

    came: list[tuple[list[int], bytes]] = []

    def receive(requests: Sequence[PeerRequest], content: memoryview) -> Iterator[memoryview]:
        yield content
        came.append(([request.chunk for request in requests], bytes(content)))

    peers = peer_client(packed)
    with running_node(packed) as node:
        peers.extents(node.member, [of(1), of(0), PeerRequest.whole(packed.snapshot, 2), of(3)], receive)
        peers.close()
    joined = [b"".join(bytes([chunk]) * CHUNK_BYTES for chunk in chunks) for chunks in ([1, 0], [2], [3])]
    assert came == [([1, 0], joined[0]), ([2], joined[1]), ([3], joined[2])]


def test_what_comes_together_is_handed_on_by_the_chunk(packed: PackedDataset) -> None:
    """The page cache of a mount has room for the bytes of one chunk."""
    peers = peer_client(packed)
    with running_node(packed) as node, pooled(packed, peers, node.member) as source:
        wanted = {n: packed.snapshot.extents(packed.snapshot.find(b"%d" % n)) for n in range(CHUNKS)}
        brought = ChainMap(*source.fetch_many(Wanted(wanted)))
        peers.close()
    contents = {n: bytes(slices.content) for n, slices in brought.items() if isinstance(slices, Slices)}
    assert contents == {n: bytes([n]) * CHUNK_BYTES for n in range(CHUNKS)}


def test_received_bytes_are_counted(packed: PackedDataset) -> None:
    with running_node(packed, "b") as b:
        peers = peer_client(packed)
        got = np.frombuffer(
            b"".join(ask(peers, b.member, packed.snapshot, n) for n in range(CHUNKS)), np.uint8
        )
        assert got.sum() == CHUNK_BYTES * sum(range(CHUNKS))
        figures = peers.metrics.as_dict()["peers"]
        assert (figures["requests"], figures["received_bytes"]) == (CHUNKS, CHUNKS * CHUNK_BYTES)
        assert b.service.metrics.numbers()["served.bytes"] == CHUNKS * CHUNK_BYTES
        peers.close()
