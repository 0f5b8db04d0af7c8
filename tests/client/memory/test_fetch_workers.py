"""Workers over a source in memory: forks of this process, which end with the sockets to them."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from dieselfs.chunk.segment import Segment
from dieselfs.errors import Damaged
from dieselfs.rpc.client import ServerClient
from dieselfs.settings.table import Settings
from dieselfs.sources.plain import node_source
from dieselfs.sources.server import ServerSource
from dieselfs.telemetry.shared import SharedRegistry
from dieselfs_client.memory.buffer_pool import BufferPool
from dieselfs_client.memory.fetch_workers import FetchWorkers, WorkerSource, fetches_at_once, start_forker
from dieselfs_client.mount.points.options import WORKERS_MAX, MountOptions, workers_for
from tests.support.dataset import MemoryChunkSource, PackedDataset, TreeEntry, pack_entries
from tests.support.dlcmd import wait_until

CHUNK_BYTES = 1 << 16
CHUNKS = 6
STUCK = CHUNKS - 1


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    entries = [TreeEntry(b"%02d" % n, 0o100644, 0, bytes([n]) * CHUNK_BYTES) for n in range(CHUNKS)]
    return pack_entries(entries, chunk_bytes=CHUNK_BYTES)


class MemoryClient(ServerClient):
    """A server in memory. A chunk does not arrive until the other end of a pipe is closed."""

    def __init__(self, packed: PackedDataset) -> None:
        unused = Path("/nowhere")
        super().__init__(Settings(unused, unused, f"unix:{unused}"))
        ids = map(packed.snapshot.chunk_id, range(CHUNKS))
        self.payloads = dict(zip(ids, packed.source().payloads.values(), strict=True))
        self.stuck = packed.snapshot.chunk_id(STUCK)
        self.pipe, self.stick = os.pipe()

    def payload_in_parts(
        self,
        dataset: str,
        chunk_id: bytes,
        length_bytes: int,
        parts: Callable[[], Iterator[memoryview]],
        is_sent: bool = False,
        ahead: Sequence[bytes] = (),
        room_of: Callable[[int], memoryview] | None = None,
    ) -> None:
        if chunk_id == self.stuck:
            os.read(self.pipe, 1)
        rest = memoryview(self.payloads[chunk_id])
        for part in parts():
            part[:] = rest[: len(part)]
            rest = rest[len(part) :]


class OwnReader(ServerSource):
    """The daemon's own, which fetches from memory."""

    def __init__(self, client: ServerClient, source: MemoryChunkSource, packed: PackedDataset) -> None:
        super().__init__(client, packed.snapshot)
        self.source = source

    def fetch_chunk_into(self, chunk: int, destination: memoryview) -> None:
        self.source.fetch_chunk_into(chunk, destination)

    def fetch_segment(self, chunk: int) -> Segment:
        segment = Segment.create(CHUNK_BYTES)
        segment.write(0, memoryview(self.source.fetch_chunk(chunk)))
        segment.seal()
        return segment


class Rig:
    def __init__(
        self, packed: PackedDataset, count: int, damaged: int | None = None, disk: Path | None = None
    ) -> None:
        self.client = MemoryClient(packed)
        if damaged is not None:
            self.client.payloads[packed.snapshot.chunk_id(damaged)] = bytearray(CHUNK_BYTES)
        self.ours = packed.source()
        self.reader = OwnReader(self.client, self.ours, packed)
        self.pool = BufferPool(CHUNK_BYTES, 4)
        self.metrics = SharedRegistry(1 + count)
        self.theirs = node_source(self.client, packed.snapshot, str(disk or ""), metrics=self.metrics)
        self.metrics.seal()
        forker = start_forker(self._begin, lambda: os.close(self.client.stick))
        self.workers = FetchWorkers(forker, count, self.theirs.hold)
        self.workers.use(self.pool)
        self.source = WorkerSource(lambda: self.ours, self.workers)

    def _begin(self, number: int, hold: int | None) -> ServerSource:
        self.metrics.row = number
        if hold is not None:
            self.theirs.share(hold)
        return self.theirs

    def segment(self, chunk: int) -> bytes:
        return bytes(self.workers.fetch_segment(self.reader, chunk).view)

    def fetch(self, chunk: int) -> bytes:
        destination = self.pool.take(CHUNK_BYTES)
        assert destination is not None
        self.source.fetch_chunk_into(chunk, destination)
        return bytes(destination)

    def close(self) -> None:
        self.workers.close()
        self.theirs.close()
        os.close(self.client.stick)
        os.close(self.client.pipe)
        self.pool.close()
        wait_until(lambda: not processes("dieselfs-fo") and not processes("dieselfs-fe"))


def processes(name: str) -> list[int]:
    """Living descendants of this process whose name begins so."""
    found, family = [], [os.getpid()]
    for each in family:  # grows meanwhile
        try:
            state = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[0]
            if Path(f"/proc/{each}/comm").read_text().startswith(name) and state not in "ZX":
                found.append(each)
            for task in Path(f"/proc/{each}/task").glob("*/children"):
                family += map(int, task.read_text().split())
        except OSError:  # it has ended
            pass
    return found


@pytest.fixture
def rig(packed: PackedDataset) -> Iterator[Rig]:
    with closing(Rig(packed, 2)) as rig:
        yield rig


