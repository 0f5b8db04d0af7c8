"""Runs one seed: a cluster, its clients, faults; then calm, and what must hold at the end."""

import faulthandler
import gc
import logging
import shutil
import signal
import tempfile
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from dieselfs.errors import DieselfsError, NotFound
from dieselfs.net.auth import Key
from dieselfs.records import DatasetRecord
from dieselfs_server.access.accounts import ALL_DATASETS, Right, StoredKey, with_grant, with_key
from dieselfs_server.access.identity import IDENTITY_RECORD
from dieselfs_server.access.users import UserStore
from dieselfs_server.datasets.dataset_names import DatasetNames
from dieselfs_server.maintenance.fsck import _rows
from dieselfs_server.maintenance.rebuild import rebuild
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.metadata.redis.store import RedisMetadata
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.bundled import BundledStore
from dieselfs_server.store.memory import MemoryStore
from tests.simulation import clients, seams
from tests.simulation.actors import DATASET, Cluster, act, check_files, create, in_process
from tests.simulation.clock import now_s
from tests.simulation.disk import open_copy
from tests.simulation.exchanges import ATTACHED, ELSEWHERE, EXCHANGES, check_exchanges
from tests.simulation.green import drive, enter, pause
from tests.simulation.jobs import SimulatedJob
from tests.simulation.network import Network
from tests.simulation.oracle import Oracle
from tests.simulation.redis_model import FORGOTTEN_MAX, Redis
from tests.simulation.scenario import Scenario, scenario_of
from tests.simulation.servers import ServerHost
from tests.simulation.uses import SCRATCH, USES, check_uses, set_quota
from tests.simulation.world import Course, World
from tests.support.identity import IDENTITY

RESTORE_TRIES_MAX = 500
CLOCK_JUMP_S = 25 * 3600.0
RUN_S_MAX = 48 * 3600.0
"""Virtual time after which a run counts as hanging."""
REAL_S_MAX = 600
"""A run that takes longer waits for something real: the process ends."""
SETTLE_S = 700.0
"""After the faults: leases have expired, and what was in flight has ended."""
START_S = 60.0
"""After a start: what was stored is applied."""
JOB_SETTLE_S = 40.0
"""The same for a job: nodes that were out of it have asked again."""


@dataclass(frozen=True)
class Outcome:
    course: Course
    digest: str
    """Of the trace: equal for equal courses."""
    violations: tuple[str, ...]
    faults: tuple[int, ...]
    steps: int
    acknowledged: int
    virtual_s: float
    lines: tuple[str, ...]


def simulate(course: Course, is_verbose: bool = False) -> Outcome:
    """Run a course. Deterministic: the same course has the same trace."""
    logging.disable(logging.CRITICAL)
    gc.disable()
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.alarm(REAL_S_MAX)
    folder = Path(tempfile.mkdtemp(prefix="simulation-", dir="/dev/shm"))
    try:
        outcome: Outcome = seams.run(lambda: _run(course, folder, is_verbose), course.seed)
        return outcome
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        signal.alarm(0)
        gc.enable()
        gc.collect(1)


async def _run(course: Course, folder: Path, is_verbose: bool) -> Outcome:
    scenario = scenario_of(course.seed)
    oracle, objects = Oracle(), MemoryStore()
    async with trio.open_nursery() as nursery:
        world = World(course, scenario.chances, nursery, is_verbose)
        network = Network(world)
        clients.use(network)
        redis = Redis(world) if scenario.has_redis else None
        names = [f"server{number}" for number in range(scenario.servers)]
        hosts = [_host(world, network, objects, folder, name, scenario, redis) for name in names]
        servers = ",".join(str(host.address) for host in hosts)
        cluster = Cluster(
            world,
            oracle,
            servers,
            folder,
            _key_file(objects, folder),
            scenario.grace_s,
            scenario.keeps_notes,
            scenario.has_close_clocks,
        )
        if redis is not None:
            cluster.sync = redis.sync
        world.has_leases = (
            scenario.keeps_notes and scenario.has_close_clocks and "metadata full" not in scenario.chances
        )
        cluster.has_holders = any(step.kind in ("tag", "pin") for step in scenario.steps)
        cluster.has_repacks = any(step.kind == "repack" for step in scenario.steps)
        cluster.quota.checks_bytes = not {"purge", "keep attached"} & {step.kind for step in scenario.steps}
        cluster.quota.account = scenario.quota_account
        try:
            with trio.fail_after(RUN_S_MAX):
                await _live(cluster, scenario, objects, hosts, network, nursery)
            await _check_end(cluster, objects, hosts)
        except trio.TooSlowError:
            world.violated("the run does not end")
        except Exception as error:  # of the product, or of the simulator
            world.violated(f"{_first(error)!r}")
        virtual_s = trio.current_time()
        nursery.cancel_scope.cancel()
    return Outcome(
        course,
        world.trace.hexdigest(),
        tuple(world.violations),
        tuple(world.applied_faults),
        len(scenario.numbers),
        oracle.acknowledged,
        virtual_s,
        tuple(world.lines),
    )


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _host(
    world: World,
    network: Network,
    objects: MemoryStore,
    folder: Path,
    name: str,
    scenario: Scenario,
    redis: Redis | None,
) -> ServerHost:
    skew_s = scenario.skews_s.get(name, 0.0)
    return ServerHost(world, network, objects, name, folder / name, skew_s, redis)


