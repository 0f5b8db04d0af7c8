"""A simulated job: daemons, mounts without a kernel, and programs with the library, on several machines. They run the
real code of cluster, peers, placement, membership, node cache and look-ahead.
"""

import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio

from dieselfs.cluster import access, daemon, node_client, peer_hedge
from dieselfs.dataset import reader
from dieselfs.net.address import TcpAddress
from dieselfs.rpc.client import ServerClient
from dieselfs.settings.table import OFF, CacheOptions, JobSettings, Settings
from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.server import ServerSource
from dieselfs.transfer.sender import ChunkSender
from dieselfs.transfer.writer import DatasetWriter
from dieselfs_client import cache_daemon
from dieselfs_client.cluster import local_service, node_paths, pool, role
from tests.simulation import clients, machines
from tests.simulation.actors import Cluster, in_process
from tests.simulation.green import Process, current_process
from tests.simulation.job_oracle import JobOracle
from tests.simulation.job_plan import ALL, OUTAGE
from tests.simulation.machines import Life, Machine
from tests.simulation.mounts import Mount
from tests.simulation.network import Listener, Network
from tests.simulation.programs import DATASET, IDLE_S_MAX, Program
from tests.simulation.scenario import Scenario
from tests.simulation.seams import PROCESS_ID

JOB = "job"
OUTAGE_S = 25.0
CUT_BEFORE_S = 0.01
"""Connections break this long before the end of an outage."""
RETURN_S = 12.0
"""A peer that answers again gets all requests after this time."""


