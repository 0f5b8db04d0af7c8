"""Simulated servers: the real server, assembled by its own code, over virtual disks and sockets. It crashes and starts
again.
"""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any

import trio

from dieselfs.errors import DieselfsError
from dieselfs.net.address import TcpAddress
from dieselfs.rpc.serving import connection
from dieselfs.settings.table import OFF
from dieselfs.transfer import equal_extents
from dieselfs_server import assemble
from dieselfs_server.datasets import referring_copy
from dieselfs_server.maintenance import jobs
from dieselfs_server.metadata.redis.store import RedisMetadata
from dieselfs_server.metadata.sqlite import table
from dieselfs_server.settings import ServerSettings
from dieselfs_server.store import opening
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.wrapper import open_marked
from tests.simulation.disk import Database, SimulatedMetadata, SimulatedStore, open_database
from tests.simulation.green import Killed, Process, current_process, enter
from tests.simulation.network import Network
from tests.simulation.redis_model import Redis
from tests.simulation.world import World

PORT = 7000
LONG_OUTAGE_S = 300.0
"""Calls end before that."""
IDENTITY_REFRESH_S = 120.0
"""It does not change here. Read each 2 s, it took half of the time of a seed."""


@dataclass(eq=False)
class ServerHost:
    """A machine with a server, which starts again after each crash."""

    world: World
    network: Network
    objects: MemoryStore
    name: str
    folder: Path
    skew_s: float = 0.0
    redis: Redis | None = None
    database: Database = field(default_factory=Database)
    process: Process | None = None
    ready: trio.Event = field(default_factory=trio.Event)
    _life: trio.CancelScope | None = None
    _is_initialized: bool = False

    @property
    def address(self) -> TcpAddress:
        return TcpAddress(self.name, PORT)

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            await self._live()
            await trio.sleep(LONG_OUTAGE_S if self.world.fault("long outage") else self.world.delay_s(2.0))

    async def _live(self) -> None:
        settings = ServerSettings(
            listen=[self.address],
            store="memory:",
            metadata="memory:",
            state=self.folder,
            tls=OFF,
            attach_roots=None,
            is_new=not self._is_initialized,
        )
        try:
            with trio.CancelScope() as self._life:
                async with trio.open_nursery() as threads:
                    self.process = self.world.start(self.name, threads, self.skew_s)
                    self.process.parts["host"] = self
                    enter(self.process)
                    async with assemble.open_server(settings):
                        self.world.note("serves")
                        self._is_initialized = True
                        self.ready.set()
                        await trio.sleep_forever()
        except* Killed:
            pass
        except* DieselfsError as failures:
            self.world.note(f"does not start: {failures.exceptions[0]}")
        finally:
            self.ready = trio.Event()
            if self.process is not None:
                self.process.is_dead = True
                self.network.crash(self.process)

    def crash(self, process: Process, where: str) -> None:
        """Kill the server, or cut its power: then its newest commits may be lost."""
        if process.is_dead:
            return
        process.is_dead = True
        lost = 0
        if (
            self.redis is None
            and not self.world.is_calm
            and self.world.faults.random() < self.world.chances.get("power cut", 0.0)
        ):
            lost = self.database.cut_power(self.world.faults.randrange(4))
            rmtree(self.folder / "snapshots", ignore_errors=True)
        self.world.note(f"crash of {process.name} in {where}, {lost} commits lost")
        self.network.crash(process)
        assert self._life is not None
        self._life.cancel()

    async def jump(self, ahead_s: float, duration_s: float) -> None:
        """Let the clock be wrong for a while, or until the next start."""
        process = self.process
        if process is not None:
            self.world.note(f"the clock of {self.name} jumps {ahead_s:.0f} s")
            process.skew_s += ahead_s
            await trio.sleep(duration_s)
            process.skew_s -= ahead_s

    def lose_metadata(self) -> None:
        """All of it is gone; a server with its own ends."""
        self.world.note(f"the metadata of {self.name} is lost")
        if self.redis is not None:
            self.redis.lose()
        else:
            self.database.commits = [b""]
            if self.process is not None and not self.process.is_dead:
                self.crash_without_cut()

    def crash_without_cut(self) -> None:
        assert self.process is not None and self._life is not None
        self.process.is_dead = True
        self.network.crash(self.process)
        self._life.cancel()

    def crash_now(self) -> None:
        if self.process is not None:
            self.crash(self.process, "the open")


def _host() -> tuple[ServerHost, Process]:
    process = current_process()
    assert process is not None
    host: ServerHost = process.parts["host"]
    return host, process


def _open_store(
    url: str, is_new: bool, bounds: Any = None, metrics: Any = None, large_reads: Any = None
) -> Any:
    host, process = _host()
    store = SimulatedStore(host.objects, host.world, process, host.crash)
    return open_marked(opening._patient(store, bounds, metrics, large_reads), url, is_new, is_folder=True)


def _open_metadata(url: str) -> Any:
    host, process = _host()
    metadata: Any
    if host.redis is None:
        metadata = open_database(process, host.database)
    else:
        process.parts["redis"] = host.redis
        metadata = RedisMetadata.open("redis://redis:6379")
    return SimulatedMetadata(metadata, host.world, process, host.crash)


async def _listening(stack: Any, address: Any, has_tls: bool) -> Any:
    host, process = _host()
    return [(host.network.listen(address, process), False)]


async def _publish(*_: object) -> None:
    """Nobody asks for metrics."""


_real_run_leased = jobs.MaintenanceJobs._run_leased


async def _run_leased(self: Any, dataset_id: bytes, holder: str, work: Any) -> Any:
    """Notes who maintains a dataset: one job at a time."""
    host, process = _host()
    world = host.world
    other = world.maintenance.get(dataset_id)
    if other is not None and not other[0].is_dead and world.has_leases:
        world.violated(f"{holder} runs beside {other[1]}")
    world.maintenance[dataset_id] = mine = process, holder
    try:
        return await _real_run_leased(self, dataset_id, holder, work)
    finally:
        if world.maintenance.get(dataset_id) is mine:
            del world.maintenance[dataset_id]


class _AtOnce:
    """Executor whose work is done when it is given: threads of an executor are unknown to the simulated clock."""

    def __init__(self, _threads: int) -> None: ...

    def __enter__(self) -> "_AtOnce":
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, work: Callable[..., Any], *arguments: object) -> Future[Any]:
        done = Future[Any]()
        try:
            done.set_result(work(*arguments))
        except Exception as error:  # not the death of the process
            done.set_exception(error)
        return done


def install() -> None:
    """Give the assembly of servers the simulated stores and sockets."""
    replaced = {
        "open_store": _open_store,
        "open_metadata": _open_metadata,
        "_listening": _listening,
        "publish": _publish,
        "step_watch": lambda metrics: nullcontext(),
        "IDENTITY_REFRESH_S": IDENTITY_REFRESH_S,
    }
    for name, value in replaced.items():
        setattr(assemble, name, value)
    referring_copy.REFERENCE_BYTES_MIN = equal_extents.REFERENCE_BYTES_MIN = 1  # as chunks are small here
    setattr(table, "ThreadPoolExecutor", _AtOnce)  # noqa: B010  # another type
    jobs.MaintenanceJobs._run_leased = _run_leased  # type: ignore[method-assign]  # notes who works
    setattr(connection, "_write", lambda connected, views: connected.write(views))  # noqa: B010  # mypy takes the assignment for a mistake
