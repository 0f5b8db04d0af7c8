"""Building, fetching and opening a snapshot, and lookups in random order, in one process."""

import random
from collections.abc import Generator
from pathlib import Path

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import Home, running_home, store_entries
from bench.harness.stopwatch import measure
from dieselfs.snapshot.reader import Snapshot

_SEED = 7
_OPENS = 20


def snapshot(folder: Path, scale: Scale) -> Generator[Trial]:
    with running_home(folder / "home") as home:
        store_entries(home, scale.entries)
        fetched = _fetch(home, scale.entries)
        with home.dataset() as dataset:
            path = Path(dataset.snapshot.source)
    title = f"Snapshot of {scale.entries:,} files ({path.stat().st_size / 1e6:.0f} MB)"
    built = Side("built by the server, sent, verified", lambda: fetched, scale.entries, "entries")
    yield Trial(title, [built], 1)
    verify = Side("verified", lambda: measure(Snapshot.open(path).verify), scale.entries, "entries")
    yield Trial(title, [Side("opened", lambda: _open(path), 1, "opens"), verify], scale.rounds)
    yield Trial(title, _lookups(Snapshot.open(path)), scale.rounds)


def _fetch(home: Home, entries: int) -> Run:
    with home.dataset() as dataset:
        run = measure(lambda: dataset.snapshot, {"server": [home.server_process()]})
        assert dataset.snapshot.header.files == entries
        return run


def _open(path: Path) -> Run:
    """The mean of _OPENS new objects, over a file in the page cache."""
    return Run(measure(lambda: [Snapshot.open(path) for _ in range(_OPENS)]).duration_s / _OPENS)


def _lookups(opened: Snapshot) -> list[Side]:
    folders = [node for node in range(len(opened)) if opened.stat(node).is_folder]
    paths = [opened.path(node) for node in opened.walk() if not opened.stat(node).is_folder]
    random.Random(_SEED).shuffle(paths)

    def stat_each() -> None:
        find, stat = opened.find, opened.stat
        for path in paths:
            stat(find(path))

    def list_folders() -> None:
        for folder in folders:
            for node in opened.children(folder):
                opened.name(node)

    return [
        Side("stat, one path a call", lambda: measure(stat_each), len(paths), "stat"),
        Side("names of all folders", lambda: measure(list_folders), len(opened) - 1, "names"),
    ]
