"""An epoch by importance through a mount that holds half of the dataset, with and without prefetching of its order.

Both sides read the same files in the same order, from new mounts, the kernel's caches dropped. Without prefetching, the
list is read from another mount, so the one whose files are read knows no plan. Losses are random. This module reads
and writes files.
"""

import json
import random
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import Home, SourceTree, drop_caches, make_tree, mounted, running_home, store_tree
from bench.harness.readers import Work, plain_reader, read_together
from dieselfs.limits import MIB
from dieselfs.settings.table import IMAGE, OVERLAY

FILES, QUICK_FILES, FILE_BYTES = 4000, 800, 110_000
READERS = 2
MEMORY_SHARE = 0.5


def importance_mount(folder: Path, scale: Scale) -> Generator[Trial]:
    tree = make_tree(folder / "source", QUICK_FILES if scale.is_quick else FILES, FILE_BYTES)
    with running_home(folder / "home") as home:
        store_tree(home, tree.folder, tree.size_bytes)
        for view in (IMAGE, OVERLAY):
            runs = count()
            sides = [
                Side(
                    name,
                    partial(_run, home, tree, folder, view, is_prefetched, runs),
                    tree.files,
                    "files",
                    tree.size_bytes,
                )
                for name, is_prefetched in (("not prefetched", False), ("prefetched", True))
            ]
            title = f"an epoch by importance, {tree.title}, memory for {MEMORY_SHARE:.0%}, view {view}"
            yield Trial(title, sides, scale.rounds, sides[0].name)


def _run(
    home: Home, tree: SourceTree, folder: Path, view: str, is_prefetched: bool, runs: "count[int]"
) -> Run:
    memory_bytes = max(int(tree.size_bytes * MEMORY_SHARE), 32 * MIB)
    place, other = folder / f"read-{next(runs)}", folder / "listed"
    with ExitStack() as stack:
        stack.enter_context(mounted(home, place, view=view, memory_bytes=memory_bytes))
        lists = place
        if not is_prefetched:
            stack.enter_context(mounted(home, other, view=view, memory_bytes=memory_bytes))
            lists = other
        chance = random.Random(1)
        with open(lists / ".dieselfs/scores", "w") as scores:
            scores.writelines(f"{chance.random()} {path}\n" for path in tree.paths())
            scores.write("\n")
        drop_caches()
        readers = [partial(_reader, lists, place, rank) for rank in range(READERS)]
        done = read_together(readers, tree.files)
        fetches = json.loads((place / ".dieselfs/stats").read_bytes())["fetches"]
    fetched = sum(fetches[f"{what}_bytes"] for what in ("chunk", "range", "block")) / tree.size_bytes
    return replace(done, seen={"fetched": fetched})


def _reader(lists: Path, place: Path, rank: int) -> Work:
    """Reads the list of a rank from one mount, then its files from another, which may be the same."""
    name = f"policy=importance,seed=1,epoch=1,rank={rank},world={READERS},batch=64"

    def read() -> int:
        paths = (lists / ".dieselfs/shuffle" / name).read_text().splitlines()
        return plain_reader(place, paths, FILE_BYTES)()

    return read
