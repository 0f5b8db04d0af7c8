"""Metadata requests a second of several clients, with one, three and five server processes over one store.

Clients and servers share this machine's processors. This module starts processes.
"""

import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.readers import Work, read_together
from dieselfs.dataset import Dataset
from dieselfs.rpc.client import ServerClient
from dieselfs.settings import Settings
from lab.redis_process import running_redis
from lab.server import RunningServer, running_servers

COUNTS = (1, 3, 5)
NAMES = {count: f"{count} server{'s' if count > 1 else ''}" for count in COUNTS}
CLIENTS = 15
"""Divisible by each number of servers."""
DATASET = "bench"
FILES = 1000
VERSIONS = 256
"""In one request: the entries of a chunk of files of 16 KiB."""

Ask = Callable[[ServerClient, int], object]
ASKING: dict[str, Ask] = {
    "stat of a file": lambda client, number: client.stat(DATASET, b"folder/%d" % (number % FILES)),
    f"{VERSIONS} versions reserved": lambda client, _: client.reserve_versions(DATASET, VERSIONS),
}


def servers(folder: Path, scale: Scale) -> Generator[Trial]:
    yield from _trials(folder / "sqlite", [], "SQLite", scale)
    if shutil.which("redis-server"):
        with running_redis(folder / "redis-data") as redis:
            options = ["--metadata", f"redis://127.0.0.1:{redis.port}/0"]
            yield from _trials(folder / "redis", options, "Redis", scale)


def _trials(folder: Path, options: Sequence[str], title: str, scale: Scale) -> Iterator[Trial]:
    titles = {what: f"{title}: {what}, {CLIENTS} clients" for what in ASKING}
    if not any(map(scale.wants, titles.values())):
        return
    requests = scale.requests // CLIENTS
    with running_servers(folder, map(str, range(COUNTS[-1])), options) as running:
        with Dataset(_settings(running[:1], folder), DATASET, must_exist=False) as dataset:
            for number in range(FILES):
                dataset.put(f"folder/{number}", b"content")
        for what, ask in ASKING.items():
            sides = []
            for count, name in NAMES.items():
                settings = _settings(running[:count], folder)
                clients = [partial(_client, settings, number, ask, requests) for number in range(CLIENTS)]
                processes = {"servers": [each.process.pid for each in running[:count]]}
                run: Callable[[], Run] = partial(read_together, clients, requests * CLIENTS, processes)
                sides.append(Side(name, run, requests * CLIENTS, "requests"))
            yield Trial(titles[what], sides, scale.rounds, base=NAMES[1])


def _settings(running: Sequence[RunningServer], folder: Path) -> Settings:
    return Settings(folder, folder / "cache", ",".join(server.unix for server in running))


def _client(settings: Settings, start: int, ask: Ask, requests: int) -> Work:
    client = ServerClient(settings, start)
    ask(client, 0)  # connects

    def ask_all() -> int:
        for number in range(requests):
            ask(client, start * requests + number)
        return requests

    return ask_all