class SimulatedJob:
    """One job of a run. `begin` and `end` are called while nothing fails."""

    def __init__(self, cluster: Cluster, scenario: Scenario, network: Network, nursery: trio.Nursery) -> None:
        assert scenario.job is not None
        self.plan, self._cluster, self._network = (plan := scenario.job), cluster, network
        clocks_s = [scenario.skews_s.get(f"server{number}", 0.0) for number in range(scenario.servers)]
        self._has_close_clocks = plan.has_close_clocks and max(clocks_s) - min(clocks_s) < 1
        self._world = world = cluster.world
        self.oracle = JobOracle(world, {})
        self.machines = [
            Machine(world, network, f"node{number}", cluster.folder / f"node{number}", skew_s, nursery)
            for number, skew_s in enumerate(plan.skews_s)
        ]
        self._programs: dict[str, Program] = {}
        self._snapshot = b""
        self._is_over = False

    # -- phases ------------------------------------------------------------------------------------------------

    async def begin(self, servers: Sequence[str]) -> None:
        """Store the dataset, start the nodes, and read everything once."""
        await in_process(self._world, "setup", 0.0, self._store)
        starts_s: dict[str, float] = {}
        for number, machine in enumerate(self.machines):
            machine.folder.mkdir(mode=0o700)
            machine.parts = {"job": self}
            if self.plan.has_cache[number]:
                self.start_daemon(machine, number, False)
            for place in range(self.plan.mounts[number]):
                self.start_mount(machine, number, 10 * number + place)
            for place in range(self.plan.programs):
                name = f"{machine.name}.{place}"
                settings = self.settings(machine, number, 100 * number + place)
                self._programs[name] = Program(name, machine, settings, self.plan.program_bytes, self.oracle)
                starts_s[name] = self.plan.starts_s[number]
        self.oracle.programs = sorted(self._programs)
        await self._each(lambda program: program.start(starts_s[program.name]))
        await self._each(lambda program: program.read_all("the begin"))
        if self.plan.fits and self._has_close_clocks:
            self.oracle.check_once("the begin")
        if self.plan.what_fails == OUTAGE:
            await self._outage(servers)

    async def act(self) -> None:
        """The reads of all programs, among faults."""
        steps = self._world.course.steps

        async def read(program: Program) -> None:
            for each in self.plan.of(program.name):
                if steps is None or each.number in steps:
                    await program.read(each)

        self.oracle.failures_excused = self.plan.what_fails == ALL
        await self._each(read)

    async def disturb(self, servers: Sequence[str]) -> None:
        """Crashes and partitions of nodes that come at any time, until cancelled."""
        world = self._world
        while True:
            await trio.sleep(5 * world.faults.random() ** 2)
            one, other = world.faults.sample(self.machines, 2)
            server, long_s = world.faults.choice(servers), 60 * world.faults.random() ** 2
            victim = world.faults.choice(living) if (living := one.living) else None
            if victim is not None and world.fault("node crash"):
                one.kill(victim, "node crash")
            if victim is not None and "program" not in victim.parts and world.fault("node hangs"):
                self._network.hang(victim, long_s)
            if victim is not None and world.fault("daemon stops"):
                victim.parts["life"].stopping.set()
            if world.fault("nodes parted"):
                self._network.part(one.name, other.name, long_s)
            if world.fault("node parted from a server"):
                self._network.part(one.name, server, long_s)

    async def _outage(self, servers: Sequence[str]) -> None:
        """No server is reached for longer than a lease, while the nodes read. They keep what they know."""
        for machine in self.machines:
            for server in servers:
                self._network.part(machine.name, server, OUTAGE_S)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_lists)
            nursery.start_soon(self._cut_off, servers)
            await trio.sleep(OUTAGE_S / 2)
            await self._each(lambda program: program.read_all("in the outage", False))
            await trio.sleep(OUTAGE_S)
            nursery.cancel_scope.cancel()
        await self._each(lambda program: program.read_all("after the outage"))
        self.oracle.check_once("after the outage")

    async def _cut_off(self, servers: Sequence[str]) -> None:
        """Else what nodes have sent in the outage would renew all leases at its end, at one moment."""
        await trio.sleep(OUTAGE_S - CUT_BEFORE_S)
        for machine in self.machines:
            for server in servers:
                self._network.cut(machine.name, server)

    async def end(self) -> None:
        """Nothing fails any more, and has not for a while: all agree, and nothing that was fetched is fetched again."""
        self.oracle.failures_excused = False
        await self._each(lambda program: program.start(0.0))
        await self._each(lambda program: program.read_all("awake", paths=1))  # starts daemons that have ended
        await trio.sleep(RETURN_S)
        before = self.oracle.sent.copy()
        await self._each(lambda program: program.read_all("the end"))
        if self._has_close_clocks:
            self._check_agreement()
            if self.plan.fits:
                self.oracle.check_once("the end", before)
                before = self.oracle.sent.copy()
                await next(iter(self._programs.values())).read_all("the end again")
                self.oracle.check_once("the end again", before, 0)
        self._world.note(f"job: {self.oracle.reads} reads, slowest {self.oracle.slowest_s:.1f} s")
        await self._stop()

    def _masters(self) -> list[tuple[Process, Any]]:
        return [
            (process, process.parts["pool"])
            for machine in self.machines
            for process in machine.living
            if "pool" in process.parts
        ]

    async def _watch_lists(self) -> None:
        """No master forgets another one that lives, while servers are away and when they answer again."""
        known = {process: {member.incarnation for member in its.members} for process, its in self._masters()}
        while True:
            await trio.sleep(0.2)
            masters = self._masters()
            living = {its._membership._me.incarnation for _, its in masters}
            for process, its in masters:
                lost = known.get(process, set()) & living - {member.incarnation for member in its.members}
                if lost:
                    self._world.violated(f"{process.name} has forgotten {len(lost)} masters that live")
                    return

    def _check_agreement(self) -> None:
        masters = self._masters()
        lists = [
            (f"program {program.name}", program.members)
            for program in self._programs.values()
            if program.members
        ]
        self.oracle.check_agreement(masters, lists)

    async def _stop(self) -> None:
        """Programs end, and so do the daemons that they have started."""
        self._is_over = True
        await self._each(Program.stop)
        lives = [life for machine in self.machines for life in machine.lives.values()]
        for life in lives:
            if not self.plan.ends_idle or life.is_operators:
                life.stopping.set()
        with trio.move_on_after(IDLE_S_MAX):
            for life in lives:
                await life.ended.wait()
        if left := [life.number for life in lives if not life.ended.is_set()]:
            self._world.violated(f"processes {left} do not end")

    async def _each(self, do: Callable[[Program], Any]) -> None:
        async with trio.open_nursery() as nursery:
            for program in self._programs.values():
                nursery.start_soon(do, program)

    # -- what processes use ------------------------------------------------------------------------------------

    def _store(self) -> None:
        """The files of the job, with this number of files in each chunk; all contents differ."""
        source, plan = random.Random(f"{self._world.course.seed} files"), self.plan
        client = self._cluster.client("setup")
        sender = ChunkSender(client, client.create_dataset(DATASET))
        try:
            writer = DatasetWriter(sender)
            for chunk in range(plan.chunks):
                for number in range(plan.files_per_chunk):
                    path = f"{number}/{chunk}"
                    content = source.randbytes(source.randint(1, 2 * plan.file_bytes))
                    self.oracle.contents[path] = content
                    writer.put(path.encode(), content)
                writer.flush()
        finally:
            sender.close()
        served = client.snapshot(DATASET).content
        assert served is not None
        self._snapshot = bytes(served)

    def snapshot(self) -> Snapshot:
        return Snapshot(self._snapshot, "snapshot")

    def settings(self, machine: Machine, node: int, rank: int) -> Settings:
        options = JobSettings(
            job=JOB, job_nodes=self.plan.nodes, job_node=machine.name, job_rank=rank, job_host=machine.name
        )
        return Settings(
            machine.folder,
            machine.folder / "cache",
            server=self._cluster.servers,
            key_file=str(self._cluster.key_file),
            tls=OFF,
            job=options,
            job_memory_bytes=self.plan.memory_bytes[node],
        )

    def start_daemon(
        self, machine: Machine, node: int, is_until_idle: bool, snapshot: Snapshot | None = None
    ) -> Life:
        """`dlcmd cache`, or what a program starts."""
        settings = self.settings(machine, node, 1000 + node)
        options = CacheOptions(
            **{name: getattr(settings.job, name) for name in JobSettings.__slots__},
            server=settings.server,
            key_file=settings.key_file,
            memory_bytes=settings.job_memory_bytes,
        )

        async def serve(process: Process) -> None:
            self._may_crash(process)
            await trio.sleep(self._world.delay_s(0.3))  # Python starts
            client = ServerClient(settings)
            served = snapshot or self.snapshot()
            await cache_daemon.serve_cache(
                served, ServerSource(client, served), options, client=client, is_until_idle=is_until_idle
            )

        return machine.start(serve, is_operators=not is_until_idle)

    def start_mount(self, machine: Machine, node: int, rank: int) -> None:
        """A mount, which its supervisor starts again when it dies."""

        async def serve(process: Process) -> None:
            self._may_crash(process)
            settings = self.settings(machine, node, rank)
            mount = Mount(self._world, self.oracle, settings, self.snapshot(), not self.plan.fits, rank)
            await mount.run(process)

        async def supervise() -> None:
            while True:
                life = machine.start(serve, is_operators=True)
                await life.ended.wait()
                if self._is_over:
                    return
                await trio.sleep(self._world.delay_s(0.1))

        machine.nursery.start_soon(supervise)

    def _may_crash(self, process: Process) -> None:
        def wait() -> None:
            if self._world.fault("crash at a wait"):
                process.parts["machine"].kill(process, "crash at a wait")

        process.on_wait = wait


