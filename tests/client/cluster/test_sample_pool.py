"""Ranks on eight nodes of a job keep the samples of one cache: each once, and the others fetch it where it is."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dieselfs.cluster.chunk_requests import ChunkAvailability
from dieselfs.cluster.member import Member
from dieselfs.cluster.peer_client import PeerClient
from dieselfs.errors import InvalidInput, Unavailable
from dieselfs.importance.course import Course
from dieselfs.importance.rank_reader import RankReader
from dieselfs.samples.ranks import Gather
from dieselfs.samples.sample_pool import SamplePool
from dieselfs.samples.sample_store import SampleStore, name_on, new_name
from dieselfs.samples.stored_reads import ReadCounts, StoredReads
from dieselfs_client.cluster.kept_samples import read_samples, write_samples
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries
from tests.support.gathering import run_ranks
from tests.support.peer_nodes import CREDENTIAL, PeerNode, running_node

NODES, SAMPLES, CACHE, BATCH, EPOCHS = 8, 320, 100, 64, 4
HITS_TOLERANCE = 0.05
"""Of the hits of the course, which takes the samples of a step one by one; ranks read them together."""


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    entries = [TreeEntry(b"%03d" % n, 0o100644, 0, b"%03d" % n * 20) for n in range(SAMPLES)]
    return pack_entries(entries, chunk_bytes=1000)


@pytest.fixture(scope="module")
def nodes(packed: PackedDataset) -> Iterator[dict[str, PeerNode]]:
    with ExitStack() as stack:
        yield {
            f"node-{n}": stack.enter_context(running_node(packed, f"node-{n}", room_bytes=1 << 20))
            for n in range(NODES)
        }


@dataclass
class Job:
    """The nodes, as one rank reaches them."""

    nodes: dict[str, PeerNode]
    peers: PeerClient

    def peer(self, node: str) -> Member:
        if node not in self.nodes:
            raise Unavailable("it has left")
        return self.nodes[node].member


class Rank:
    def __init__(self, packed: PackedDataset, nodes: dict[str, PeerNode], name: str, me: str) -> None:
        self.files = [packed.snapshot.find(b"%03d" % n) for n in range(SAMPLES)]
        self.by_file = {file: b"%03d" % n * 20 for n, file in enumerate(self.files)}
        self.fetched = 0  # from the source
        self.store = SampleStore(name_on(name, me))
        self.job = Job(nodes, PeerClient(CREDENTIAL, packed.snapshot.digest))
        pool = SamplePool(name, [*nodes], me, self.store, packed.snapshot, lambda: self.job)
        self.stored = StoredReads(SimpleNamespace(read_many=self.read_many), self.store, lambda: (pool, None))

    def read_many(self, files: list[int]) -> list[bytes]:
        self.fetched += len(files)
        return [self.by_file[file] for file in files]

    def train(self, reader: RankReader, gather: Gather) -> None:
        for _, samples in reader.steps():
            files = [self.files[sample] for sample in samples]
            assert self.stored.read_many(files) == [self.by_file[file] for file in files]
            released = reader.consume()
            self.stored.settle(*([self.files[each] for each in some] for some in (released, reader.kept())))
            reader.record([(sample * 7 % 11 + 1.0) for sample in samples])
            gather(None)  # as gradients

    def close(self) -> None:
        self.job.peers.close()
        self.store.close()


def held(store: SampleStore) -> list[int]:
    return [int(path.name) for path in Path(store.folder).iterdir() if path.name.isdecimal()]


def test_nodes_hold_the_samples_of_one_cache_once_and_count_real_hits(
    packed: PackedDataset, nodes: dict[str, PeerNode]
) -> None:
    name = new_name()

    def run(number: int, gather: Gather) -> tuple[list[int], list[int], ReadCounts, int, int]:
        rank = Rank(packed, nodes, name, f"node-{number}")
        try:
            course = Course(SAMPLES, 3, CACHE)
            reader = RankReader(course, BATCH, number, NODES, gather=gather)
            gather(None)  # all stores are there
            promised = 0
            for epoch in range(EPOCHS):
                reader.set_epoch(epoch)
                rank.train(reader, gather)
                promised += course.hits
                gather(None)
            kept = [rank.files[sample] for sample in course.cache.samples().tolist()]
            return held(rank.store), kept, rank.stored.counts.total(), rank.fetched, promised
        finally:
            gather(None)
            rank.close()

    found = run_ranks(NODES, run)
    everywhere = [file for of_node, *_ in found for file in of_node]
    assert sorted(everywhere) == sorted(found[0][1]) and len(everywhere) == CACHE
    assert all(len(of_node) > CACHE // NODES // 4 for of_node, *_ in found)
    reads, hits, from_peers = (sum(column) for column in zip(*(each[2] for each in found), strict=True))
    assert reads == EPOCHS * SAMPLES and reads - hits == sum(each[3] for each in found)
    assert hits == pytest.approx(found[0][4], rel=HITS_TOLERANCE) and from_peers > hits // 2


def test_an_owner_that_has_left_is_done_without(packed: PackedDataset, nodes: dict[str, PeerNode]) -> None:
    rank = Rank(packed, nodes, new_name(), "node-0")
    rank.job.nodes = {}
    try:
        for _ in range(2):
            assert rank.stored.read_many(rank.files) == [*rank.by_file.values()]
            rank.stored.settle([], rank.files)
        own = [
            file for file in rank.files if rank.stored.pool and rank.stored.pool.owners([file]) == ["node-0"]
        ]
        assert sorted(held(rank.store)) == sorted(own)
        assert rank.stored.counts.total() == (2 * SAMPLES, len(own), 0)
    finally:
        rank.close()


def test_wrong_bytes_of_an_owner_are_read_again(packed: PackedDataset, nodes: dict[str, PeerNode]) -> None:
    name = new_name()
    rank, other = Rank(packed, nodes, name, "node-0"), Rank(packed, nodes, name, "node-1")
    try:
        rank.stored.read_many(rank.files)
        rank.stored.settle([], rank.files)
        right, wrong = held(other.store)[:2]
        other.store.write(wrong, b"x" * 60)
        assert rank.stored.pool and [*rank.stored.pool.fetch([right, wrong])] == [right]
    finally:
        rank.close()
        other.close()


@pytest.mark.parametrize("store", ["../etc", "dieselfs-samples-0-0123456789abcdef-..", "lock", "x" * 5000])
def test_only_stores_are_opened(packed: PackedDataset, tmp_path: Path, store: str) -> None:
    (tmp_path / "etc").mkdir()
    asked: Any = SimpleNamespace(store=store, files=b"\1\0\0\0")
    write_samples(packed.snapshot, asked, bytearray(60), str(tmp_path))
    states, contents = read_samples(packed.snapshot, asked, str(tmp_path))
    assert (
        states == [ChunkAvailability.ELSEWHERE]
        and not contents
        and [*tmp_path.rglob("*")] == [tmp_path / "etc"]
    )


@pytest.mark.parametrize(
    ("files", "bulk_bytes", "says"),
    [
        (b"\1\0\0", 60, "malformed"),
        (b"", 0, "malformed"),
        (b"\xff" * 4, 60, "no entry"),
        (b"\1\0\0\0", 59, "59 bytes"),
    ],
)
def test_a_malformed_request_is_refused(
    packed: PackedDataset, files: bytes, bulk_bytes: int, says: str
) -> None:
    with pytest.raises(InvalidInput, match=says):
        write_samples(packed.snapshot, SimpleNamespace(store="", files=files), bytearray(bulk_bytes))
