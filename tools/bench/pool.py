"""The memory of a job beside memcached, nutcracker, Redis and LMDB: 1 to 8 nodes, each a host on a network of its own.

On each node runs a daemon of the job, a memcached, a nutcracker and a redis-server, with equal memory, and one process
that reads; all readers together read each file once. At the beginning everything is in the memory of the job (or of the
rival), and nothing in that of the reader, whose library keeps what it maps and gets, within its limit: so whole chunks
go from node to node, and once it has read for a while (*read before*), it has all of them. A library of 32 MiB keeps
next to nothing; with it, both sides use as much memory.

Loading: the job fetches chunks from its server, whose store is a folder; every node puts its share of the files into
memcached, as it reads them from the same local file system. Both with the kernel's caches dropped. Recovery: the daemon
or memcached of one node has been killed, and the readers of the others read everything once, in the chunk-wise order or
256 random files at a time, by which all that was lost comes into memory again; the kernel's caches are as they are.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import Popen

from bench.figures import Aim, Quantity, Run, Side, Trial
from bench.peers import lmdb_lack, make_lmdb
from bench.pool_hosts import RunningJob, Stage, running_job, running_stage
from bench.pool_readers import (
    cache_batches,
    cache_filler,
    cache_gets,
    cache_refiller,
    library_batches,
    library_batches_again,
    library_gets,
    library_gets_again,
    library_plan,
    lmdb_gets,
    on_host,
)
from bench.pool_rivals import (
    MEMCACHED,
    NUTCRACKER,
    REDIS,
    Fleet,
    rival_lack,
    running_memcached,
    running_nutcracker,
    running_redis_fleet,
)
from bench.readers import Reader, read_together
from bench.reading_files import shares_of
from bench.scale import FULL, Scale
from bench.stopwatch import family_processor_s
from bench.trees import can_drop_caches, drop_caches, shuffled
from dieselfs.limits import GIB, LIBRARY_MEMORY_BYTES, MIB
from lab.network import Host, Unsuitable

NODES = (1, 2, 4, 8)
ROUNDS_MAX = 3
SLOW_ROUNDS_MAX = 2
"""Of those that take long to get there."""
BATCHES = (64, 256)
SMALL_SHARE = 50
"""Of gets by a library that keeps next to nothing, one file in so many is read: they take long."""
NODE_MEMORY_BYTES = 1 * GIB
"""As every daemon, memcached and redis-server has; more than the dataset, as one node has to do for all."""
SMALL_MEMORY_BYTES = 32 * MIB
"""A library that keeps next to nothing, as with a dataset that is much larger than its memory."""

JOB, JOB_PLAN = "dieselfs", "dieselfs, chunk-wise order"
JOB_AGAIN, JOB_SMALL = "dieselfs, read before", "dieselfs, library of 32 MiB"
LMDB = "LMDB, on the node itself"
READ_AIM = Aim(Quantity.RATIO, 2.1, of=(MEMCACHED,))
LOAD_AIM = Aim(Quantity.RATIO, 10, of=(MEMCACHED,))

RIVALS = (MEMCACHED, NUTCRACKER, REDIS)


def pool(folder: Path, scale: Scale) -> Generator[Trial]:
    rounds = min(scale.rounds, ROUNDS_MAX)
    counts = NODES if scale.small_files == FULL.small_files else NODES[:2]
    lacks = {name: lack for name in RIVALS if (lack := rival_lack(name)) is not None}
    try:
        with running_stage(folder, scale.small_files, max(counts)) as stage:
            for nodes in counts:
                hosts = stage.nodes[:nodes]
                yield from _reading(stage, hosts, folder, rounds, lacks)
                yield _loading(stage, hosts, rounds, lacks)
                if nodes > 1:
                    yield _recovery(stage, hosts, rounds, lacks)
    except Unsuitable as reason:
        yield Trial("The memory of a job, on a network", [], 0, left_out={"everything": str(reason)})


def _title(stage: Stage, hosts: Sequence[Host], what: str) -> str:
    nodes = f"{len(hosts)} node{'s' if len(hosts) > 1 else ''}"
    return f"{nodes}, {stage.tree.files:,} files of {stage.tree.file_bytes:,} bytes, {what}"


# -- reading ---------------------------------------------------------------------------------------------


Process = Popen[bytes]
Ask = Callable[[Host, Sequence[str]], Reader]
"""What reads a share of the files on a host."""


def _reading(
    stage: Stage, hosts: Sequence[Host], folder: Path, rounds: int, lacks: Mapping[str, str]
) -> Generator[Trial]:
    with ExitStack() as stack:
        job = stack.enter_context(running_job(stage, hosts, NODE_MEMORY_BYTES))
        job.load()
        fleets = _filled_fleets(stack, stage, hosts, lacks)
        paths = shuffled(stage.tree.paths())
        small = paths[::SMALL_SHARE]
        gets: dict[str, tuple[Sequence[str], Ask]] = {
            JOB: (paths, partial(_library_gets, job, LIBRARY_MEMORY_BYTES)),
            JOB_AGAIN: (paths, partial(_library_gets_again, job)),
            JOB_SMALL: (small, partial(_library_gets, job, SMALL_MEMORY_BYTES)),
            **{fleet.name: (paths, partial(_cache_gets, fleet)) for fleet in fleets},
        }
        if len(hosts) == 1 and lmdb_lack() is None:
            database = folder / "data.mdb"
            make_lmdb(stage.tree, database)
            gets[LMDB] = (paths, partial(_lmdb_gets, database))
        servers = {fleet.name: fleet.processes for fleet in fleets}
        if NUTCRACKER in servers:
            servers[NUTCRACKER] = [*servers[NUTCRACKER], *servers[MEMCACHED]]
        servers |= dict.fromkeys((JOB, JOB_PLAN, JOB_AGAIN, JOB_SMALL), job.daemons)
        yield read_trial(stage, hosts, "one by one", gets, servers, rounds, lacks)
        for batch in BATCHES:
            batches: dict[str, tuple[Sequence[str], Ask]] = {
                JOB: (paths, partial(_library_batches, job, LIBRARY_MEMORY_BYTES, batch)),
                JOB_SMALL: (small, partial(_library_batches, job, SMALL_MEMORY_BYTES, batch)),
                JOB_PLAN: (paths, partial(_planned, job, batch)),
                JOB_AGAIN: (paths, partial(_library_batches_again, job, batch)),
                **{fleet.name: (paths, partial(_cache_batches, fleet, batch)) for fleet in fleets},
            }
            yield read_trial(stage, hosts, f"{batch} at a time", batches, servers, rounds, lacks)


def _library_gets(job: RunningJob, memory_bytes: int, host: Host, share: Sequence[str]) -> Reader:
    return partial(library_gets, job, memory_bytes, share)


def _library_batches(
    job: RunningJob, memory_bytes: int, batch: int, host: Host, share: Sequence[str]
) -> Reader:
    return partial(library_batches, job, memory_bytes, batch, share)


def _library_gets_again(job: RunningJob, host: Host, share: Sequence[str]) -> Reader:
    return partial(library_gets_again, job, share)


def _library_batches_again(job: RunningJob, batch: int, host: Host, share: Sequence[str]) -> Reader:
    return partial(library_batches_again, job, batch, share)


def _planned(job: RunningJob, batch: int, host: Host, share: Sequence[str]) -> Reader:
    return partial(library_plan, job, batch, job.hosts.index(host), len(job.hosts))


def _cache_gets(fleet: Fleet, host: Host, share: Sequence[str]) -> Reader:
    return partial(cache_gets, fleet, host, share)


def _cache_batches(fleet: Fleet, batch: int, host: Host, share: Sequence[str]) -> Reader:
    return partial(cache_batches, fleet, host, batch, share)


def _lmdb_gets(file: Path, host: Host, share: Sequence[str]) -> Reader:
    return partial(lmdb_gets, file, share)


def read_trial(
    stage: Stage,
    hosts: Sequence[Host],
    what: str,
    ways: Mapping[str, tuple[Sequence[str], Ask]],
    servers: Mapping[str, Sequence[Process]],
    rounds: int,
    lacks: Mapping[str, str],
) -> Trial:
    """`servers`: who answers on the nodes, by the name of the side; their processor seconds are counted."""
    most = max(len(paths) for paths, _ in ways.values())
    sides = []
    for name, (paths, ask) in ways.items():
        shares = zip(hosts, shares_of(paths, len(hosts)), strict=True)
        readers = [on_host(host, ask(host, share)) for host, share in shares]
        run = partial(_read, readers, len(paths), servers.get(name, ()))
        size_bytes = len(paths) * stage.tree.file_bytes
        title = name if len(paths) == most else f"{name} ({len(paths):,} files)"
        sides.append(
            Side(title, run, len(paths), "files", size_bytes, READ_AIM if name in (JOB, JOB_AGAIN) else None)
        )
    return Trial(_title(stage, hosts, what), sides, rounds, MEMCACHED, lacks)


def _read(readers: Sequence[Reader], files: int, servers: Sequence[Process]) -> Run:
    before_s = _processor_s(servers)
    run = read_together(readers, files)
    return replace(run, parts={**run.parts, "servers": _processor_s(servers) - before_s}) if servers else run


def _processor_s(processes: Sequence[Process]) -> float:
    return sum(family_processor_s(process.pid) for process in processes)


def _filled_fleets(
    stack: ExitStack, stage: Stage, hosts: Sequence[Host], lacks: Mapping[str, str]
) -> list[Fleet]:
    """The rivals that there are, each with all files."""
    fleets: list[Fleet] = []
    if MEMCACHED not in lacks:
        fleets.append(stack.enter_context(running_memcached(hosts, NODE_MEMORY_BYTES)))
        if NUTCRACKER not in lacks:
            fleets.append(stack.enter_context(running_nutcracker(fleets[0])))
    if REDIS not in lacks:
        fleets.append(stack.enter_context(running_redis_fleet(hosts, NODE_MEMORY_BYTES)))
    for fleet in fleets:
        _fill(stage, fleet)
    return fleets


def _fill(stage: Stage, fleet: Fleet) -> Run:
    """Every node its share of the files, in their order."""
    paths = stage.tree.paths()
    readers = [
        on_host(host, partial(cache_filler, fleet, host, stage.tree.folder, share))
        for host, share in zip(fleet.hosts, shares_of(paths, len(fleet.hosts)), strict=True)
    ]
    return read_together(readers, len(paths))


# -- loading and recovery --------------------------------------------------------------------------------


def _loading(stage: Stage, hosts: Sequence[Host], rounds: int, lacks: Mapping[str, str]) -> Trial:
    def load_job() -> Run:
        with running_job(stage, hosts, NODE_MEMORY_BYTES) as job:
            _forget()
            return job.load()

    def load_memcached() -> Run:
        with running_memcached(hosts, NODE_MEMORY_BYTES) as fleet:
            _forget()
            return _fill(stage, fleet)

    return _two_sided(stage, hosts, "loaded, cold", load_job, load_memcached, rounds, lacks, LOAD_AIM)


def _recovery(stage: Stage, hosts: Sequence[Host], rounds: int, lacks: Mapping[str, str]) -> Trial:
    *survivors, _ = hosts

    def recover_job() -> Run:
        with running_job(stage, hosts, NODE_MEMORY_BYTES) as job:
            job.load()
            job.kill(len(survivors))
            readers = [
                on_host(host, partial(library_plan, job, BATCHES[-1], rank, len(survivors)))
                for rank, host in enumerate(survivors)
            ]
            return read_together(readers, stage.tree.files)

    def recover_memcached() -> Run:
        paths = shuffled(stage.tree.paths())
        with running_memcached(hosts, NODE_MEMORY_BYTES) as fleet:
            _fill(stage, fleet)
            fleet.kill(len(survivors))
            readers = [
                on_host(host, partial(cache_refiller, fleet, host, stage.tree.folder, share))
                for host, share in zip(survivors, shares_of(paths, len(survivors)), strict=True)
            ]
            return read_together(readers, len(paths))

    title = f"read once by {len(survivors)} when one has gone"
    return _two_sided(stage, hosts, title, recover_job, recover_memcached, rounds, lacks)


def _two_sided(
    stage: Stage,
    hosts: Sequence[Host],
    what: str,
    job: Callable[[], Run],
    memcached: Callable[[], Run],
    rounds: int,
    lacks: Mapping[str, str],
    aim: Aim | None = None,
) -> Trial:
    amounts = (stage.tree.files, "files", stage.tree.size_bytes)
    sides = [Side(JOB, job, *amounts, aim)]
    if MEMCACHED not in lacks:
        sides.append(Side(MEMCACHED, memcached, *amounts))
    left_out = {name: lack for name, lack in lacks.items() if name == MEMCACHED}
    return Trial(_title(stage, hosts, what), sides, min(rounds, SLOW_ROUNDS_MAX), MEMCACHED, left_out)


def _forget() -> None:
    if can_drop_caches():
        drop_caches()
