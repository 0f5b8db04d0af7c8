"""Programs of a job on two nodes, as torchrun starts them: each chunk leaves the server once; nobody starts daemons."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

import dieselfs
from dieselfs.dataset import Dataset
from dieselfs.encryption.segments import sealed_length
from dieselfs.errors import NotFound
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.store import GENERATIONS_KEPT
from tests.support.job_daemons import end_job_daemons, job_daemons
from tests.support.server import RunningServer, running_server
from tests.support.small_chunks import CHUNKS, FILE_BYTES, FILES, store

DATASET, SECRET = "pictures", "secret"
"""The second one is encrypted."""
MEMORY_BYTES = 2 << 20
"""Of a program: so little that it has to ask again and again."""
NODES = 2
PROCESSES_EACH = 2
WORLD = NODES * PROCESSES_EACH
PATIENCE_S = 120.0

PROGRAM = """
import json, os, sys, time
import dieselfs

def is_right(path, content):
    return len(content) == FILE_BYTES and content == int(path).to_bytes(4, "little") * (len(content) // 4)

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
with dieselfs.connect("DATASET", memory_bytes=MEMORY_BYTES) as data:
    path = 0
    while data.statistics()["job"]["nodes"] < NODES:
        assert is_right(path, data.get(f"{path}"))
        path = (path + FILES // 8) % FILES
        time.sleep(0.05)
    print(json.dumps(data.statistics()["requested"]), flush=True)
    for line in sys.stdin:
        paths = data.plan(seed=1, epoch=int(line), group_chunks=3).share(rank, world, batch=32).paths
        for first in range(0, len(paths), 8):
            batch = paths[first : first + 8]
            assert all(map(is_right, batch, data.get_many(batch)))
        print(json.dumps(data.statistics()["requested"]), flush=True)
"""
PROGRAM = PROGRAM.replace("FILE_BYTES", f"{FILE_BYTES}").replace("FILES", f"{FILES}")
PROGRAM = PROGRAM.replace("MEMORY_BYTES", f"{MEMORY_BYTES}")
PROGRAM = PROGRAM.replace("NODES", f"{NODES}").replace("DATASET", DATASET)

SAMPLING = """
import json, os, sys, time
import torch.distributed
from torch.utils.data import DataLoader
from dieselfs.torch import FileDataset, ImportanceSampler

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.distributed.init_process_group("gloo", f"file://{sys.argv[1]}", rank=rank, world_size=world)
with FileDataset(sys.argv[2], loader=bytes) as dataset:
    while dataset.source.dataset.statistics()["job"]["nodes"] < NODES:
        dataset[0]
        time.sleep(0.05)
    sampler = ImportanceSampler(dataset, 16, seed=1, cache_share=0.25)
    loader = DataLoader(
        dataset, batch_sampler=sampler, collate_fn=list, num_workers=1, multiprocessing_context="fork"
    )
    for epoch in range(3):
        torch.distributed.barrier()
        for batch in sampler.consumed(loader):
            sampler.record([float(content[0]) for content in batch])
            torch.distributed.barrier()
            if sampler.position == FILES:
                figures = sampler.statistics()
    torch.distributed.barrier()
    kept = {place.name: place.stat().st_size for place in os.scandir(dataset.source.store.folder)}
    del kept["lock"]
    torch.distributed.barrier()
    figures |= {"kept": kept, "cached": len(sampler.reader.course.cache)}
    print(json.dumps(figures))
    sampler.close()
"""
SAMPLING = SAMPLING.replace("FILES", f"{FILES}").replace("NODES", f"{NODES}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        with Dataset(server.settings(), DATASET, must_exist=False) as data:
            store(data, tmp_path_factory.mktemp("files"))
        with Dataset(server.settings(), SECRET, must_exist=False) as data:
            data.client.encrypt(data.create())
            store(data, tmp_path_factory.mktemp("secret"))
        yield server


@dataclass
class Program:
    """One rank, which reads an epoch when it is told to, once it has found its job."""

    process: "subprocess.Popen[str]"

    def begin(self, epoch: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{epoch}\n")
        self.process.stdin.flush()

    def figures(self) -> dict[str, int]:
        """What it has counted so far, when it has found the job, and at the end of each epoch; all bytes were right."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the program has failed: {self.process.wait(PATIENCE_S)}"
        figures: dict[str, int] = json.loads(line)
        came = figures["node_bytes"] + figures["peer_bytes"] + figures["server_bytes"]
        assert figures["bytes"] == came + figures["failed_bytes"] and not figures["failed_bytes"]
        return figures


class Nodes:
    """Two nodes in name: each has a runtime folder of its own."""

    def __init__(self, server: RunningServer, folder: Path, runtime: Path) -> None:
        self.server, self.folder, self.runtime = server, folder, runtime
        self.key_file = server.user(f"reader-{folder.name}"[:60], **{DATASET: "read", SECRET: "read"})
        with Dataset(server.settings(), DATASET) as data:
            self.snapshot: Snapshot = data.snapshot
        self.given_bytes = given_bytes(server)
        """By the server, before these nodes began."""

    def environment(self, rank: int) -> dict[str, str]:
        node = rank // PROCESSES_EACH
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
            "XDG_RUNTIME_DIR": str(self.runtime / f"{node}"),
            "DIESELFS_HOME": str(self.folder / "home"),
            "DIESELFS_SERVER": self.server.tcp,
            "DIESELFS_KEY_FILE": str(self.key_file),
            "DIESELFS_IDENTITY": str(self.server.settings().home / "identity"),
            "DIESELFS_JOB": "auto",
            "DIESELFS_JOB_NODE": f"node-{node}",
            "DIESELFS_JOB_HOST": "127.0.0.1",
            "DIESELFS_JOB_MEMORY": "256MiB",
            "RANK": f"{rank}",
            "WORLD_SIZE": f"{WORLD}",
            "LOCAL_WORLD_SIZE": f"{PROCESSES_EACH}",
            "GROUP_WORLD_SIZE": f"{NODES}",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
        }

    def program(self, rank: int) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=self.environment(rank),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def daemon(self, node: int) -> int | None:
        """The daemon of a node, which nobody here has started."""
        return next(iter(job_daemons(self.runtime / f"{node}").values()), None)

    def end_daemons(self) -> None:
        for node in range(NODES):
            end_job_daemons(self.runtime / f"{node}")

    def log(self) -> str:
        logs = (self.folder / ".local/state/dieselfs").glob("*.log")
        return "\n".join(log.read_text() for log in logs)


def given_bytes(server: RunningServer) -> int:
    """What the server has given of chunks, to whomever."""
    with closing(server.client()) as client:
        return client.status().metrics["payloads.sent_bytes"]


@pytest.fixture
def nodes(server: RunningServer, tmp_path: Path) -> Iterator[Nodes]:
    runtime = Path(tempfile.mkdtemp(prefix="job-"))  # paths of sockets are short
    for node in range(NODES):
        (runtime / f"{node}").mkdir(0o700)
    nodes = Nodes(server, tmp_path, runtime)
    try:
        yield nodes
    finally:
        nodes.end_daemons()
        shutil.rmtree(runtime)


@pytest.fixture
def programs(nodes: Nodes) -> Iterator[list[Program]]:
    with ExitStack() as stack:
        running = [stack.enter_context(nodes.program(rank)) for rank in range(WORLD)]
        try:
            programs = [Program(process) for process in running]
            for program in programs:
                program.figures()
            yield programs
        finally:
            for process in running:
                assert process.stdin is not None
                process.stdin.close()
                try:
                    process.wait(PATIENCE_S)
                except subprocess.TimeoutExpired:
                    process.kill()


def read_epoch(programs: list[Program], epoch: int) -> list[dict[str, int]]:
    for program in programs:
        program.begin(epoch)
    return [program.figures() for program in programs]


def test_each_chunk_leaves_the_server_once(nodes: Nodes, programs: list[Program]) -> None:
    first, second = read_epoch(programs, 0), read_epoch(programs, 1)
    for before, after in zip(first, second, strict=True):
        assert before["node_bytes"] > 0 and before["peer_bytes"] > 0
        assert before["server_bytes"] == after["server_bytes"], nodes.log()
    daemons = [nodes.daemon(node) for node in range(NODES)]
    assert None not in daemons and len(set(daemons)) == NODES
    by_themselves_bytes = sum(
        figures["server_bytes"] for figures in second
    )  # if they had to wait too long at first
    assert nodes.snapshot.chunk_count == CHUNKS, "enough for each node to own some"
    payload_bytes = int(nodes.snapshot.column("chunk_payload_lengths").sum(dtype="int64"))
    assert given_bytes(nodes.server) - nodes.given_bytes == payload_bytes + by_themselves_bytes


def test_a_daemon_that_is_killed_fails_no_read_and_is_started_again(
    nodes: Nodes, programs: list[Program]
) -> None:
    read_epoch(programs, 0)
    killed = nodes.daemon(0)
    assert killed is not None
    for program in programs:
        program.begin(1)
    os.kill(killed, signal.SIGKILL)
    assert all(program.figures()["failed_bytes"] == 0 for program in programs)
    epoch = 2
    while nodes.daemon(0) in (None, killed):  # whoever reads notices, and has it started
        read_epoch(programs, epoch)
        epoch += 1
        assert epoch < 1000
    read_epoch(programs, epoch)


def test_a_snapshot_that_the_servers_have_no_more_is_handed_to_the_daemon(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "1"}
    for name, value in {**nodes.environment(0), **alone}.items():
        monkeypatch.setenv(name, value)
    key_file = str(nodes.server.user("late", changing="read"))
    with (
        Dataset(nodes.server.settings(), "changing", must_exist=False) as writer,
        ExitStack() as stack,
    ):
        writer.put("first", b"1")
        writer.flush()
        data = stack.enter_context(dieselfs.connect("changing", key_file=key_file))
        generation, snapshot_file = data.generation, Path(data.snapshot.source)
        for number in range(2 * GENERATIONS_KEPT):
            writer.put(f"{number}", b"2")
            assert writer.flush() == writer.generation > generation
        snapshot_file.unlink()
        with (
            dieselfs.connect("changing", key_file=key_file, generation=generation, job="") as other,
            pytest.raises(NotFound),
        ):
            other.ls()
        assert data.get("first") == b"1"
        figures = data.statistics()
        assert (
            figures["job"]["nodes"] == 1
            and figures["requested"]["node_bytes"] > 0 == figures["requested"]["server_bytes"]
        ), nodes.log()


@pytest.mark.parametrize(
    ("dataset", "kept_bytes"), [(DATASET, FILE_BYTES), (SECRET, sealed_length(FILE_BYTES))]
)
def test_ranks_on_two_nodes_share_one_cache_of_samples(
    nodes: Nodes, tmp_path: Path, dataset: str, kept_bytes: int
) -> None:
    pytest.importorskip("torch", reason="the sampler is one of PyTorch")
    with ExitStack() as stack:
        running = []
        for rank in range(NODES):
            of_rank = {"RANK": f"{rank}", "WORLD_SIZE": f"{NODES}", "LOCAL_WORLD_SIZE": "1"}
            command = [sys.executable, "-c", SAMPLING, str(tmp_path / "group"), dataset]
            environment = nodes.environment(rank * PROCESSES_EACH) | of_rank
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            running.append(stack.enter_context(process))
            stack.callback(process.kill)
        first, second = (json.loads(process.communicate(timeout=PATIENCE_S)[0]) for process in running)
    kept = [*first["kept"], *second["kept"]]
    assert len(set(kept)) == len(kept) == first["cached"] == FILES // 4
    assert {*first["kept"].values(), *second["kept"].values()} == {kept_bytes}
    for rank in (first, second):
        assert rank["reads"] == FILES // 2 > rank["hits"] > rank["from_peers"] > rank["hits"] // 4
