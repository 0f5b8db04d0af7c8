"""Batches with files that come when the test lets them, and with a real server."""

from collections.abc import Iterator
from threading import Condition
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs.cluster.holdings import FAR, HERE, NEAR
from dieselfs.dataset import Dataset
from dieselfs.dataset.batches import BatchReader, Ring, opportunistic_batches
from dieselfs.errors import InvalidInput, Unavailable
from dieselfs.shuffle.assignment import ChunkHomes
from dieselfs.shuffle.opportunistic import Parts, ServedLog, served
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.quality import served_nodes
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec
from tests.support.dataset import TreeEntry, pack_entries
from tests.support.server import RunningServer

FILES = 60
TIMEOUT_S = 60.0
SNAPSHOT = pack_entries(
    [TreeEntry(b"train/%03d" % number, 0o100644, 0, bytes(200)) for number in range(FILES)], chunk_bytes=1500
).snapshot
PLAN = Plan(SNAPSHOT, PlanSpec(1, 2))
NODES = sorted(PLAN.nodes().tolist())


class Files:
    """Files whose content is their node. `fail_at`: the read that fails."""

    def __init__(self, fail_at: int = -1) -> None:
        self.reads: list[list[int]] = []
        self._fail_at = fail_at

    def get_nodes(self, nodes: Any, is_shared_plan: bool = False) -> list[bytes]:
        if len(self.reads) == self._fail_at:
            raise Unavailable("the server is away")
        self.reads.append([int(node) for node in nodes])
        return [content_of(int(node)) for node in nodes]