def _key_file(objects: MemoryStore, folder: Path) -> Path:
    """The key of a user who may do everything; it names the identity of the servers, which is stored too."""
    objects.create_record(IDENTITY_RECORD, IDENTITY.encode())
    key = Key("admin", "0123abcd", bytes(range(32)), IDENTITY.pin)
    stored = StoredKey(key.verifier(), 0, 0)
    UserStore(objects).change(
        lambda table: with_grant(
            with_key(table, "admin", key.key_id, stored), "admin", ALL_DATASETS, Right.ADMIN
        )
    )
    path = folder / "key"
    path.write_text(key.text())
    path.chmod(0o600)
    return path


async def _live(
    cluster: Cluster,
    scenario: Scenario,
    objects: MemoryStore,
    hosts: list[ServerHost],
    network: Network,
    nursery: trio.Nursery,
) -> None:
    """Servers start, clients work among faults, and then alone."""
    world = cluster.world
    for host in hosts:
        nursery.start_soon(host.run)
    await _all_ready(hosts)
    await in_process(world, "setup", 0.0, lambda: _set_up(cluster, scenario))
    for host in hosts:  # a dataset without a chunk may be lost (docs/internals/durability.md)
        if host.redis is not None:
            host.redis.sync()
    names = [host.name for host in hosts]
    job = SimulatedJob(cluster, scenario, network, nursery) if scenario.job is not None else None
    if job is not None:
        await job.begin(names)
        for host in hosts:
            if host.redis is not None:
                host.redis.sync()
    world.is_calm = False
    async with trio.open_nursery() as working:
        working.start_soon(_disturb, cluster, scenario, hosts, network, nursery)
        if job is not None:
            working.start_soon(job.disturb, names)
        async with trio.open_nursery() as acting:
            if job is not None:
                acting.start_soon(job.act)
            for actor in scenario.actors:
                chosen = [
                    step
                    for step in scenario.of(actor)
                    if world.course.steps is None or step.number in world.course.steps
                ]
                acting.start_soon(
                    act, cluster, actor, scenario.skews_s.get(actor, 0.0), chosen, USES | EXCHANGES
                )
        working.cancel_scope.cancel()
    if "power cut" in scenario.chances:  # which may lose what was done last
        for host in hosts:
            host.crash_now()
    world.is_calm = True
    world.unmounted_until_s = 0.0
    network.heal()
    world.note("calm")
    if cluster.has_lost:  # what Redis forgets may be the end of a rebuild
        await _restore(cluster)
    if job is not None:
        await trio.sleep(JOB_SETTLE_S)
        await _all_ready(hosts)
        await job.end()
        if not scenario.job_needs_servers:
            return  # no server has failed
    await trio.sleep(SETTLE_S)
    await _all_ready(hosts)
    await in_process(world, "checker", 0.0, lambda: _check_served(cluster))
    _check_names(cluster, objects, hosts)  # a start makes them again
    for host in hosts:  # what was stored without a reply is applied by a start
        host.crash_now()
    await trio.sleep(START_S)
    await _all_ready(hosts)
    await in_process(world, "checker", 0.0, lambda: _check_served(cluster))
    clock_s = min(host.skew_s for host in hosts)  # chunks of the future are refused
    await in_process(world, "checker", clock_s, lambda: check_uses(cluster))
    await in_process(world, "checker", clock_s, lambda: check_exchanges(cluster))


def _set_up(cluster: Cluster, scenario: Scenario) -> None:
    create(cluster)
    if scenario.quota is not None:
        set_quota(cluster, "setup", scenario.quota.files, scenario.quota.stored_bytes)


async def _all_ready(hosts: list[ServerHost]) -> None:
    for host in hosts:
        await host.ready.wait()


