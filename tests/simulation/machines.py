"""Simulated machines: the processes of a node, its locks, and its Unix sockets, over which daemons pass memory."""

import fcntl
import os
import signal
import time
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import trio

from dieselfs.cluster.node_lock import _CACHE, NodeLock
from dieselfs.errors import DieselfsError
from dieselfs.process import state_dirs
from tests.simulation.clock import now_s, scheduler
from tests.simulation.green import Killed, Process, Signal, current_process, enter, park
from tests.simulation.network import LATENCY_S, Network
from tests.simulation.seams import PROCESS_ID
from tests.simulation.world import World

SILENCE_NOTED_S = 5.0
"""A process that answers again is not taken for silent after this time."""

Work = Callable[[Process], Awaitable[object]]


@dataclass(eq=False)
class Life:
    """One process of a machine, from its start to its end. `process` is None until it runs. `is_operators`: it ends
    when it is told to.
    """

    number: int
    is_operators: bool = False
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    process: Process | None = None
    stopping: trio.Event = field(default_factory=trio.Event)
    ended: trio.Event = field(default_factory=trio.Event)


@dataclass(eq=False)
class Machine:
    """A machine of a job. Its processes are named as it is, so that the network parts all of them at once."""

    world: World
    network: Network
    name: str
    folder: Path
    skew_s: float
    nursery: trio.Nursery
    lives: dict[int, Life] = field(default_factory=dict)
    listeners: dict[str, "LocalListener"] = field(default_factory=dict)
    last_port: int = 8000
    parts: dict[str, Any] = field(default_factory=dict)
    """What uses the machine."""

    def start(self, work: Work, is_operators: bool = False) -> Life:
        """Start a process; it has its ID at once."""
        self.world.processes += 1
        life = Life(self.world.processes, is_operators)
        self.lives[PROCESS_ID + life.number] = life
        self.nursery.start_soon(self._live, life, work)
        return life

    async def _live(self, life: Life, work: Work) -> None:
        try:
            with life.scope:
                async with trio.open_nursery() as threads:
                    process = Process(self.name, life.number, self.skew_s)
                    threads.start_soon(process.reap)
                    process.parts |= {"machine": self, "life": life}
                    life.process = process
                    enter(process)
                    await work(process)
                    threads.cancel_scope.cancel()
        except* Killed:
            pass
        except* DieselfsError as failures:
            self.world.note(f"process {life.number} ends: {failures.exceptions[0]!r}")
        finally:
            if life.process is not None and not life.process.is_dead:
                self.world.note(f"process {life.number} ends")
                self._end(life.process)
            life.ended.set()

    @property
    def living(self) -> list[Process]:
        return [
            life.process
            for life in self.lives.values()
            if life.process is not None and not life.process.is_dead
        ]

    def kill(self, process: Process, why: str) -> None:
        """As SIGKILL: nothing that the process still does has an effect."""
        if not process.is_dead:
            self.world.note(f"{why}: kills process {process.number} of {self.name}")
            self._end(process)
            process.parts["life"].scope.cancel()

    def _end(self, process: Process) -> None:
        process.is_dead = True
        self.network.crash(process)
        for lock in process.parts.get("locks", ()):  # the kernel releases them
            lock.close()
        for listener in self.listeners.values():
            for link in [*listener.links]:
                if process in (link.client, link.server):
                    listener.links.remove(link)
                    link.reset()

    def kill_silent(self, process: Process) -> None:
        """One process kills another because it does not answer."""
        if self.network.hung_s(process) < now_s() - SILENCE_NOTED_S:
            self.world.violated(f"process {process.number} is killed as silent, and answers")
        self.kill(process, "silent")


def machine() -> Machine:
    """That of the present process."""
    process = current_process()
    assert process is not None
    found: Machine = process.parts["machine"]
    return found


# -- Unix sockets ----------------------------------------------------------------------------------------


