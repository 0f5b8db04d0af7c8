"""The memory of a job beside memcached, nutcracker, Redis and LMDB, on 1 to 8 nodes of a network.

Each node has a daemon of the job, a memcached, a nutcracker and a redis-server, with equal memory, and one reader; all
readers together read each file once. At the start everything is in the memory of the job or rival, and nothing in that
of the readers. The library keeps chunks within its limit: *read before* it has all of them, with 32 MiB nearly none.

Loading, with cold kernel caches: the job fetches chunks from its server; each node puts its share of the files into
memcached, from the local file system. Recovery: the daemon or memcached of one node is killed, and the others read
everything once, in chunk-wise order or 256 random files at a time, which restores all lost files; kernel caches warm.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.figures import Run, Scale, Side, Trial
from bench.forms import drop_caches, lmdb_lack, make_lmdb, shuffled
from bench.pool_hosts import (
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
from bench.pool_rivals import MEMCACHED, NUTCRACKER, REDIS, Fleet, rival_lack, running_fleet
from bench.readers import Reader, lmdb_reader, read_together, shares_of
from dieselfs.limits import GIB, LIBRARY_MEMORY_BYTES, MIB
from lab.network import Host, Unsuitable

NODES = (1, 2, 4, 8)
ROUNDS_MAX = 3
SLOW_ROUNDS_MAX = 2
"""Of trials with a long setup."""
BATCHES = (1, 64, 256)
SMALL_SHARE = 50
"""With a small library one file in SMALL_SHARE is read, as each get takes long."""
NODE_MEMORY_BYTES = 1 * GIB
"""Of each daemon, memcached and redis-server: more than the dataset."""
SMALL_MEMORY_BYTES = 32 * MIB
"""Of a library with a dataset much larger than its memory."""

JOB, JOB_PLAN = "dieselfs", "dieselfs, chunk-wise order"
JOB_AGAIN, JOB_SMALL = "dieselfs, read before", "dieselfs, library of 32 MiB"
LMDB = "LMDB, on the node itself"

Ask = Callable[[Host, Sequence[str]], Reader]
"""Makes the reader of a share of the files on a host."""


@dataclass(frozen=True, slots=True)
class Way:
    """`servers`: the processes on the nodes whose processor seconds count."""

    paths: Sequence[str]
    ask: Ask
    servers: Sequence[int] = ()


def pool(folder: Path, scale: Scale) -> Generator[Trial]:
    rounds = min(scale.rounds, ROUNDS_MAX)
    counts = NODES[:2] if scale.is_quick else NODES
    lacks = {name: lack for name in (MEMCACHED, NUTCRACKER, REDIS) if (lack := rival_lack(name)) is not None}
    try:
        with running_stage(folder, scale.small_files, max(counts)) as stage:
            for nodes in counts:
                hosts = stage.nodes[:nodes]
                yield from _reading(stage, hosts, folder, rounds, lacks)
                yield _beside_memcached(
                    stage, hosts, "loaded, cold", _load_job, _load_memcached, rounds, lacks
                )
                if nodes > 1:
                    what = f"read once by {nodes - 1} when one has gone"
                    yield _beside_memcached(
                        stage, hosts, what, _recover_job, _recover_memcached, rounds, lacks
                    )
    except Unsuitable as reason:
        yield Trial("The memory of a job, on a network", [], 0, left_out={"everything": str(reason)})


def _title(stage: Stage, hosts: Sequence[Host], what: str) -> str:
    return f"{len(hosts)} node{'s' if len(hosts) > 1 else ''}, {stage.tree.title}, {what}"


# -- reading ---------------------------------------------------------------------------------------------


def _reading(
    stage: Stage, hosts: Sequence[Host], folder: Path, rounds: int, lacks: Mapping[str, str]
) -> Generator[Trial]:
    with ExitStack() as stack:
        job = stack.enter_context(running_job(stage, hosts, NODE_MEMORY_BYTES))
        job.load()
        fleets = [
            stack.enter_context(running_fleet(name, hosts, NODE_MEMORY_BYTES))
            for name in (MEMCACHED, NUTCRACKER, REDIS)
            if name not in lacks
        ]
        for fleet in fleets:
            _fill(stage, fleet)
        servers = {fleet.name: [process.pid for process in fleet.processes] for fleet in fleets}
        if NUTCRACKER in servers:
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
            }
            if batch > 1:
                ways[JOB_PLAN] = Way(paths, _planned(job, batch), daemons)
            for fleet in fleets:
                reads = partial(cache_reads, fleet, batch)
                ways[fleet.name] = Way(paths, partial(partial, reads), servers[fleet.name])
            if batch == 1 and len(hosts) == 1 and lmdb_lack() is None:
                make_lmdb(stage.tree, folder / "data.mdb")
                ways[LMDB] = Way(paths, lambda _, share: partial(lmdb_reader, folder / "data.mdb", share))
            what = "one by one" if batch == 1 else f"{batch} at a time"
            yield read_trial(stage, hosts, what, ways, rounds, lacks)


def _planned(job: RunningJob, batch: int) -> Ask:
    return lambda host, _: partial(library_plan, job, batch, job.hosts.index(host), len(job.hosts))


def read_trial(
    stage: Stage,
    hosts: Sequence[Host],
    what: str,
    ways: Mapping[str, Way],
    rounds: int,
    lacks: Mapping[str, str],
) -> Trial:
    most = max(len(way.paths) for way in ways.values())
    sides = []
    for name, way in ways.items():
        files, shares = len(way.paths), zip(hosts, shares_of(way.paths, len(hosts)), strict=True)
        readers = [on_host(host, way.ask(host, share)) for host, share in shares]
        run = partial(read_together, readers, files, {"servers": way.servers} if way.servers else None)
        name = name if files == most else f"{name} ({files:,} files)"
        sides.append(Side(name, run, files, "files", files * stage.tree.file_bytes))
    return Trial(_title(stage, hosts, what), sides, rounds, MEMCACHED, lacks)


# -- loading and recovery --------------------------------------------------------------------------------


def _beside_memcached(
    stage: Stage,
    hosts: Sequence[Host],
    what: str,
    job: Callable[[Stage, Sequence[Host]], Run],
    memcached: Callable[[Stage, Sequence[Host]], Run],
    rounds: int,
    lacks: Mapping[str, str],
) -> Trial:
    left_out = {name: lack for name, lack in lacks.items() if name == MEMCACHED}
    sides = [
        Side(name, partial(run, stage, hosts), stage.tree.files, "files", stage.tree.size_bytes)
        for name, run in ((JOB, job), (MEMCACHED, memcached))
        if name not in left_out
    ]
    return Trial(_title(stage, hosts, what), sides, min(rounds, SLOW_ROUNDS_MAX), MEMCACHED, left_out)


def _load_job(stage: Stage, hosts: Sequence[Host]) -> Run:
    with running_job(stage, hosts, NODE_MEMORY_BYTES) as job:
        drop_caches()
        return job.load()


def _load_memcached(stage: Stage, hosts: Sequence[Host]) -> Run:
    with running_fleet(MEMCACHED, hosts, NODE_MEMORY_BYTES) as fleet:
        drop_caches()
        return _fill(stage, fleet)


def _recover_job(stage: Stage, hosts: Sequence[Host]) -> Run:
    """Kill the daemon of the last host, whose port is then closed."""
    with running_job(stage, hosts, NODE_MEMORY_BYTES) as job:
        job.load()
        *survivors, lost = hosts
        lost.kill(job.daemons[-1])
        plans = [
            on_host(host, partial(library_plan, job, BATCHES[-1], rank, len(survivors)))
            for rank, host in enumerate(survivors)
        ]
        return read_together(plans, stage.tree.files)


def _recover_memcached(stage: Stage, hosts: Sequence[Host]) -> Run:
    with running_fleet(MEMCACHED, hosts, NODE_MEMORY_BYTES) as fleet:
        _fill(stage, fleet)
        *survivors, lost = hosts
        lost.kill(fleet.processes[-1])
        return _fill(stage, fleet, survivors, shuffled(stage.tree.paths()))


def _fill(
    stage: Stage, fleet: Fleet, hosts: Sequence[Host] | None = None, paths: Sequence[str] | None = None
) -> Run:
    """Each node sets its share of the files; with `paths`, only the missing ones, in this order."""
    hosts, is_refill = hosts or fleet.hosts, paths is not None
    fills = partial(cache_fills, fleet, stage.tree.folder, is_refill)
    shares = zip(hosts, shares_of(paths or stage.tree.paths(), len(hosts)), strict=True)
    readers = [on_host(host, partial(fills, host, share)) for host, share in shares]
    return read_together(readers, stage.tree.files)
