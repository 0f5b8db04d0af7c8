"""Daemons of a job in one process, over a real server: masters, those attached, and who comes after a master."""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest
import trio

from dieselfs.cluster import node_client
from dieselfs.cluster.job import Job
from dieselfs.cluster.node_client import NodeClient
from dieselfs.cluster.secret import JobSecret, read_secret_file
from dieselfs.dataset import Dataset
from dieselfs.errors import AlreadyExists
from dieselfs.limits import JOB_GATHER_TIMEOUT_S, MASTER_SILENCE_S, MIB
from dieselfs.process.state_dirs import runtime_folder
from dieselfs.settings.table import CacheOptions
from dieselfs.sources.interface import Slices
from dieselfs.sources.server import ServerSource, is_intact
from dieselfs_client.cluster.node_paths import lock_of, path_of
from dieselfs_client.cluster.pool import PoolConfig, PoolHost
from dieselfs_client.cluster.role import JobRole
from dieselfs_client.daemon import cache_daemons
from tests.support.server import RunningServer, running_server
from tests.support.small_chunks import store

TERMS = PoolConfig(
    Job("train", 0, 8, "node-0"), JobSecret(bytes(32)), nodes=1, host="127.0.0.1", memory_bytes=64 * MIB
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        with Dataset(server.settings(), "parts", must_exist=False) as data:
            store(data, tmp_path_factory.mktemp("files"))
        yield server


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a machine of its own, with a short path."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return runtime_folder()


@dataclass
class Daemon:
    """One that takes part. It ends when it is told to, or when the job refuses it."""

    data: Dataset
    part: JobRole
    nursery: trio.Nursery
    has_ended: trio.Event

    async def read_all(self) -> None:
        """Every chunk, checked."""
        for chunk in range(self.data.snapshot.chunk_count):
            node_cache = self.part.node_cache
            payload = None if node_cache is None else await node_cache.read(chunk)
            if payload is None:
                fetched = await trio.to_thread.run_sync(self.part.source.fetch_chunk, chunk)
                payload = memoryview(fetched)
            assert is_intact(self.data.snapshot, chunk, Slices.of_payload(payload))

    @property
    def is_master(self) -> bool:
        return bool(self.part.metrics.as_dict()["job"]["is_master"])

    async def end(self) -> None:
        self.nursery.cancel_scope.cancel()
        await self.has_ended.wait()


class Machine:
    """Daemons, all on one machine."""

    def __init__(self, server: RunningServer, nursery: trio.Nursery) -> None:
        self._server = server
        self._nursery = nursery

    async def start(self, terms: PoolConfig, silence_s: float = MASTER_SILENCE_S) -> Daemon:
        daemon: Daemon = await self._nursery.start(self._run, terms, silence_s)
        return daemon

    async def _run(
        self, terms: PoolConfig, silence_s: float, *, task_status: trio.TaskStatus[Daemon]
    ) -> None:
        ended = trio.Event()
        with Dataset(self._server.settings(), "parts") as data:
            try:
                async with trio.open_nursery() as nursery:
                    lock = lock_of(data.snapshot, terms)
                    part = JobRole(
                        ServerSource(data.client, data.snapshot),
                        data.client,
                        terms,
                        lock,
                        PoolHost(nursery),
                        silence_s,
                    )
                    part.start()
                    task_status.started(Daemon(data, part, nursery, ended))
            finally:
                ended.set()


@asynccontextmanager
async def machine(server: RunningServer) -> AsyncIterator[Machine]:
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            yield Machine(server, nursery)
            nursery.cancel_scope.cancel()


def loads(*daemons: Daemon) -> int:
    """Chunks that left the server for these."""
    stats = [daemon.part.metrics.as_dict() for daemon in daemons]
    fetched: int = sum(each["node_cache"]["fetched_chunks"] for each in stats if each["job"]["is_master"])
    requested: int = sum(each["requested"]["from_servers"] for each in stats)
    return fetched + requested


def in_rank(rank: int, terms: PoolConfig = TERMS) -> PoolConfig:
    return replace(terms, job=replace(terms.job, rank=rank))


async def test_the_second_daemon_of_a_node_gets_its_bytes_from_the_first(
    server: RunningServer, runtime: Path
) -> None:
    async with machine(server) as node:
        first, second = await node.start(in_rank(3)), await node.start(in_rank(1))
        await second.part.gathered.wait()
        assert first.is_master and not second.is_master
        chunks = first.data.snapshot.chunk_count
        for daemon in (second, first, second):
            await daemon.read_all()
        assert loads(first, second) == chunks
        stats = second.part.metrics.as_dict()
        assert stats["job"]["members"] == first.part.metrics.as_dict()["job"]["members"] == ["node-0"]
        assert stats["requested"]["from_node"] == stats["requested"]["extents"] == 2 * chunks
        assert first.part.metrics.as_dict()["job"]["attached"] > 0
        assert runtime.stat().st_mode & 0o777 == 0o700
        assert {each.stat().st_mode & 0o777 for each in runtime.iterdir()} == {0o600}
        assert {each.suffix for each in runtime.iterdir()} == {".sock", ".job"}
    assert list(runtime.iterdir()) == []


async def test_what_is_read_before_there_is_a_master_to_attach_to_is_counted(server: RunningServer) -> None:
    async with machine(server) as node:
        with (
            Dataset(server.settings(), "parts") as data,
            closing(lock_of(data.snapshot, TERMS)) as lock,
        ):
            assert lock.try_lead()
            daemon = await node.start(in_rank(1))
            await daemon.read_all()
            asked = daemon.part.metrics.as_dict()["requested"]
            assert not daemon.is_master and asked["server_bytes"] == asked["bytes"] > 0
            assert asked["from_servers"] == asked["extents"] == data.snapshot.chunk_count


async def test_when_the_master_goes_the_next_rank_takes_its_place_and_reads_go_on(
    server: RunningServer,
) -> None:
    async with machine(server) as node:
        master = await node.start(in_rank(0))
        late, heir = await node.start(in_rank(2)), await node.start(in_rank(1))
        for daemon in (late, heir):
            await daemon.part.gathered.wait()
        is_over = False

        async def read(daemon: Daemon) -> None:
            while not is_over:
                await daemon.read_all()

        async with trio.open_nursery() as readers:
            for daemon in (late, heir):
                readers.start_soon(read, daemon)
            await master.end()
            while not heir.is_master:
                await trio.sleep(0.01)
            is_over = True
        assert not late.is_master
        for daemon in (heir, late):
            await daemon.read_all()
            asked = daemon.part.metrics.as_dict()["requested"]
            assert asked["failed"] == 0
            assert asked["extents"] == asked["from_node"] + asked["from_peers"] + asked["from_servers"]
        again = await node.start(in_rank(0))
        await again.part.gathered.wait()
        assert not again.is_master, "the chunks are in the memory of another"


async def test_a_master_that_is_stopped_is_killed_and_the_next_takes_its_place(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("0123456789abcdef" * 4)
    options = CacheOptions(
        TERMS.job.name, 1, TERMS.job.node, 0, TERMS.host, str(secret), server.unix, memory_bytes=64 * MIB
    )
    terms = in_rank(1, replace(TERMS, secret=read_secret_file(secret)))
    start = partial(cache_daemons.start_cache, "parts", options)
    stopped = await trio.to_thread.run_sync(start)
    try:
        async with machine(server) as node:
            heir = await node.start(terms, silence_s=1.0)
            await heir.part.gathered.wait()
            await heir.read_all()
            stats = heir.part.metrics.as_dict()
            assert (
                stats["requested"]["from_node"] == stats["requested"]["extents"]
                and stats["job"]["master_silent_s"] == 0
            )
            os.kill(stopped, signal.SIGSTOP)
            monkeypatch.setattr(node_client, "NODE_HELLO_TIMEOUT_S", 0.1)
            while not heir.is_master:
                await trio.sleep(0.01)
            assert f"process {stopped}, has not answered for" in caplog.text
            await heir.read_all()
            assert heir.part.metrics.as_dict()["requested"]["failed"] == 0
    finally:
        with suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGKILL)


async def test_whoever_takes_over_does_not_wait_for_nodes_that_are_gone(server: RunningServer) -> None:
    async with machine(server) as both:
        two = replace(TERMS, nodes=2)
        other = replace(two, job=replace(TERMS.job, node="node-1"))
        away, master = await both.start(other), await both.start(two)
        await master.part.gathered.wait()
        heir = await both.start(in_rank(1, two))
        await heir.part.gathered.wait()
        for daemon in (away, master):
            await daemon.end()
        node = NodeClient(path_of(heir.data.snapshot, two), heir.data.snapshot.digest, clock=count().__next__)
        with trio.fail_after(JOB_GATHER_TIMEOUT_S / 2):
            while (told := await trio.to_thread.run_sync(node.members)) is None:
                await trio.sleep(0.01)
        assert told.members is not None and [member.node for member in told.members] == ["node-0"]
        node.close()


async def test_nodes_share_whichever_of_their_daemons_asks(server: RunningServer) -> None:
    async with machine(server) as both:
        terms = [
            replace(TERMS, nodes=2, job=replace(TERMS.job, node=node, rank=rank))
            for rank, node in enumerate(["node-0", "node-1"] * 2)
        ]
        daemons = [await both.start(each) for each in terms]
        for daemon in daemons:
            await daemon.part.gathered.wait()
        assert [daemon.is_master for daemon in daemons] == [True, True, False, False]
        for daemon in daemons:
            await daemon.read_all()
        assert loads(*daemons) == daemons[0].data.snapshot.chunk_count
        for daemon in daemons:
            stats = daemon.part.metrics.as_dict()
            assert stats["job"]["members"] == ["node-0", "node-1"]
            assert stats["requested"]["from_peers"] > 0 and stats["requested"]["from_servers"] == 0


@pytest.mark.parametrize("other", ["name", "secret"])
async def test_jobs_on_one_node_have_nothing_in_common(
    server: RunningServer, runtime: Path, other: str
) -> None:
    theirs = replace(TERMS, job=replace(TERMS.job, name="other"))
    if other == "secret":
        theirs = replace(TERMS, secret=JobSecret(b"s" * 32))
    async with machine(server) as node:
        ours_first, theirs_first = await node.start(TERMS), await node.start(theirs)
        ours_next, theirs_next = await node.start(in_rank(1)), await node.start(in_rank(1, theirs))
        daemons = (ours_first, theirs_first, ours_next, theirs_next)
        for daemon in daemons:
            await daemon.part.gathered.wait()
        assert [daemon.is_master for daemon in daemons] == [True, True, False, False]
        assert len(list(runtime.iterdir())) == 4, "a socket and a lock for each"
        await ours_first.read_all()
        await ours_next.read_all()
        chunks = ours_first.data.snapshot.chunk_count
        assert loads(ours_first, ours_next) == chunks
        assert loads(theirs_first) == 0 == theirs_first.part.metrics.as_dict()["served"]["requests"]
        assert theirs_first.part.metrics.as_dict()["job"]["members"] == ["node-0"]
        await theirs_next.read_all()
        assert loads(theirs_first, theirs_next) == chunks
        await ours_first.end()
        await theirs_next.read_all()
        assert not theirs_next.is_master and loads(theirs_first, theirs_next) == chunks


async def test_of_two_machines_with_one_name_the_first_is_out_until_the_other_goes(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine(server) as machines:
        first = await machines.start(TERMS)
        await first.part.gathered.wait()
        while not first.part.metrics.as_dict()["membership"]["answered"]:
            await trio.sleep(0.01)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "other"))
        second = await machines.start(TERMS)
        assert second.is_master
        while "new master" not in first.part.metrics.as_dict()["membership"]["out"]:
            await trio.sleep(0.01)
        await second.read_all()
        await first.read_all()
        await second.end()
        while first.part.metrics.as_dict()["membership"]["out"]:
            await trio.sleep(0.01)
        await first.read_all()
        assert first.part.refusal is None


async def test_a_daemon_that_the_job_refuses_ends_and_says_why(server: RunningServer) -> None:
    async with machine(server) as node:
        await (await node.start(TERMS)).part.gathered.wait()
        with Dataset(server.settings(), "parts") as data:
            data.put("more", b"of another generation")
        other = await node.start(replace(TERMS, job=replace(TERMS.job, node="node-1")))
        await other.has_ended.wait()
        assert isinstance(other.part.refusal, AlreadyExists)
        assert "generation" in str(other.part.refusal)
