"""The benchmark of a job's memory: what it makes of what was read, and once, small, the job itself."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from bench.harness.figures import Run, RunFailed
from bench.harness.forms import SMALL_FILE_BYTES, SourceTree
from bench.harness.readers import Reader, read_together
from bench.jobs.pool import JOB, JOB_SMALL, Way, read_trial
from bench.jobs.pool_hosts import (
    RunningJob,
    Stage,
    library_plan,
    library_reads,
    on_host,
    running_job,
    running_stage,
)
from bench.jobs.pool_rivals import MEMCACHED, RedisCache, running_fleet
from dieselfs.limits import MIB
from lab.network import Host, Unsuitable

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded.*:DeprecationWarning"  # the clock of pytest-timeout is a thread; readers never see it
)

FILES = 3_000
MEMORY_BYTES = 256 * MIB


def test_each_node_reads_its_share_of_the_files_of_a_side(tmp_path: Path) -> None:
    asked: list[Sequence[str]] = []

    def ask(host: Host, share: Sequence[str]) -> Reader:
        asked.append(share)
        return lambda: lambda: len(share)

    stage = Stage(SourceTree(tmp_path, 8, 4096), cast(Any, None), [cast(Any, None)] * 2, cast(Any, None))
    paths = stage.tree.paths()
    ways = {JOB: Way(paths, ask), JOB_SMALL: Way(paths[:2], ask)}
    trial = read_trial(stage, "one by one", ways, 3)
    assert asked == [paths[::2], paths[1::2], paths[:1], paths[1:2]]
    assert [(side.name, side.amount) for side in trial.sides] == [(JOB, 8), (JOB_SMALL, 2)]
    assert trial.title == "2 nodes, 8 files of 4,096 bytes, one by one"
    assert trial.base == MEMCACHED


def test_what_a_rival_lacks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)
    host = cast(Host, None)
    with (
        running_fleet(MEMCACHED, [host], MEMORY_BYTES) as fleet,
        pytest.raises(RunFailed, match=r"there is no memcached \(apt-get install memcached\)"),
    ):
        fleet.open(host)


def test_a_key_is_asked_for_where_it_was_set() -> None:
    class Client:
        def __init__(self) -> None:
            self.held: dict[str, bytes] = {}
            self.mset = self.held.update
            self.get = self.held.get

        def mget(self, paths: Sequence[str]) -> list[bytes]:
            return [self.held[path] for path in paths]

    cache = RedisCache(["10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"])
    clients = [Client() for _ in range(3)]
    cache._clients = clients
    contents = {f"n{number}.jpg": b"%d" % number for number in range(100)}
    cache.set_many(contents)
    assert cache.get_many([*contents]) == contents
    assert all(cache.get(path) == content for path, content in contents.items())
    assert all(0 < len(client.held) < 100 for client in clients)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningJob]:
    with ExitStack() as stack:
        try:
            stage = stack.enter_context(
                running_stage(SourceTree(tmp_path_factory.mktemp("pool"), FILES, SMALL_FILE_BYTES), 2)
            )
        except Unsuitable as reason:
            pytest.skip(str(reason))
        yield stack.enter_context(running_job(stage, MEMORY_BYTES))


def test_a_job_is_loaded_and_each_way_reads_every_file_once_without_the_server(job: RunningJob) -> None:
    run = job.load()
    assert isinstance(run, Run) and run.duration_s > 0 and [*run.parts] == ["daemons", "server"]
    paths = job.stage.tree.paths()
    shares = [paths[:1000], paths[1000:]]
    ways: list[list[Reader]] = [
        [partial(library_reads, job, 32 * MIB, 1, False, share[:50]) for share in shares],
        [partial(library_reads, job, MEMORY_BYTES, 256, True, share) for share in shares],
        [partial(library_plan, job, 256, rank, 2) for rank in range(2)],
    ]
    for readers, files in zip(ways, (100, FILES, FILES), strict=True):
        there = [
            partial(on_host, host, reader) for host, reader in zip(job.stage.hosts, readers, strict=True)
        ]
        assert read_together(there, files).duration_s > 0
