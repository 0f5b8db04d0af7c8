"""Snapshots: building, fetching, opening one, and asking it for paths in random order, in one process."""

import random
from collections.abc import Generator
from pathlib import Path

from bench.figures import Aim, Quantity, Run, Side, Trial
from bench.homes import Home, running_home, upload_entries
from bench.scale import Scale
from bench.stopwatch import measure
from dieselfs.meta.snapshot import Snapshot

OPEN_AIM = Aim(Quantity.DURATION_S, 0.050)
STAT_AIM = Aim(Quantity.RATE, 500_000)
ENTRIES_PER_FOLDER = 1280
BATCH_PATHS = 256
_SEED = 7
_OPENS = 20


def snapshot(folder: Path, scale: Scale) -> Generator[Trial]:
    with running_home(folder / "home") as home:
        upload_entries(home, scale.entries, ENTRIES_PER_FOLDER)
        fetched = [_fetch(home, scale.entries)]
        with home.dataset() as dataset:
            path = Path(dataset.snapshot.source)
        size_mb = path.stat().st_size / 1e6
        title = f"Snapshot of {scale.entries:,} files ({size_mb:.0f} MB)"
        amounts = (scale.entries, "entries")
        yield Trial(title, [Side("built by the server, sent, verified", fetched.pop, *amounts)], 1)
        yield Trial(
            title,
            [
                Side("opened", lambda: _open(path), 1, "opens", aim=OPEN_AIM),
                Side("verified", lambda: measure(Snapshot.open(path).verify), *amounts),
            ],
            scale.rounds,
        )
        yield Trial(title, _questions(Snapshot.open(path)), scale.rounds)


def _fetch(home: Home, entries: int) -> Run:
    with home.dataset() as dataset:
        run = measure(lambda: dataset.snapshot, {"server": home.server_process()})
        assert dataset.snapshot.header.files == entries
        return run


def _open(path: Path) -> Run:
    """The mean of some; each is a new object over a file that is in the page cache."""
    return Run(measure(lambda: [Snapshot.open(path) for _ in range(_OPENS)]).duration_s / _OPENS)


def _questions(opened: Snapshot) -> list[Side]:
    folders = [node for node in range(len(opened)) if opened.mode(node) & 0o040000]
    paths = [opened.path(node) for node in opened.walk() if not opened.mode(node) & 0o040000]
    random.Random(_SEED).shuffle(paths)
    batches = [paths[first : first + BATCH_PATHS] for first in range(0, len(paths), BATCH_PATHS)]
    amounts = (len(paths), "stat")

    def stat_each() -> None:
        find, stat = opened.find, opened.stat
        for path in paths:
            stat(find(path))

    def list_folders() -> None:
        for folder in folders:
            for node in opened.children(folder):
                opened.name(node)

    return [
        Side("stat, one path a call", lambda: measure(stat_each), *amounts, aim=STAT_AIM),
        Side(
            f"stat, {BATCH_PATHS} paths a call",
            lambda: measure(lambda: [opened.stat_many(batch) for batch in batches]),
            *amounts,
        ),
        Side("stat, all in one call", lambda: measure(lambda: opened.stat_many(paths)), *amounts),
        Side("names of all folders", lambda: measure(list_folders), len(opened) - 1, "names"),
    ]