# -- seams -------------------------------------------------------------------------------------------------------


class _PeerListener(Listener):
    """With the `socket` of a `trio.SocketListener`."""

    def __init__(self, listener: Listener, address: TcpAddress) -> None:
        self.accept = listener.accept  # type: ignore[method-assign]  # it stands for the listener
        where = (address.host, address.port)
        self.socket = SimpleNamespace(getsockname=lambda: where, close=lambda: None)


@asynccontextmanager
async def _open_listeners(address: TcpAddress) -> AsyncIterator[list[_PeerListener]]:
    machine, process = machines.machine(), current_process()
    assert process is not None
    machine.last_port += 1
    address = replace(address, port=machine.last_port)
    yield [_PeerListener(machine.network.listen(address, process, "peer "), address)]


def _start(command: Sequence[str], log: Path, descriptors: Sequence[int] = (), folder: str = "/") -> int:
    """As `launch.start`, of the daemon of a node."""
    machine = machines.machine()
    job: SimulatedJob = machine.parts["job"]
    snapshot = Snapshot.open(command[command.index("--snapshot") + 1])
    life = job.start_daemon(machine, job.machines.index(machine), True, snapshot)
    machine.world.note(f"starts process {life.number}")
    return PROCESS_ID + life.number


def _counted(right: Callable[..., Any]) -> Callable[..., Any]:
    """A method of `ServerSource` that brings bytes of a chunk."""

    def fetch(self: ServerSource, chunk: int, *args: Any) -> Any:
        result = right(self, chunk, *args)
        process = current_process()
        if process is not None and "machine" in process.parts and self.snapshot.dataset == DATASET:
            job: SimulatedJob = process.parts["machine"].parts["job"]
            job.oracle.came(chunk)
            machines.machine().world.note(f"process {process.number} got chunk {chunk} from a server")
        return result

    return fetch