async def _disturb(
    cluster: Cluster, scenario: Scenario, hosts: list[ServerHost], network: Network, nursery: trio.Nursery
) -> None:
    """Crashes and partitions that come at any time."""
    world = cluster.world
    while True:
        await trio.sleep(20 * world.faults.random() ** 2)
        host = world.faults.choice(hosts)
        actor = world.faults.choice(scenario.actors)
        if world.fault("partition"):
            network.part(host.name, actor, 100 * world.faults.random() ** 3)
        if world.fault("crash"):
            host.crash_now()
        if host.redis is not None and world.fault("redis restarts"):
            host.redis.restart(world.faults.randrange(FORGOTTEN_MAX), 10 * world.faults.random() ** 2)
        if world.fault("clock jumps"):
            nursery.start_soon(host.jump, CLOCK_JUMP_S, 30 * world.faults.random())
        if world.fault("store unmounted"):
            world.unmounted_until_s = now_s() + 60 * world.faults.random() ** 2
        # A dataset without a chunk may be lost.
        if not cluster.has_lost and cluster.oracle.acknowledged and world.fault("metadata lost"):
            cluster.has_lost = True
            host.lose_metadata()
            nursery.start_soon(_restore, cluster)


async def _restore(cluster: Cluster) -> None:
    """An operator rebuilds the metadata of all datasets that are lost, until all are there."""

    def rebuild_lost() -> None:
        client = cluster.client("operator")
        for _ in range(RESTORE_TRIES_MAX):
            pause(2.0)
            try:
                for name in sorted({DATASET, *client.lost_datasets()}):
                    client.rebuild(name)
                return
            except NotFound as error:
                if f"'{DATASET}'" in str(error):
                    break
            except DieselfsError as error:
                cluster.world.note(f"operator: {type(error).__name__}: {error}")
        cluster.world.violated("lost metadata cannot be restored")

    await in_process(cluster.world, "operator", 0.0, rebuild_lost)


def _opened(host: ServerHost) -> MetadataStore:
    """The metadata of a server, to look at."""
    if host.redis is None:
        return open_copy(host.database)
    assert host.process is not None
    enter(host.process)
    return RedisMetadata.open("redis://redis:6379")


def _check_served(cluster: Cluster) -> None:
    """Without faults everything answers, and nothing acknowledged is missing."""
    for name in ("checker", "checker again")[: cluster.servers.count(",") + 1]:
        try:
            check_files(cluster, name, "the end")
        except DieselfsError as error:
            cluster.world.violated(f"the end: {error}")


def _check_names(cluster: Cluster, objects: MemoryStore, hosts: list[ServerHost]) -> None:
    """Each dataset has its name in the object store. A drop without a reply may have left a part."""
    names = DatasetNames(objects).all()
    for host in hosts:
        with closing(_opened(host)) as metadata:
            for dataset in metadata.datasets():
                is_dropped = cluster.is_dropping and dataset.name == SCRATCH
                if not is_dropped and names.get(dataset.name) != dataset.dataset_id:
                    cluster.world.violated(
                        f"{host.name}: the object store has another owner of {dataset.name}"
                    )


async def _check_end(cluster: Cluster, objects: MemoryStore, hosts: list[ServerHost]) -> None:
    """What servers know is what the chunks say. In their processes: tables are read by threads."""
    for host in hosts:
        assert host.process is not None
        await drive(host.process, partial(_check_host, cluster, objects, host))


def _check_host(cluster: Cluster, objects: MemoryStore, host: ServerHost) -> None:
    with closing(_opened(host)) as metadata:
        for dataset in metadata.datasets():
            if dataset.name in (DATASET, SCRATCH, ELSEWHERE, ATTACHED):
                _check_dataset(cluster, objects, host.name, metadata, dataset)


def _check_dataset(
    cluster: Cluster, objects: MemoryStore, host: str, metadata: MetadataStore, dataset: DatasetRecord
) -> None:
    with closing(SqliteMetadata(":memory:")) as rebuilt:
        name = dataset.name
        rebuild(BundledStore(objects), rebuilt, name, dataset.dataset_id, 0)
        there, expected = (_rows(each.entry_table(dataset.dataset_id)) for each in (metadata, rebuilt))
        for path, _ in sorted(there.items() ^ expected.items(), key=str):
            cluster.world.violated(f"{host}: {path} of {name} differs from the chunks")
        record = rebuilt.dataset(name)
        if (record.files, record.total_bytes) != (dataset.files, dataset.total_bytes):
            cluster.world.violated(f"{host}: totals of {name} differ from the chunks")
        (used,), (truth,) = (each.usage([name]) for each in (metadata, rebuilt))
        # A purge that has ended between an object and its record leaves the record of a dead chunk.
        is_exact = cluster.quota.checks_bytes and used is not None and truth is not None
        if used is None or truth is None or used.paths != truth.paths or (is_exact and used[1:] != truth[1:]):
            cluster.world.violated(f"{host}: usage of {name} is {used}, the chunks take {truth}")