@dataclass(eq=False)
class LocalPipe:
    """Packets in one direction, with the descriptor of each, -1 for none."""

    packets: deque[tuple[float, bytes, int]] = field(default_factory=deque)
    is_closed: bool = False
    changed: Signal = field(default_factory=Signal)

    def take(self) -> tuple[bytes, int] | None:
        """The next packet; empty at the end, None if there is none yet."""
        if self.packets and self.packets[0][0] <= now_s():
            _, content, descriptor = self.packets.popleft()
            return content, descriptor
        return (b"", -1) if self.is_closed and not self.packets else None


@dataclass(eq=False)
class LocalLink:
    """A connection of two processes of a machine; the pipes are to the server, and to the client."""

    network: Network
    client: Process
    server: Process
    pipes: tuple[LocalPipe, LocalPipe] = field(default_factory=lambda: (LocalPipe(), LocalPipe()))

    def send(self, direction: int, content: bytes, descriptor: int = -1) -> None:
        pipe = self.pipes[direction]
        if pipe.is_closed:
            raise BrokenPipeError(32, "Broken pipe")
        due_s = now_s() + self.network.world.delay_s(LATENCY_S)
        due_s = max(due_s, self.network.healed_s(self.client, self.server))
        pipe.packets.append((due_s, content, os.dup(descriptor) if descriptor >= 0 else -1))
        scheduler().call_at(due_s, pipe.changed.notify)

    def close(self, direction: int) -> None:
        self.pipes[direction].is_closed = True
        self.pipes[direction].changed.notify()

    def reset(self) -> None:
        for pipe in self.pipes:
            pipe.is_closed = True
            for _, _, descriptor in pipe.packets:
                if descriptor >= 0:
                    os.close(descriptor)
            pipe.packets.clear()
            pipe.changed.notify()


class LocalListener:
    """As a listening `trio.socket`, of packets."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.links: list[LocalLink] = []
        self._send, self._receive = trio.open_memory_channel[LocalLink](1000)

    def arrive(self, link: LocalLink) -> None:
        self.links.append(link)
        self._send.send_nowait(link)

    async def accept(self) -> tuple["LocalConnection", None]:
        return LocalConnection(await self._receive.receive()), None


class LocalConnection:
    """The daemon's end."""

    def __init__(self, link: LocalLink) -> None:
        self._link = link

    def __enter__(self) -> "LocalConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close(1)

    async def recv(self, size: int) -> bytes:
        await trio.lowlevel.checkpoint()
        pipe = self._link.pipes[0]
        while (found := pipe.take()) is None:
            await pipe.changed.wait()
        return found[0]

    async def sendmsg(self, buffers: list[bytes], extras: list[tuple[int, int, bytes]]) -> None:
        await trio.lowlevel.checkpoint()
        self._link.server.check()
        descriptors = array("i", extras[0][2] if extras else b"")
        self._link.send(1, b"".join(buffers), descriptors[0] if descriptors else -1)