class _Pool(pool.Pool):
    """Notes who is the master of a node."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        process = current_process()
        assert process is not None
        machine: Machine = process.parts["machine"]
        process.parts["pool"] = self
        machine.world.note(f"process {process.number} is the node master")
        machine.parts["job"].oracle.check_masters(machine.living)

    async def run(self, *args: Any) -> None:
        try:
            await super().run(*args)
        finally:  # it has left the job, and another process of the node may take its place
            process = current_process()
            assert process is not None
            process.parts.pop("pool", None)


async def _publish(*_: object) -> None:
    """Nobody asks for metrics."""


def install() -> None:
    """Give the processes of jobs the simulated machines."""
    replaced: list[tuple[Any, dict[str, Any]]] = [
        (trio, {"open_signal_receiver": machines.open_signal_receiver}),
        (pool, {"open_listeners": _open_listeners}),
        (role, {"bound": machines.bound, "Pool": _Pool}),
        (local_service, {"peer_user": lambda connection: os.getuid()}),
        (node_paths, {"runtime_folder": machines.runtime_folder, "NodeLock": machines.Lock}),
        (access, {"runtime_folder": machines.runtime_folder}),
        (reader, {"runtime_folder": machines.runtime_folder}),
        (
            node_client,
            {
                "connect_private": machines.connect_private,
                "receive_with_descriptors": machines.receive_with_descriptors,
            },
        ),
        (
            daemon,
            {
                "connect_private": machines.connect_private,
                "peer_process": lambda connection: PROCESS_ID + connection.server.number,
                "ProcessHandle": machines.Handle,
                "NodeLock": machines.Lock,
                "locked": machines.locked,
                "start": _start,
            },
        ),
        (
            peer_hedge,
            {
                "first_to_answer": clients.first_to_answer,
                "socket": SimpleNamespace(socketpair=machines.bells),
            },
        ),
        (cache_daemon, {"room_bytes": lambda: (None, ""), "publish": _publish}),
        (
            ServerSource,
            {
                "fetch_parts": _counted(ServerSource.fetch_parts),
                "fetch_joined": _counted(ServerSource.fetch_joined),
            },
        ),
    ]
    for module, names in replaced:
        for name, value in names.items():
            setattr(module, name, value)