def test_chunks_are_fetched_by_a_worker(rig: Rig) -> None:
    for chunk in range(STUCK):
        assert rig.fetch(chunk) == rig.ours.payloads[chunk]
    assert not rig.ours.fetched_chunks
    assert rig.metrics.numbers()["servers.received_bytes"] == STUCK * CHUNK_BYTES
    assert len(processes("dieselfs-fetch")) == 1, "no more than are busy"


def test_a_worker_that_is_killed_costs_no_read(rig: Rig) -> None:
    assert rig.fetch(1) == rig.ours.payloads[1]
    (worker,) = processes("dieselfs-fetch")
    os.kill(worker, signal.SIGKILL)
    assert rig.fetch(2) == rig.ours.payloads[2]
    assert rig.fetch(3) == rig.ours.payloads[3]
    assert processes("dieselfs-fetch") not in ([], [worker])
    assert 3 not in rig.ours.fetched_chunks, "another worker has taken its place"


def test_a_worker_that_is_killed_in_the_middle_of_a_chunk_costs_no_read(rig: Rig) -> None:
    with ThreadPoolExecutor(1) as thread:
        fetched = thread.submit(rig.fetch, STUCK)
        wait_until(lambda: bool(processes("dieselfs-fetch")))
        os.kill(processes("dieselfs-fetch")[0], signal.SIGKILL)
        assert fetched.result() == rig.ours.payloads[STUCK]
    assert rig.ours.fetched_chunks == [STUCK]


def test_segments_of_a_job_are_fetched_by_a_worker(rig: Rig) -> None:
    for chunk in range(STUCK):
        assert rig.segment(chunk) == rig.ours.payloads[chunk]
    assert not rig.ours.fetched_chunks
    assert rig.metrics.numbers()["servers.received_bytes"] == STUCK * CHUNK_BYTES


def test_a_worker_that_is_killed_in_the_middle_of_a_segment_costs_no_read(rig: Rig) -> None:
    with ThreadPoolExecutor(1) as thread:
        fetched = thread.submit(rig.segment, STUCK)
        wait_until(lambda: bool(processes("dieselfs-fetch")))
        os.kill(processes("dieselfs-fetch")[0], signal.SIGKILL)
        assert fetched.result() == rig.ours.payloads[STUCK]
    assert rig.ours.fetched_chunks == [STUCK]
    assert rig.segment(1) == rig.ours.payloads[1] and rig.ours.fetched_chunks == [STUCK]


def test_workers_use_the_disk_of_the_node(packed: PackedDataset, tmp_path: Path) -> None:
    all_bytes = STUCK * CHUNK_BYTES
    with closing(Rig(packed, 2, disk=tmp_path / "disk")) as first:
        for chunk in range(STUCK):
            assert first.fetch(chunk) == first.ours.payloads[chunk]
        assert first.metrics.numbers()["servers.received_bytes"] == all_bytes
    with closing(Rig(packed, 2, disk=tmp_path / "disk")) as second:
        for chunk in range(STUCK):
            assert second.fetch(chunk) == second.ours.payloads[chunk]
        (worker,) = processes("dieselfs-fetch")
        os.kill(worker, signal.SIGKILL)
        assert second.segment(0) == second.ours.payloads[0] == second.segment(0)
        numbers = second.metrics.numbers()
        assert second.ours.fetched_chunks == [0], "by the daemon, once"
    assert numbers["disk.hit_bytes"] == all_bytes + CHUNK_BYTES and numbers["servers.received_bytes"] == 0
    assert numbers["disk.used_bytes"] >= all_bytes


def test_without_a_forker_the_daemon_fetches(rig: Rig) -> None:
    wait_until(lambda: bool(processes("dieselfs-forker")))  # it gives itself the name
    (forker,) = processes("dieselfs-forker")
    os.kill(forker, signal.SIGKILL)
    wait_until(lambda: not processes("dieselfs-forker"))
    assert rig.fetch(1) == rig.ours.payloads[1]
    assert rig.ours.fetched_chunks == [1]


def test_what_a_worker_cannot_fetch_is_reported_by_the_daemon(packed: PackedDataset) -> None:
    with closing(Rig(packed, 1, damaged=4)) as rig:
        assert rig.fetch(4) == rig.ours.payloads[4], "the daemon fetches it itself"
        rig.ours.payloads[4] = bytearray(CHUNK_BYTES)
        with pytest.raises(Damaged):
            rig.fetch(4)


def test_memory_of_another_kind_is_left_to_the_daemon(rig: Rig) -> None:
    destination = memoryview(bytearray(CHUNK_BYTES))
    rig.source.fetch_chunk_into(1, destination)
    assert destination == rig.ours.payloads[1] and rig.ours.fetched_chunks == [1]


def test_a_worker_for_four_processors() -> None:
    counts = {processors: workers_for(MountOptions(), processors) for processors in (1, 2, 4, 16, 64, 128)}
    assert counts == {1: 1, 2: 1, 4: 1, 16: 4, 64: WORKERS_MAX, 128: WORKERS_MAX}
    assert workers_for(MountOptions(workers=3), 1) == 3
    assert fetches_at_once(1) == 8 and fetches_at_once(WORKERS_MAX) == 2 * WORKERS_MAX