class GatedFiles(Files):
    """Each read waits until the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = Condition()
        self._allowed = 0

    def allow(self, reads: int) -> None:
        with self._changed:
            self._allowed += reads
            self._changed.notify_all()

    def get_nodes(self, nodes: Any, is_shared_plan: bool = False) -> list[bytes]:
        with self._changed:
            assert self._changed.wait_for(lambda: self._allowed > 0, TIMEOUT_S)
            self._allowed -= 1
        return super().get_nodes(nodes)


def content_of(node: int) -> bytes:
    return b"%d " % node * (200 // len(b"%d " % node))


def nodes_of(batches: BatchReader) -> list[int]:
    nodes: list[int] = []
    with batches:
        for batch in batches:
            assert batch.position == len(nodes)
            assert batch.contents == [content_of(node) for node in batch.nodes]
            nodes += batch.nodes
    return nodes


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 70),
    world=st.integers(1, 3),
    nodes=st.sampled_from([(), ("a",), ("a", "b", "c")]),
    buffer_bytes=st.sampled_from([1, 500, 3000, 10**6]),
)
def test_each_file_comes_once_whatever_the_buffer_is(
    batch: int, world: int, nodes: tuple[str, ...], buffer_bytes: int
) -> None:
    read = []
    for rank in range(world):
        reader = ReaderSpec(rank, world, nodes=nodes[:world])
        batches = opportunistic_batches(Files(), PLAN, reader, batch, buffer_bytes=buffer_bytes)
        own = nodes_of(batches)
        parts = Parts.of(PLAN, reader)
        assert abs(len(parts) - FILES / world) < 1
        assert served(parts, batches.log).nodes.tolist() == own
        read += own
    assert sorted(read) == NODES


@settings(max_examples=25, deadline=None)
@given(batch=st.integers(1, 20), stop=st.integers(0, FILES), buffer_bytes=st.sampled_from([1, 2000, 10**6]))
def test_a_run_is_repeated_and_resumed_bit_by_bit(batch: int, stop: int, buffer_bytes: int) -> None:
    """With another batch size, another buffer, and other times."""
    first = opportunistic_batches(Files(), PLAN, ReaderSpec(), 7, buffer_bytes=3000)
    nodes = nodes_of(first)
    log = ServedLog.parse(str(first.log))
    again = opportunistic_batches(Files(), PLAN, ReaderSpec(), batch, buffer_bytes=buffer_bytes, log=log)
    assert nodes_of(again) == nodes and again.log == log
    files = Files()
    resumed = opportunistic_batches(
        files, PLAN, ReaderSpec(start=stop), batch, buffer_bytes=buffer_bytes, log=log
    )
    assert [node for one in resumed for node in one.nodes] == nodes[stop:]
    resumed.close()
    assert sorted(node for read in files.reads for node in read) == sorted(nodes[stop:])
    interrupted = opportunistic_batches(
        Files(), PLAN, ReaderSpec(start=stop), batch, buffer_bytes=buffer_bytes, log=log.before(stop)
    )
    rest = [node for one in interrupted for node in one.nodes]
    interrupted.close()
    assert sorted(nodes[:stop] + rest) == NODES


def test_what_is_in_memory_comes_first() -> None:
    """Of this node, then of another node, then the rest; a rank reads what its node owns."""
    reader = ReaderSpec(1, 2, nodes=("a", "b"))
    order = Parts.of(PLAN, reader).order
    distances = np.full(SNAPSHOT.chunk_count, FAR)
    distances[order[-1]], distances[order[-2]] = HERE, NEAR
    files = Files()
    batches = opportunistic_batches(files, PLAN, reader, 5, distances=distances, buffer_bytes=1)
    own = nodes_of(batches)
    parts = Parts.of(PLAN, reader)
    assert [[*map(int, nodes)] for nodes in files.reads] == [
        parts.nodes[part].tolist() for part in (order[-1], order[-2], *order[:-2])
    ]
    homes = ChunkHomes(SNAPSHOT, ("a", "b")).of_files
    owned = int((homes(np.array(NODES)) == 1).sum())
    assert (homes(np.array(own)) == 1).sum() == min(owned, len(own)) < FILES // 2 + 1
    log = ServedLog.parse(str(batches.log))
    assert " nodes=a,b " in str(log) and served_nodes(PLAN, log).tolist() == own


def test_no_batch_waits_for_a_certain_file() -> None:
    """With two of the chunks there, batches of their files come."""
    files = GatedFiles()
    buffer_bytes = 2 * 200 * len(Parts(PLAN.layout, 1, 2).nodes[Parts(PLAN.layout, 1, 2).order[0]])
    with opportunistic_batches(files, PLAN, ReaderSpec(), 3, buffer_bytes=buffer_bytes) as batches:
        files.allow(2)
        found = {node for batch in (next(batches), next(batches)) for node in batch.nodes}
        assert len(found) == 6 and len(files.reads) <= 2
        files.allow(FILES)


def test_a_read_that_fails_is_raised_after_the_batches_before_it() -> None:
    files = Files(fail_at=3)
    read: list[int] = []
    with opportunistic_batches(files, PLAN, ReaderSpec(), 4, buffer_bytes=2000) as batches:
        with pytest.raises(Unavailable, match="the server is away"):
            for batch in batches:
                read += batch.nodes
        with pytest.raises(Unavailable):
            next(batches)
    loaded = {node for nodes in files.reads for node in nodes}
    order = served(Parts.of(PLAN, ReaderSpec()), batches.log).nodes.tolist()
    assert read == order[: next(place for place, node in enumerate(order) if node not in loaded)] != []


def test_close_ends_the_threads_in_the_middle() -> None:
    batches = opportunistic_batches(Files(), PLAN, ReaderSpec(), 4, buffer_bytes=2000)
    next(batches)
    batches.close()
    batches.close()
    assert not batches._thread.is_alive()
    assert sum(len(batch.nodes) for batch in batches) < FILES


def test_a_log_of_another_run() -> None:
    log = opportunistic_batches(Files(), PLAN, ReaderSpec(), 4)
    nodes_of(log)
    for reader, plan, found in (
        (ReaderSpec(0, 2), PLAN, log.log),
        (ReaderSpec(nodes=("a",)), PLAN, log.log),
        (ReaderSpec(), PLAN.with_epoch(3), log.log),
        (ReaderSpec(start=5), PLAN, log.log.before(0)),
    ):
        with pytest.raises(InvalidInput, match="the log"):
            opportunistic_batches(Files(), plan, reader, 4, log=found)


def test_batches_of_a_list_wait_in_its_order() -> None:
    """Two of them, and no more; each read is one of them."""
    files = GatedFiles()
    with BatchReader(files, Ring.of_list(PLAN.nodes(), 8, ahead=2)) as batches:
        files.allow(FILES)
        assert [node for batch in batches for node in batch.nodes] == PLAN.nodes().tolist()
    assert [len(read) for read in files.reads] == [8] * (FILES // 8) + [FILES % 8]
    ring = Ring.of_list(PLAN.nodes(), 8, ahead=2)
    for piece, has_room in zip(ring.pieces, [True, True, False], strict=False):
        assert ring.has_room(piece) == has_room
        ring.add(piece, [b""] * len(piece))


@pytest.fixture
def stored(data: Dataset) -> Iterator[Dataset]:
    for number in range(40):
        data.put(f"train/{number:02}.bin", b"%d" % number * number)
        if number % 10 == 9:
            data.flush()  # a chunk
    data.put("README", b"not in the folder")
    data.flush()
    yield data


@pytest.mark.parametrize("is_opportunistic", [True, False])
def test_with_a_server(stored: Dataset, server: RunningServer, is_opportunistic: bool) -> None:
    def read(dataset: Dataset, **options: Any) -> tuple[list[Any], BatchReader]:
        with dataset.batches(
            8, folder="train", seed=3, is_opportunistic=is_opportunistic, **options
        ) as batches:
            return [*batches], batches

    batches, reader = read(stored)
    paths = [stored.snapshot.path(node) for batch in batches for node in batch.nodes]
    assert sorted(paths) == [b"train/%02d.bin" % number for number in range(40)]
    contents = [content for batch in batches for content in batch.contents]
    assert contents == stored.get_many(paths)
    if is_opportunistic:
        with Dataset(server.settings(), stored.name) as other:
            assert read(other, log=reader.log)[0] == batches
    else:
        nodes = np.concatenate([batch.nodes for batch in batches]).tolist()
        assert nodes == stored.plan(seed=3, folder="train").nodes().tolist()
        with pytest.raises(InvalidInput, match="its cursor repeats it"):
            _ = reader.log
    with pytest.raises(InvalidInput, match="batch is 0"):
        stored.batches(0)
    with pytest.raises(InvalidInput, match="ahead is 0"):
        stored.batches(8, ahead=0, is_opportunistic=is_opportunistic)
