"""What it costs to look at a mount: reading with and without a scraper, and one request for its metrics.

A scraper, in a process of its own, asks as Prometheus does through `dlcmd metrics --listen`: each second, as `dlcmd
top` would, or every 15 s. The files are small and read cold, in the order of plans, so the daemon has most to do. This
module starts processes.
"""

import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.request import Request, urlopen

from bench.harness.figures import Row, Run, RunFailed, Scale, Side, Trial
from bench.harness.forms import (
    SMALL_FILE_BYTES,
    Home,
    SourceTree,
    drop_caches,
    make_tree,
    mounted,
    running_home,
    store_tree,
)
from bench.harness.readers import ForkedProcess, planned_reader, read_together
from bench.harness.stopwatch import processor_s, spent_since
from bench.mounts.idle import SETTLE_S
from dieselfs.net.address import TcpAddress
from dieselfs.telemetry.http import serving
from dieselfs.telemetry.socket import published

INTERVALS_S = {"not scraped": None, "every 15 s": 15.0, "every second": 1.0}
PASSES, QUICK_PASSES = 3, 1
"""Epochs of a run, each cold."""
SEED, GROUP_CHUNKS = 1, 4
REQUESTS, QUICK_REQUESTS = 1000, 200
IDLE_S, QUICK_IDLE_S = 60.0, 5.0
SCRAPE_TIMEOUT_S = 10.0
_OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}


def metrics(folder: Path, scale: Scale) -> Generator[Trial | Iterator[Row]]:
    tree = make_tree(folder / "source", scale.small_files, SMALL_FILE_BYTES)
    with _own_runtime(folder / "run"), running_home(folder / "home") as home:
        store_tree(home, tree.folder, tree.size_bytes)
        yield _reading(home, tree, folder / "mount", scale)
        yield _costs(home, folder / "mount", scale)


@contextmanager
def _own_runtime(folder: Path) -> Iterator[None]:
    """So that only the daemons of the benchmark are asked."""
    folder.mkdir(mode=0o700)
    before = os.environ.get("XDG_RUNTIME_DIR")
    os.environ["XDG_RUNTIME_DIR"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["XDG_RUNTIME_DIR"]
        else:
            os.environ["XDG_RUNTIME_DIR"] = before


# -- reading ----------------------------------------------------------------------------------------------


def _reading(home: Home, tree: SourceTree, place: Path, scale: Scale) -> Trial:
    passes = QUICK_PASSES if scale.is_quick else PASSES
    files = passes * tree.files
    sides = [
        Side(
            name,
            partial(_read, home, tree, place, passes, interval_s),
            files,
            "files",
            files * tree.file_bytes,
        )
        for name, interval_s in INTERVALS_S.items()
    ]
    return Trial(f"{tree.title}, planned, cold, {passes} times", sides, scale.rounds, sides[0].name)


def _read(home: Home, tree: SourceTree, place: Path, passes: int, interval_s: float | None) -> Run:
    """With a new mount. Raises RunFailed."""
    home.stop_server()
    with mounted(home, place) as mount:
        processes = {"mount": [mount], "server": [home.server_process()]}
        if interval_s is None:
            return _epochs(tree, place, passes, processes)
        with closing(ForkedProcess(partial(_scrape, interval_s))) as scraper:
            scraper.receive(SCRAPE_TIMEOUT_S)  # it has asked once
            run = _epochs(tree, place, passes, {**processes, "scraper": [scraper.pid]})
            scraper.pipe.send(None)
            return replace(run, seen={**run.seen, "scrapes": scraper.receive(SCRAPE_TIMEOUT_S)})


def _epochs(tree: SourceTree, place: Path, passes: int, processes: Mapping[str, list[int]]) -> Run:
    """The sum of the passes."""
    duration_s, parts = 0.0, dict[str, float]()
    for epoch in range(passes):
        drop_caches()
        plan = f"seed={SEED},epoch={epoch},group={GROUP_CHUNKS}"
        run = read_together([partial(planned_reader, place, plan, tree.file_bytes)], tree.files, processes)
        duration_s += run.duration_s
        for name, spent_s in run.parts.items():
            parts[name] = parts.get(name, 0.0) + spent_s
    return Run(duration_s, parts, {"mount ms a second": 1000 * parts["mount"] / duration_s})


def _scrape(interval_s: float, pipe: Connection) -> None:
    """Ask at intervals until a message comes; report the number of answers."""
    with serving(TcpAddress("127.0.0.1", 0), lambda: [report for _, report in published()]) as url:
        _ask(url)
        pipe.send(None)
        count = 0
        while not pipe.poll(interval_s):
            _ask(url)
            count += 1
        pipe.send(count)


def _ask(url: str) -> None:
    with urlopen(Request(url, headers=_OPENMETRICS), timeout=SCRAPE_TIMEOUT_S) as answer:
        if b'component="mount"' not in answer.read():
            raise RunFailed("the mount gives no metrics")


# -- one request --------------------------------------------------------------------------------------------


def _costs(home: Home, place: Path, scale: Scale) -> Iterator[Row]:
    """Processor time of a mount that nobody reads: by itself, with the sample of its history each second, and for a
    request.
    """
    requests = QUICK_REQUESTS if scale.is_quick else REQUESTS
    idle_s = QUICK_IDLE_S if scale.is_quick else IDLE_S

    def ask() -> None:
        for _ in range(requests):
            assert any(report.about["component"] == "mount" for _, report in published())

    with mounted(home, place) as mount:
        time.sleep(SETTLE_S)
        by_itself_s = _spent_s(mount, lambda: time.sleep(idle_s)) / idle_s
        yield _row("by itself, a second", by_itself_s)
        began_s = time.perf_counter()
        asked_s = _spent_s(mount, ask) - by_itself_s * (time.perf_counter() - began_s)
        yield _row("a request", asked_s / requests)


def _spent_s(mount: int, work: Callable[[], object]) -> float:
    processes = {"mount": [mount]}
    before = processor_s(processes)
    work()
    return spent_since(before, processes)["mount"]


def _row(what: str, spent_s: float) -> Row:
    return {"a mount that nobody reads": what, "processor ms": (1000 * spent_s, "{:.2f}")}