class LocalSocket:
    """The reader's end, for green threads."""

    def __init__(self, link: LocalLink) -> None:
        self._link, self._is_open, self._timeout_s = link, True, inf

    @property
    def server(self) -> Process:
        return self._link.server

    def __enter__(self) -> "LocalSocket":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def settimeout(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def fileno(self) -> int:
        return 1 if self._is_open else -1

    def send(self, content: bytes) -> int:
        self._link.client.check()
        self._link.send(0, content)
        return len(content)

    def receive(self) -> tuple[bytes, int]:
        pipe, until_s = self._link.pipes[1], now_s() + self._timeout_s
        self._link.client.check()
        while (found := pipe.take()) is None and park((pipe.changed,), until_s):
            pass
        if found is None:
            raise TimeoutError("timed out")
        return found

    def recv(self, size: int) -> bytes:
        return self.receive()[0]

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._link.close(0)


def connect_private(path: Path) -> LocalSocket:
    """As that of `node_client`."""
    from dieselfs.limits import NODE_HELLO_TIMEOUT_S

    here, process = machine(), current_process()
    assert process is not None
    here.world.pause(LATENCY_S)
    listener = here.listeners.get(str(path))
    if listener is None:
        raise FileNotFoundError(2, "No such file or directory")
    if listener.process.is_dead:
        raise ConnectionRefusedError(111, "Connection refused")
    if here.network.hung_s(listener.process) > now_s() and here.world.fault("queue of readers full"):
        raise BlockingIOError(11, "Resource temporarily unavailable")
    link = LocalLink(here.network, process, listener.process)
    listener.arrive(link)
    connected = LocalSocket(link)
    connected.settimeout(NODE_HELLO_TIMEOUT_S)
    return connected


def receive_with_descriptors(
    connection: LocalSocket, length: int, descriptors: list[int], descriptors_max: int = 1
) -> tuple[bytes, int]:
    content, descriptor = connection.receive()
    if descriptor >= 0:
        descriptors.append(descriptor)
    return content, 0


@contextmanager
def bound(path: Path) -> Iterator[LocalListener]:
    """As that of `local_service`: the socket of a killed daemon stays until the next one replaces it."""
    process, here = current_process(), machine()
    assert process is not None
    listener = here.listeners[str(path)] = LocalListener(process)
    try:
        yield listener
    finally:
        if not process.is_dead and here.listeners.get(str(path)) is listener:
            del here.listeners[str(path)]


def runtime_folder() -> Path:
    return machine().folder / "run"


# -- processes and locks -----------------------------------------------------------------------------------


class Handle:
    """As `ProcessHandle`."""

    def __init__(self, process: int) -> None:
        life = machine().lives.get(process)
        if life is None or life.ended.is_set():
            raise ProcessLookupError(3, "No such process")
        self.process, self._life, self._machine = process, life, machine()

    @property
    def has_ended(self) -> bool:
        process = self._life.process
        return self._life.ended.is_set() or (process is not None and process.is_dead)

    def send(self, number: signal.Signals) -> None:
        if self.has_ended:
            raise ProcessLookupError(3, "No such process")
        if number == signal.SIGTERM:
            self._life.stopping.set()
        elif self._life.process is not None:
            self._machine.kill_silent(self._life.process)


class Lock(NodeLock):
    """The real locks of a file: they belong to the open file. Only that of the cache daemon belongs to the process,
    which all simulated ones are; here it belongs to the file too.
    """

    def __init__(self, path: Path) -> None:
        process = current_process()
        assert process is not None
        process.check()
        super().__init__(path)
        process.parts.setdefault("locks", []).append(self)

    def try_be_cache(self) -> bool:
        return self._try_lock(fcntl.F_WRLCK, _CACHE)


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """As that of `state_dirs`; the time of the file is that of the virtual clock."""
    with state_dirs.locked(path) as descriptor:
        yield descriptor
        if os.fstat(descriptor).st_size:
            with suppress(OSError):
                began_s = time.time()
                os.utime(descriptor, (began_s, began_s))


class Signals:
    """As what `trio.open_signal_receiver` yields: the process is told to end."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def __aiter__(self) -> "Signals":
        return self

    async def __anext__(self) -> int:
        await self._life.stopping.wait()
        return signal.SIGTERM


@contextmanager
def open_signal_receiver(*_: signal.Signals) -> Iterator[Signals]:
    process = current_process()
    assert process is not None
    yield Signals(process.parts["life"])


class Bell:
    """One end of `socket.socketpair`: a thread rings, another waits."""

    def __init__(self) -> None:
        from tests.simulation.network import Pipe

        self.arriving = Pipe()
        self.other: Bell | None = None

    @property
    def is_readable(self) -> bool:
        return self.arriving.is_closed or self.arriving.due_s <= now_s()

    def send(self, content: bytes) -> None:
        assert self.other is not None
        if self.other.arriving.is_closed:
            raise BrokenPipeError(32, "Broken pipe")
        self.other.arriving.segments.append((now_s(), content))
        self.other.arriving.changed.notify()

    def close(self) -> None:
        self.arriving.is_closed = True
        self.arriving.changed.notify()


def bells() -> tuple[Bell, Bell]:
    one, other = Bell(), Bell()
    one.other, other.other = other, one
    return one, other
