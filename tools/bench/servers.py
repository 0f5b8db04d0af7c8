"""Several servers: metadata requests a second of many clients, with one, two and three server processes over one store.

Clients and servers share this machine's processors; on a cluster each would have its own. This module starts processes.
"""

import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Run, Side, Trial
from bench.scale import Scale
from bench.stopwatch import measure
from dieselfs.config import Settings
from dieselfs.dataset import Dataset
from dieselfs.rpc.client import ServerClient

SERVERS = 3
CLIENTS = 6
"""So many that one, two and three servers each get the same share."""
DATASET = "bench"
FILES = 1000
VERSIONS = 256
"""Reserved by one request: as many as a chunk of files of 16 KiB has entries."""
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
_POLL_S = 0.01

_forks = multiprocessing.get_context("fork")


def servers(folder: Path, scale: Scale) -> Generator[Trial]:
    yield from _trials(folder / "sqlite", f"sqlite://{folder}/sqlite/metadata.db", "SQLite", scale)
    if shutil.which("redis-server"):
        with _running_redis(folder) as url:
            yield from _trials(folder / "redis", url, "Redis", scale)


def _trials(folder: Path, metadata: str, title: str, scale: Scale) -> Iterator[Trial]:
    folder.mkdir()
    with ExitStack() as stack:
        running = [stack.enter_context(_running(folder, str(n + 1), metadata)) for n in range(SERVERS)]
        with Dataset(_settings(running[:1], folder), DATASET, is_created=False) as dataset:
            for number in range(FILES):
                dataset.put(f"folder/{number}", b"content")
        for name, work in (("stat of a file", _stat), (f"{VERSIONS} versions reserved", _reserve)):
            sides = [_side(running[:count], folder, work, scale.requests) for count in range(1, SERVERS + 1)]
            yield Trial(f"{title}: {name}, {CLIENTS} clients", sides, scale.rounds, base=sides[0].name)


@dataclass(frozen=True, slots=True)
class _Server:
    process: int
    address: str


Work = Callable[[ServerClient, int], object]


def _stat(client: ServerClient, number: int) -> object:
    return client.stat(DATASET, b"folder/%d" % (number % FILES))


def _reserve(client: ServerClient, _: int) -> object:
    return client.reserve_versions(DATASET, VERSIONS)


def _settings(running: list[_Server], folder: Path) -> Settings:
    return Settings(folder, folder / "cache", ",".join(server.address for server in running))


def _side(running: list[_Server], folder: Path, work: Work, requests: int) -> Side:
    settings = _settings(running, folder)
    processes = {f"server {number}": server.process for number, server in enumerate(running, 1)}
    name = f"{len(running)} server{'s' if len(running) > 1 else ''}"
    return Side(name, lambda: _run(settings, work, requests // CLIENTS, processes), requests, "requests")


def _run(settings: Settings, work: Work, requests: int, processes: Mapping[str, int]) -> Run:
    """Let all clients connect, then set them going at once."""
    barrier = _forks.Barrier(CLIENTS + 1)
    clients = [
        _forks.Process(target=_ask, args=(settings, n, work, requests, barrier)) for n in range(CLIENTS)
    ]
    for client in clients:
        client.start()
    barrier.wait(START_TIMEOUT_S)
    run = measure(lambda: _wait(clients), processes)
    assert all(client.exitcode == 0 for client in clients), "a client failed"
    return run


def _wait(clients: Iterable[multiprocessing.process.BaseProcess]) -> None:
    for client in clients:
        client.join()


def _ask(
    settings: Settings, start: int, work: Work, requests: int, barrier: "multiprocessing.synchronize.Barrier"
) -> None:
    client = ServerClient(settings, start)
    work(client, 0)
    barrier.wait(START_TIMEOUT_S)
    for number in range(requests):
        work(client, start * requests + number)
    client.close()


@contextmanager
def _running(folder: Path, name: str, metadata: str) -> Iterator[_Server]:
    path = folder / f"{name}.sock"
    command = [
        *(sys.executable, "-m", "dieselfs_server.main", "--listen", f"unix:{path}"),
        *("--store", f"posix://{folder}/chunks", "--metadata", metadata, "--state", str(folder / name)),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    with _started(command, path, folder / f"{name}.log", environment) as process:
        yield _Server(process, f"unix:{path}")


@contextmanager
def _running_redis(folder: Path) -> Iterator[str]:
    path = folder / "redis.sock"
    command = ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(folder)]
    with _started(command, path, folder / "redis.log", dict(os.environ)):
        yield f"redis+unix://{path}"


@contextmanager
def _started(command: list[str], path: Path, log: Path, environment: dict[str, str]) -> Iterator[int]:
    """A program that listens on the Unix socket `path`, stopped in the end."""
    with open(log, "wb") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment
        )
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not _listens(path):
            assert process.poll() is None and time.monotonic() < deadline_s, log.read_text()
            time.sleep(_POLL_S)
        yield process.pid
    finally:
        process.terminate()
        process.wait(STOP_TIMEOUT_S)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0
