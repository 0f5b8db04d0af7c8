"""Nodes that ask each other, over real sockets: what comes is right, and comes from where it should."""

import time
from collections import ChainMap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, Event

import pytest

from dieselfs.cluster.member import Member
from dieselfs.cluster.peer_client import PeerClient
from dieselfs.cluster.pooled_source import PEER_RETRY_MAX_S, PooledSource
from dieselfs.errors import Damaged, Unavailable
from dieselfs.limits import PEER_ANSWER_S
from dieselfs.rpc.endpoints import OVERTAKEN_MAX
from dieselfs.snapshot.reader import ExtentRef
from dieselfs.sources.interface import ChunkResult, Slices, Source, Wanted, fetch_extent
from tests.support.dataset import MemoryChunkSource, PackedDataset, TreeEntry, pack_entries
from tests.support.peer_nodes import CREDENTIAL, PeerNode, running_node

CHUNKS = 8
FILES_EACH = 5
FILE_BYTES = 1000
STANDS_STILL_S = 60.0


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    entries = [
        TreeEntry(b"%03d" % n, 0o100644, 0, bytes([n, n // 2]) * (FILE_BYTES // 2))
        for n in range(CHUNKS * FILES_EACH)
    ]
    return pack_entries(entries, chunk_bytes=FILES_EACH * FILE_BYTES)


def extents(packed: PackedDataset, chunk: int) -> list[ExtentRef]:
    found = [packed.snapshot.extents(node)[0] for node in packed.snapshot.walk()]
    return [extent for extent in found if extent.chunk == chunk]


def contents(brought: ChunkResult) -> list[bytes]:
    assert isinstance(brought, Slices)
    return [*map(bytes, brought)]


def payload(packed: PackedDataset, chunk: int) -> bytes:
    return bytes(packed.source().payloads[chunk])


def client(packed: PackedDataset) -> PeerClient:
    return PeerClient(
        CREDENTIAL, packed.snapshot.digest, connect_timeout_s=20, silence_s=20, call_timeout_s=40
    )


@contextmanager
def pooled(
    packed: PackedDataset,
    me: PeerNode,
    owner: Callable[[int], Member | None],
    server: Source,
    peers: PeerClient | None = None,
    patience_s: float = 20.0,
) -> Iterator[PooledSource]:
    peers = peers or client(packed)
    source = PooledSource(packed.snapshot, owner, me.own, peers, server, patience_s)
    try:
        yield source
        figures = source.metrics.as_dict()["requested"]
        assert figures["extents"] == sum(
            figures[way] for way in ("from_node", "from_peers", "from_servers", "failed")
        )
    finally:
        source.close()
        peers.close()


def test_every_chunk_comes_from_its_owner_and_leaves_the_server_once(packed: PackedDataset) -> None:
    server, direct = packed.source(), packed.source()
    with running_node(packed, "a", server=server) as a, running_node(packed, "b", server=server) as b:

        def owner(of: PeerNode) -> Callable[[int], Member | None]:
            return lambda chunk: (
                None if (chunk % 2 == 0) == (of is a) else (a if chunk % 2 == 0 else b).member
            )

        with pooled(packed, a, owner(a), direct) as of_a, pooled(packed, b, owner(b), direct) as of_b:
            with ThreadPoolExecutor(8) as threads:
                for source in (of_a, of_b):
                    payloads = threads.map(source.fetch_chunk, [*range(CHUNKS)] * 3)
                    assert [*map(bytes, payloads)] == [payload(packed, n) for n in range(CHUNKS)] * 3
            for source in (of_a, of_b):
                figures = source.metrics.as_dict()["requested"]
                assert figures["from_node"] == figures["from_peers"] == CHUNKS * 3 // 2
    assert sorted(server.fetched_chunks) == [*range(CHUNKS)] and not direct.fetched_chunks


def test_a_batch_is_one_request_to_each_owner(packed: PackedDataset) -> None:
    direct = packed.source()
    with (
        running_node(packed, "a") as a,
        running_node(packed, "b") as b,
        running_node(packed, "c") as c,
    ):
        owners = [None, b.member, c.member]
        wanted = {chunk: extents(packed, chunk)[1:4] for chunk in range(CHUNKS)}
        with pooled(packed, a, lambda chunk: owners[chunk % 3], direct) as source:
            brought = ChainMap(*source.fetch_many(Wanted({**wanted, 0: []})))
            assert (
                b.service.metrics.numbers()["served.requests"]
                == c.service.metrics.numbers()["served.requests"]
                == 1
            )
            assert a.service.metrics.numbers()["served.requests"] == 0
        for chunk in range(1, CHUNKS):
            whole = payload(packed, chunk)
            assert contents(brought[chunk]) == [whole[e.offset : e.offset + e.length] for e in wanted[chunk]]
        assert contents(brought[0]) == []
    assert not direct.fetched_chunks and not direct.fetched_extents


def test_what_is_here_is_not_held_back_by_what_is_not(packed: PackedDataset) -> None:
    wanted = {chunk: extents(packed, chunk)[:2] for chunk in range(CHUNKS)}
    with (
        running_node(packed, "a") as a,
        running_node(packed, "b") as b,
        running_node(packed, "c") as c,
    ):
        owners = [None, b.member, c.member]
        b.gate.clear()
        with pooled(packed, a, lambda chunk: owners[chunk % 3], packed.source()) as source:
            arriving = source.fetch_many(Wanted(wanted))
            others = {chunk for chunk in wanted if chunk % 3 != 1}
            first: set[int] = set()
            while first != others:
                first |= set(next(arriving))
            b.gate.set()
            assert set(ChainMap(*arriving)) == set(wanted) - others


def test_whoever_lets_go_of_what_arrives_leaves_a_source_that_goes_on(packed: PackedDataset) -> None:
    wanted = {chunk: extents(packed, chunk) for chunk in range(CHUNKS)}
    with (
        running_node(packed, "a") as a,
        running_node(packed, "b") as b,
        pooled(packed, a, lambda chunk: b.member if chunk % 2 else None, packed.source()) as source,
    ):
        for _ in range(4):
            arriving = source.fetch_many(Wanted(wanted))
            next(arriving)
            del arriving
        brought = ChainMap(*source.fetch_many(Wanted(wanted)))
        assert all(len(contents(brought[chunk])) == FILES_EACH for chunk in wanted)


def test_which_chunks_are_asked_for_together(packed: PackedDataset) -> None:
    with (
        running_node(packed, "a") as a,
        running_node(packed, "b") as b,
        pooled(packed, a, lambda chunk: b.member if chunk % 2 else None, packed.source()) as source,
    ):
        assert source.together([5, 2, 3, 0]) == [[5, 3], [2, 0]]


def test_single_extents_come_from_their_owner(packed: PackedDataset) -> None:
    direct = packed.source()
    with (
        running_node(packed, "a") as a,
        running_node(packed, "b") as b,
        pooled(packed, a, lambda chunk: b.member, direct) as source,
    ):
        for extent in extents(packed, 3):
            assert len(fetch_extent(source, extent)) == extent.length
        assert source.metrics.numbers()["requested.peer_bytes"] == FILES_EACH * FILE_BYTES
    assert not direct.fetched_extents


@pytest.mark.parametrize("from_where", ["shelf", "peer", "server"])
def test_a_chunk_comes_into_memory_that_is_given(packed: PackedDataset, from_where: str) -> None:
    direct = packed.source()
    with running_node(packed, "a") as a, running_node(packed, "b") as b:
        peers = client(packed)
        if from_where == "server":
            peers.detector.sent_corrupt("b")
        owner = None if from_where == "shelf" else b.member
        with pooled(packed, a, lambda _: owner, direct, peers) as source:
            place = bytearray(len(payload(packed, 1)))
            source.fetch_chunk_into(1, memoryview(place))
            assert place == payload(packed, 1)
    assert direct.fetched_chunks == ([1] if from_where == "server" else [])


def test_a_peer_that_still_fetches_is_asked_again(packed: PackedDataset) -> None:
    with running_node(packed, "a") as a, running_node(packed, "b", answer_s=0.01) as b:
        b.gate.clear()
        asked = []

        def pause(_: float) -> None:
            asked.append(b.service.metrics.numbers()["served.chunks_later"])
            if len(asked) == 3:
                b.gate.set()

        peers = client(packed)
        source = PooledSource(packed.snapshot, lambda _: b.member, a.own, peers, packed.source(), pause=pause)
        assert bytes(source.fetch_chunk(2)) == payload(packed, 2)
        assert asked[:3] == [1, 2, 3] and source.metrics.numbers()["requested.from_peers"] == 1
        source.close()
        peers.close()


def test_what_is_there_does_not_wait_behind_others_loads(packed: PackedDataset) -> None:
    there, cold = 0, [*range(1, CHUNKS)] * 2
    with (
        running_node(packed, "a") as a,
        running_node(packed, "b", answer_s=0.25) as b,
        pooled(packed, a, lambda _: b.member, packed.source(), patience_s=60.0) as source,
        ThreadPoolExecutor(len(cold)) as threads,
    ):
        source.fetch_chunk(there)
        b.gate.clear()
        before = b.service.metrics.numbers()["served.chunks_later"]
        waiting = [threads.submit(source.fetch_chunk, chunk) for chunk in cold]
        while b.service.metrics.numbers()["served.chunks_later"] < before + len(cold) + 1:
            time.sleep(0.01)
        requests = b.service.metrics.numbers()["served.requests"]
        assert bytes(source.fetch_chunk(there)) == payload(packed, there)
        assert b.service.metrics.numbers()["served.requests"] - requests < len(cold) / 2, (
            "no more than was under way"
        )
        assert not any(each.done() for each in waiting)
        b.gate.set()
        assert [bytes(each.result()) for each in waiting] == [payload(packed, chunk) for chunk in cold]


class Together(MemoryChunkSource):
    """Brings nothing before so many chunks are asked for at the same time."""

    def __init__(self, packed: PackedDataset, count: int) -> None:
        super().__init__(packed.snapshot, packed.source().payloads)
        self.barrier = Barrier(count)

    def fetch_chunk(self, chunk: int) -> bytes:
        self.barrier.wait(20)
        return super().fetch_chunk(chunk)


def test_loads_that_several_callers_ask_for_run_together(packed: PackedDataset) -> None:
    with (
        running_node(packed, "a") as a,
        running_node(packed, "b", answer_s=PEER_ANSWER_S, server=Together(packed, CHUNKS)) as b,
        pooled(packed, a, lambda _: b.member, packed.source()) as source,
        ThreadPoolExecutor(CHUNKS) as threads,
    ):
        found = [*map(bytes, threads.map(source.fetch_chunk, range(CHUNKS)))]
        assert found == [payload(packed, chunk) for chunk in range(CHUNKS)]
        assert source.metrics.numbers()["requested.from_peers"] == CHUNKS


def test_a_peer_that_fetches_for_long_is_asked_more_and_more_seldom(packed: PackedDataset) -> None:
    pauses: list[float] = []
    with running_node(packed, "a") as a, running_node(packed, "b", answer_s=0.01) as b:
        b.gate.clear()

        def pause(pause_s: float) -> None:
            pauses.append(pause_s)
            if len(pauses) == 7:
                b.gate.set()

        peers = client(packed)
        source = PooledSource(packed.snapshot, lambda _: b.member, a.own, peers, packed.source(), pause=pause)
        assert bytes(source.fetch_chunk(1)) == payload(packed, 1)
        source.close()
        peers.close()
    assert pauses[:6] == [0.01, 0.02, 0.04, 0.08, PEER_RETRY_MAX_S, PEER_RETRY_MAX_S]


def test_what_a_peer_does_not_get_in_time_comes_from_a_server(packed: PackedDataset) -> None:
    with running_node(packed, "a") as a, running_node(packed, "b", answer_s=0.01) as b:
        b.gate.clear()
        with pooled(packed, a, lambda _: b.member, packed.source(), patience_s=0.1) as source:
            assert bytes(source.fetch_chunk(2)) == payload(packed, 2)
            assert source.metrics.numbers()["requested.from_servers"] == 1


def test_what_the_own_shelf_does_not_get_in_time_comes_from_a_server(packed: PackedDataset) -> None:
    """It may have to fetch for many other nodes first."""
    with running_node(packed, "a", own_patience_s=0.1) as a:
        a.gate.clear()
        with pooled(packed, a, lambda _: None, packed.source()) as source:
            assert bytes(source.fetch_chunk(2)) == payload(packed, 2)
            assert source.metrics.numbers()["requested.from_servers"] == 1


class Timed(MemoryChunkSource):
    """A server that takes its time, by a clock that it shares."""

    now_s = 0.0
    takes_s = 0.0

    def fetch_chunk(self, chunk: int) -> bytes:
        self.now_s += self.takes_s
        return super().fetch_chunk(chunk)


@pytest.mark.parametrize(("server_s", "is_blamed"), [(1.0, True), (5.0, False)])
def test_a_peer_is_blamed_for_what_a_server_brings_much_faster(
    packed: PackedDataset, server_s: float, is_blamed: bool
) -> None:
    payloads = packed.source().payloads
    server = Timed(packed.snapshot, payloads)
    server.takes_s = server_s

    def pause(_: float) -> None:
        server.now_s += 8.0

    with running_node(packed, "a") as a, running_node(packed, "b", answer_s=0.01) as b:
        b.gate.clear()
        peers = client(packed)
        source = PooledSource(
            packed.snapshot, lambda _: b.member, a.own, peers, server, 15.0, lambda: server.now_s, pause
        )
        assert bytes(source.fetch_chunk(2)) == payload(packed, 2)
        assert (peers.metrics.numbers()["peers.failures"], peers.detector.is_avoided("b")) == (
            int(is_blamed),
            is_blamed,
        )
        source.close()
        peers.close()


def hedges(source: PooledSource) -> tuple[int, int]:
    numbers = source.metrics.numbers()
    return int(numbers["peers.hedges_sent"]), int(numbers["peers.hedges_won"])


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server is asked too after a moment, and not after the time of a healthy peer."""
    monkeypatch.setattr("dieselfs.rpc.hedging.HEDGE_CEILING_S", 0.05)
    monkeypatch.setattr("dieselfs.cluster.pooled_source.PEER_HEDGE_FLOOR_S", 0.05)


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_peer_that_stands_still_is_overtaken_by_a_server(
    packed: PackedDataset, soon: None, is_whole: bool
) -> None:
    with running_node(packed, "a") as a, running_node(packed, "b", answer_s=STANDS_STILL_S) as b:
        b.gate.clear()
        peers = client(packed)
        with pooled(packed, a, lambda _: b.member, packed.source(), peers) as source:
            if is_whole:
                memory = memoryview(bytearray(len(payload(packed, 2))))
                source.fetch_chunk_into(2, memory)
                assert bytes(memory) == payload(packed, 2)
            else:
                wanted = Wanted({number: extents(packed, number) for number in (1, 2)})
                came = {
                    number: result for each in source.fetch_many(wanted) for number, result in each.items()
                }
                assert sorted(came) == [1, 2]
                assert b"".join(contents(came[2])) == payload(packed, 2)
            assert hedges(source) == (1, 1) and not peers.detector.is_avoided("b")
            for _ in range(OVERTAKEN_MAX - 1):
                assert bytes(source.fetch_chunk(3)) == payload(packed, 3)
            assert peers.detector.is_avoided("b")
            assert bytes(source.fetch_chunk(3)) == payload(packed, 3)
            assert hedges(source) == (OVERTAKEN_MAX, OVERTAKEN_MAX)
        b.gate.set()


class Late(MemoryChunkSource):
    """A server whose bytes arrive when `before` has returned."""

    before: Callable[[], object]

    def fetch_chunk(self, chunk: int) -> bytes:
        self.before()
        return super().fetch_chunk(chunk)


def test_a_peer_that_goes_on_first_is_believed(packed: PackedDataset, soon: None) -> None:
    with running_node(packed, "a") as a, running_node(packed, "b", answer_s=STANDS_STILL_S) as b:
        b.gate.clear()
        server = Late(packed.snapshot, packed.source().payloads)
        is_over = Event()

        def wait() -> None:
            b.gate.set()
            is_over.wait()

        server.before = wait
        with pooled(packed, a, lambda _: b.member, server) as source:
            assert bytes(source.fetch_chunk(2)) == payload(packed, 2)
            is_over.set()
            assert hedges(source) == (1, 0)
            assert source.metrics.as_dict()["requested"]["from_peers"] == 1


def test_a_server_with_an_error_overtakes_nobody(packed: PackedDataset, soon: None) -> None:
    with running_node(packed, "a") as a, running_node(packed, "b", answer_s=STANDS_STILL_S) as b:
        b.gate.clear()
        server = Late(packed.snapshot, packed.source().payloads)

        def fail() -> None:
            b.gate.set()
            raise Unavailable("the server is away")

        server.before = fail
        with pooled(packed, a, lambda _: b.member, server) as source:
            assert bytes(source.fetch_chunk(2)) == payload(packed, 2)
            assert hedges(source) == (1, 0)


@pytest.mark.parametrize("is_own", [True, False])
def test_damage_in_the_store_touches_only_its_file(packed: PackedDataset, is_own: bool) -> None:
    damaged = packed.source()
    bad, *good = extents(packed, 4)
    damaged.payloads[4][bad.offset] ^= 1
    with (
        running_node(packed, "a", server=damaged) as a,
        running_node(packed, "b", server=damaged) as b,
        pooled(packed, a, lambda _: None if is_own else b.member, damaged) as source,
    ):
        with pytest.raises(Damaged):
            source.fetch_chunk(4)
        with pytest.raises(Damaged):
            fetch_extent(source, bad)
        assert len(contents(ChainMap(*source.fetch_many(Wanted({4: good})))[4])) == len(good)
        brought = ChainMap(*source.fetch_many(Wanted({4: [bad], 5: extents(packed, 5)})))
        assert isinstance(brought[4], Damaged) and isinstance(brought[5], Slices)
        assert source.metrics.numbers()["requested.from_servers"] == len(good)


class Gone(MemoryChunkSource):
    def fetch_chunk(self, chunk: int) -> bytes:
        raise Unavailable("no server answers")


def test_without_a_server_what_the_nodes_have_can_be_read(packed: PackedDataset) -> None:
    source = packed.source()
    gone = Gone(packed.snapshot, source.payloads)
    with (
        running_node(packed, "a", server=gone) as a,
        running_node(packed, "b") as b,
        pooled(packed, a, lambda chunk: b.member if chunk else None, gone) as pool,
    ):
        assert bytes(pool.fetch_chunk(1)) == payload(packed, 1)
        with pytest.raises(Unavailable):
            pool.fetch_chunk(0)
        assert pool.metrics.numbers()["requested.failed"] == 1
