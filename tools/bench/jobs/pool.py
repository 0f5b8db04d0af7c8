"""The memory of a job compared with memcached, nutcracker, Redis and LMDB, on 1 to 8 nodes of a network.

docs/internals/performance.md has the method. Loading, with cold kernel caches: the job fetches chunks from its server;
each node puts its share of the files into memcached, from the local file system. Recovery: the daemon or memcached of
one node is killed, and the others read everything once, in chunk-wise order or 256 random files at a time, which
restores all lost files; kernel caches warm.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import (
    LARGE_FILE_BYTES,
    SMALL_FILE_BYTES,
    SourceTree,
    drop_caches,
    make_lmdb,
    shuffled,
)
from bench.harness.readers import Reader, lmdb_reader, read_together, shares_of
from bench.jobs.pool_hosts import (
    RunningJob,
    Stage,
    cache_fills,
    cache_reads,
    library_plan,
    library_reads,
    on_host,
    running_job,
    running_stage,
)
from bench.jobs.pool_rivals import MEMCACHED, NUTCRACKER, REDIS, Fleet, running_fleet
from dieselfs.limits import GIB, LIBRARY_MEMORY_BYTES, MIB
from lab.network import Host

NODES = (1, 2, 4, 8)
QUICK_NODES = NODES[:2]
BATCHES = (1, 64, 256)
SMALL_SHARE = 50
"""With a small library one file in SMALL_SHARE is read, as each get takes long."""
NODE_MEMORY_BYTES = 1 * GIB
"""Of each daemon, memcached and redis-server: more than the dataset."""
SMALL_MEMORY_BYTES = 32 * MIB
"""Of a library with a dataset much larger than its memory."""

JOB, JOB_PLAN = "dieselfs", "dieselfs, chunk-wise order"
JOB_LOCAL = "dieselfs, reads where the bytes lie"
JOB_AGAIN, JOB_SMALL = "dieselfs, read before", "dieselfs, library of 32 MiB"
LMDB = "LMDB, on the node itself"
LOADED = "loaded, cold"

Ask = Callable[[Host, Sequence[str]], Reader]
"""Makes the reader of a share of the files on a host."""


@dataclass(frozen=True, slots=True)
class Way:
    """`servers`: the processes on the nodes whose processor seconds count."""

    paths: Sequence[str]
    ask: Ask
    servers: Sequence[int] = ()


def pool(folder: Path, scale: Scale) -> Generator[Trial]:
    """Raises Unsuitable."""
    large = SourceTree(folder / "large", scale.large_files, LARGE_FILE_BYTES)
    if scale.wants(_title(1, large, LOADED)):
        with running_stage(large, 1) as stage:
            yield _beside_memcached(stage, LOADED, _load_job, _load_memcached, scale.rounds)
    tree = SourceTree(folder / "source", scale.small_files, SMALL_FILE_BYTES)
    counts = QUICK_NODES if scale.is_quick else NODES
    whats = (LOADED, *map(_batching, BATCHES), *map(_recovery, counts[1:]))
    if any(scale.wants(_title(nodes, tree, what)) for nodes in counts for what in whats):
        yield from _small(folder, scale, tree, counts)


def _small(folder: Path, scale: Scale, tree: SourceTree, counts: Sequence[int]) -> Generator[Trial]:
    rounds = scale.rounds
    with running_stage(tree, max(counts)) as whole:
        make_lmdb(whole.tree, folder / "data.mdb")
        for nodes in counts:
            stage = replace(whole, hosts=whole.hosts[:nodes])
            if any(scale.wants(_title(nodes, tree, _batching(batch))) for batch in BATCHES):
                yield from _reading(stage, folder / "data.mdb", rounds)
            yield _beside_memcached(stage, LOADED, _load_job, _load_memcached, rounds)
            if nodes > 1:
                yield _beside_memcached(stage, _recovery(nodes), _recover_job, _recover_memcached, rounds)


def _batching(batch: int) -> str:
    return "one by one" if batch == 1 else f"{batch} at a time"


def _recovery(nodes: int) -> str:
    return f"read once by {nodes - 1} after the loss of one"


def _title(nodes: int, tree: SourceTree, what: str) -> str:
    return f"{nodes} node{'s' if nodes > 1 else ''}, {tree.title}, {what}"


# -- reading ---------------------------------------------------------------------------------------------


def _reading(stage: Stage, lmdb: Path, rounds: int) -> Generator[Trial]:
    with ExitStack() as stack:
        job = stack.enter_context(running_job(stage, NODE_MEMORY_BYTES))
        job.load()
        fleets = {
            name: stack.enter_context(running_fleet(name, stage.hosts, NODE_MEMORY_BYTES))
            for name in (MEMCACHED, NUTCRACKER, REDIS)
        }
        for fleet in fleets.values():
            if fleet.lack is None:
                _fill(stage, fleet)
        servers = {name: [process.pid for process in fleet.processes] for name, fleet in fleets.items()}
        servers[NUTCRACKER] += servers[MEMCACHED]
        daemons = [daemon.pid for daemon in job.daemons]
        paths = shuffled(stage.tree.paths())
        for batch in BATCHES:

            def library(memory_bytes: int, is_again: bool = False, batch: int = batch) -> Ask:
                return lambda _, share: partial(library_reads, job, memory_bytes, batch, is_again, share)

            ways = {
                JOB: Way(paths, library(LIBRARY_MEMORY_BYTES), daemons),
                JOB_AGAIN: Way(paths, library(LIBRARY_MEMORY_BYTES, is_again=True), daemons),
                JOB_SMALL: Way(paths[::SMALL_SHARE], library(SMALL_MEMORY_BYTES), daemons),
                JOB_PLAN: Way(paths, _planned(job, batch), daemons),
            }
            if len(stage.hosts) > 1:
                ways[JOB_LOCAL] = Way(paths, _planned(job, batch, is_local=True), daemons)
            for name, fleet in fleets.items():
                ways[name] = Way(paths, partial(partial, cache_reads, fleet, batch), servers[name])
            if batch == 1 and len(stage.hosts) == 1:
                ways[LMDB] = Way(paths, lambda _, share: partial(lmdb_reader, lmdb, share))
            yield read_trial(stage, _batching(batch), ways, rounds)


def _planned(job: RunningJob, batch: int, is_local: bool = False) -> Ask:
    hosts = job.stage.hosts
    return lambda host, _: partial(library_plan, job, batch, hosts.index(host), len(hosts), is_local)


def read_trial(stage: Stage, what: str, ways: Mapping[str, Way], rounds: int) -> Trial:
    sides = []
    for name, way in ways.items():
        shares = zip(stage.hosts, shares_of(way.paths, len(stage.hosts)), strict=True)
        readers = [partial(on_host, host, way.ask(host, share)) for host, share in shares]
        files, others = len(way.paths), {"servers": way.servers} if way.servers else None
        run = partial(read_together, readers, files, others)
        sides.append(Side(name, run, files, "files", files * stage.tree.file_bytes))
    return Trial(_title(len(stage.hosts), stage.tree, what), sides, rounds, MEMCACHED)


# -- loading and recovery --------------------------------------------------------------------------------


def _beside_memcached(
    stage: Stage, what: str, job: Callable[[Stage], Run], memcached: Callable[[Stage], Run], rounds: int
) -> Trial:
    sides = [
        Side(name, partial(run, stage), stage.tree.files, "files", stage.tree.size_bytes)
        for name, run in ((JOB, job), (MEMCACHED, memcached))
    ]
    return Trial(_title(len(stage.hosts), stage.tree, what), sides, rounds, MEMCACHED)


def _load_job(stage: Stage) -> Run:
    with running_job(stage, NODE_MEMORY_BYTES) as job:
        drop_caches()
        return job.load()


def _load_memcached(stage: Stage) -> Run:
    with running_fleet(MEMCACHED, stage.hosts, NODE_MEMORY_BYTES) as fleet:
        drop_caches()
        return _fill(stage, fleet)


def _recover_job(stage: Stage) -> Run:
    """Kill the daemon of the last host, whose port is then closed."""
    with running_job(stage, NODE_MEMORY_BYTES) as job:
        job.load()
        *survivors, lost = stage.hosts
        lost.kill(job.daemons[-1])
        plans = [
            partial(on_host, host, partial(library_plan, job, BATCHES[-1], rank, len(survivors)))
            for rank, host in enumerate(survivors)
        ]
        return read_together(plans, stage.tree.files)


def _recover_memcached(stage: Stage) -> Run:
    with running_fleet(MEMCACHED, stage.hosts, NODE_MEMORY_BYTES) as fleet:
        _fill(stage, fleet)
        *survivors, lost = stage.hosts
        lost.kill(fleet.processes[-1])
        return _fill(replace(stage, hosts=survivors), fleet, shuffled(stage.tree.paths()))


def _fill(stage: Stage, fleet: Fleet, paths: Sequence[str] | None = None) -> Run:
    """Each node sets its share of the files; with `paths`, only the missing ones, in this order."""
    fills = partial(cache_fills, fleet, stage.tree.folder, paths is not None)
    shares = zip(stage.hosts, shares_of(paths or stage.tree.paths(), len(stage.hosts)), strict=True)
    readers = [partial(on_host, host, partial(fills, host, share)) for host, share in shares]
    return read_together(readers, stage.tree.files)
