"""Several processes on each node of a job: one is the master, the others attach to it, and one takes over from it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dieselfs.dataset import Dataset
from dieselfs.limits import MIB
from dieselfs.samples.ranks import Gather
from dieselfs.shuffle.assignment import ChunkHomes
from dieselfs.snapshot.subtree import files_below
from dieselfs.torch import FileDataset, OpportunisticSampler
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.supervision.status import supervision_of
from lab.mount_processes import kill_all
from lab.network import clear
from tests.support.gathering import run_ranks
from tests.support.server import RunningServer, running_server
from tests.support.small_chunks import CHUNKS, FILE_BYTES, FILES, content, store

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")

PATIENCE_S = 100.0
ESTABLISHED = "01"
"""Of the states in /proc/net/tcp."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        with Dataset(server.settings(), "job", must_exist=False) as data:
            store(data, tmp_path_factory.mktemp("files"))
        yield server


class Job:
    """Mounts of one job, several of them on the same node."""

    def __init__(self, server: RunningServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.secret = folder / "secret"
        self.secret.touch(0o600)
        self.secret.write_text("0123456789abcdef" * 4)
        self.places: list[Path] = []

    def mount(self, *nodes: str, of: int, view: str = "auto") -> list[Path]:
        """A mount on each of these nodes, at the same time, as they wait until `of` are there."""
        places = [self.folder / f"mount-{len(self.places) + number}" for number in range(len(nodes))]
        first_rank = len(self.places)
        self.places += places
        for place in places:
            place.mkdir()

        def mount_one(number: int) -> None:
            options = MountOptions(
                server=self.server.unix,
                memory_bytes=128 * MIB,
                log_file=str(places[number]) + ".log",
                view=view,
                job="training",
                job_nodes=of,
                job_node=nodes[number],
                job_rank=first_rank + number,
                job_host="127.0.0.1",
                job_secret=str(self.secret),
            )
            control.mount("job", places[number], options)

        with ThreadPoolExecutor(len(nodes)) as threads:
            list(threads.map(mount_one, range(len(nodes))))
        return places

    def reader(self, node: str) -> subprocess.Popen[str]:
        """A program that has attached itself and read everything."""
        folder = os.environ["XDG_RUNTIME_DIR"] + "/dieselfs"
        arguments = [self.server.unix, "job", "training", node, str(self.secret), folder]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.attached_reader", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        )


@pytest.fixture
def job(server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    job = Job(server, tmp_path)
    yield job
    for place in job.places:
        clear(place)


def job_stats(place: Path) -> dict[str, Any]:
    stats: dict[str, Any] = json.loads((place / ".dieselfs/stats").read_text())
    return stats


def is_master(place: Path) -> bool:
    return bool(job_stats(place)["job"]["is_master"])


def read(place: Path, number: int) -> None:
    """A file, not from the page cache."""
    with open(place / str(number), "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert file.read(FILE_BYTES + 1) == content(number)


def read_all(place: Path) -> None:
    for number in range(FILES):
        read(place, number)


def wait_for(what: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def connections(process: int) -> Counter[int]:
    """Established connections of a process, by the port of the other end.

    Not those of the machine: other tests have listeners with the same numbers, at other addresses or earlier.
    """
    own = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            own.add(os.readlink(descriptor))
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return Counter(
        int(remote.rpartition(":")[2], 16)
        for _, _, remote, state, *_, inode in (line[:10] for line in lines)
        if state == ESTABLISHED and f"socket:[{inode}]" in own
    )


def has_one_each(process: int, own: int, others: list[int], overtaken: int) -> bool:
    """Whether a process has one connection to each of these ports, or none where a server was faster."""
    count = connections(process)
    held = [count[port] for port in others]
    return max(held) <= 1 and sum(held) >= len(held) - overtaken and not count[own]


def test_mounts_draw_what_their_node_holds_first(job: Job) -> None:
    """And each file comes once in the lists of both.

    In the view `fuse`: in an image, the kernel reads ahead, so a node also holds chunks that nobody asked for.
    """
    nodes = ("node-0", "node-1")
    places = job.mount(*nodes, of=2, view="fuse")
    with Dataset(job.server.settings(), "job") as data:
        snapshot = data.snapshot
    chunk_of = {
        snapshot.path(node).decode(): snapshot.extents(node)[0].chunk
        for node in files_below(snapshot).tolist()
    }
    homes = ChunkHomes(snapshot, nodes).of(np.arange(snapshot.chunk_count)).tolist()
    held = [chunk for chunk, home in enumerate(homes) if home == 0][::2]
    for path, chunk in chunk_of.items():
        if chunk in held:
            read(places[0], int(path))
    name = f"policy=opportunistic,seed=1,group=1,world=2,batch=8,nodes={'+'.join(nodes)}"
    orders = [
        (place / f".dieselfs/shuffle/{name},rank={rank}").read_text().splitlines()
        for rank, place in enumerate(places)
    ]
    assert sorted(orders[0] + orders[1]) == sorted(chunk_of)
    assert held and {chunk_of[path] for path in orders[0][:5]} <= {*held}

    def of_sampler(rank: int, gather: Gather) -> list[str]:
        with FileDataset(places[rank], loader=bytes) as dataset:
            sampler = OpportunisticSampler(
                dataset, 8, seed=1, group_chunks=1, rank=rank, world=2, gather=gather
            )
            return [Path(dataset.path(index)).name for batch in sampler for index in batch]

    assert run_ranks(2, of_sampler) == orders
    for place, order in zip(places, orders, strict=True):
        for path in order:
            read(place, int(path))
    refused = places[0] / f".dieselfs/shuffle/{name.replace('batch=8', 'batch=9')}"
    with pytest.raises(OSError, match="Invalid argument"):
        refused.read_text()
    assert "was drawn for other ranks: give world=2,batch=8" in (places[0] / ".dieselfs/errors").read_text()


def test_each_process_has_one_connection_to_each_other_node(job: Job) -> None:
    """None where a server was faster at last: the connection was closed, and nobody has asked that node since."""
    nodes = ["node-0", "node-1", "node-2"]
    places = job.mount(*nodes, of=3)
    with ExitStack() as stack:
        readers = [stack.enter_context(job.reader(node)) for node in nodes * 2]
        try:
            figures = []
            for reader in readers:
                assert reader.stdout is not None
                figures.append(json.loads(reader.stdout.readline()))
            for place in places:
                read_all(place)
            stats = [job_stats(place) for place in places]
            (members,) = {tuple(sorted(map(tuple, each["members"]))) for each in figures}
            ports = dict(members)
            daemons = [supervision_of(str(place)) for place in places]
            processes = [(each.daemon, told) for each, told in zip(daemons, stats, strict=True) if each]
            processes += [(each["process"], each) for each in figures]
            assert len(processes) == 9
            for (process, told), node in zip(processes, nodes * 3, strict=True):
                others = [port for name, port in ports.items() if name != node]
                overtaken = told["peers"]["hedges_won"]
                # A call in flight to a node that was given up has its own connection until it ends.
                wait_for(partial(has_one_each, process, ports[node], others, overtaken))
            assert all(each["job"]["attached"] >= 2 for each in stats)
        finally:
            for reader in readers:
                reader.kill()
    for each in figures:
        assert each["requested"]["from_servers"] == each["peers"]["hedges_won"]
        assert each["requested"]["failed"] == 0
    assert sum(each["node_cache"]["fetched_chunks"] for each in stats) == CHUNKS


def test_a_mount_takes_over_from_one_that_is_killed_while_it_is_read(job: Job) -> None:
    (first,) = job.mount("node-0", of=1)
    second, other = job.mount("node-0", "node-1", of=2)
    assert [is_master(place) for place in (first, second, other)] == [True, False, True]
    is_over = threading.Event()
    rounds = 0

    def read_on() -> int:
        nonlocal rounds
        while not is_over.is_set():
            read_all(second)
            rounds += 1
        return rounds

    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(read_on)
        try:
            wait_for(lambda: rounds > 0)
            kill_all(first)
            wait_for(lambda: is_master(second))
            seen = rounds
            wait_for(lambda: rounds > seen + 1 or reading.done())
        finally:
            is_over.set()
        assert reading.result()
    read_all(other)
    assert job_stats(second)["requested"]["failed"] == job_stats(other)["requested"]["failed"] == 0
    assert job_stats(second)["job"]["members"] == ["node-0", "node-1"]


def test_a_mount_whose_daemon_is_killed_stays_in_the_job(job: Job) -> None:
    first, second = job.mount("node-0", of=1) + job.mount("node-0", of=1)
    for _ in range(2):
        supervision = supervision_of(str(first))
        assert supervision is not None
        os.kill(supervision.daemon, signal.SIGKILL)
        for place in (first, second):
            read_all(place)
        wait_for(lambda: is_master(first) != is_master(second))
        assert [job_stats(place)["requested"]["failed"] for place in (first, second)] == [0, 0]
