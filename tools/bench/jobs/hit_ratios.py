"""Reading through a memcached that lacks some files, which come from the local file system: figure 6 of DIESEL.

One node, one reader, files one by one in random order. The kernel's caches are dropped before each run. This module
starts processes.
"""

from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import SMALL_FILE_BYTES, SourceTree, drop_caches, make_tree, shuffled
from bench.harness.readers import Work, read_together
from bench.jobs.pool_hosts import cache_fills, on_host
from bench.jobs.pool_rivals import MEMCACHED, Fleet, running_fleet
from dieselfs.limits import GIB
from lab.network import Host, Network

HITS = (100, 99, 95, 90, 80, 0)
"""Percent."""


def side_of(hits: int) -> str:
    return f"{hits} % hits"


def hit_ratios(folder: Path, scale: Scale) -> Generator[Trial]:
    """Raises Unsuitable."""
    with Network() as net:
        host, tree = net.host("node-0"), make_tree(folder / "source", scale.small_files, SMALL_FILE_BYTES)
        sides = [
            Side(side_of(hits), partial(_run, host, tree, hits), tree.files, "files", tree.size_bytes)
            for hits in HITS
        ]
        yield Trial(f"{tree.title} through memcached, by hits, cold", sides, scale.rounds, side_of(HITS[0]))


def _run(host: Host, tree: SourceTree, hits: int) -> Run:
    paths = shuffled(tree.paths())
    kept = paths[: len(paths) * hits // 100]
    with running_fleet(MEMCACHED, [host], GIB) as fleet:
        read_together(
            [partial(on_host, host, partial(cache_fills, fleet, tree.folder, False, host, kept))], len(kept)
        )
        drop_caches()
        reader = partial(on_host, host, partial(_reads, fleet, tree, host, shuffled(paths)))
        return read_together([reader], len(paths), {"memcached": [each.pid for each in fleet.processes]})


def _reads(fleet: Fleet, tree: SourceTree, host: Host, paths: Sequence[str]) -> Work:
    cache = fleet.open(host)
    cache.get_many(paths[:1])  # connects

    def read() -> int:
        for path in paths:
            if cache.get(path) is None:
                (tree.folder / path).read_bytes()
        return len(paths)

    return read
