"""The virtual network: connections between simulated processes, with delays, resets and partitions.

A connection carries bytes in order, as TCP does. Faults end it (both ends see a reset), or hold back what is sent
between two hosts until the partition ends.
"""

import errno
import socket
from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import Any

import trio

from dieselfs.errors import Unavailable
from dieselfs.net import auth
from dieselfs.net.address import Address
from tests.simulation.clock import now_s, scheduler
from tests.simulation.green import Process, Signal, current_process, park, pause
from tests.simulation.world import World

LATENCY_S = 0.0002
LOOK_S = 1.0
"""How long a blocking receive waits before its caller looks at the clock."""


@dataclass(eq=False)
class Pipe:
    """One direction of a connection."""

    segments: deque[tuple[float, bytes]] = field(default_factory=deque)  # when each arrives, and its bytes
    arrived_s: float = 0.0
    is_closed: bool = False
    is_reset: bool = False
    changed: Signal = field(default_factory=Signal)

    def take(self, size: int, now_s: float) -> bytes | None:
        """Bytes that have arrived; empty at the end; None if there are none yet. Raises ConnectionResetError."""
        if self.is_reset:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        if self.segments and self.segments[0][0] <= now_s:
            at_s, content = self.segments.popleft()
            if len(content) > size:
                self.segments.appendleft((at_s, content[size:]))
            return content[:size]
        return b"" if self.is_closed and not self.segments else None

    @property
    def due_s(self) -> float:
        """When the next bytes arrive."""
        return self.segments[0][0] if self.segments else inf


@dataclass(eq=False)
class Link:
    """A connection of a client's process to a server's process."""

    network: "Network"
    client: Process
    server: Process
    pipes: tuple[Pipe, Pipe] = field(default_factory=lambda: (Pipe(), Pipe()))  # to the server, to the client
    kind: str = ""
    """What the names of its faults begin with."""

    def send(self, direction: int, content: bytes) -> None:
        world, pipe = self.network.world, self.pipes[direction]
        if pipe.is_reset or pipe.is_closed:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        if world.fault(f"{self.kind}reset"):
            self.reset()
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        delay_s = world.delay_s(LATENCY_S)
        if world.fault(f"{self.kind}stall"):
            delay_s += 60.0 * world.faults.random() ** 2
        due_s = now_s() + delay_s
        due_s = max(due_s, self.network.healed_s(self.client, self.server))
        if self.kind and world.fault(f"{self.kind}wrong bytes") and content:
            content = flipped(content, world)
        pipe.arrived_s = max(pipe.arrived_s, due_s)
        pipe.segments.append((pipe.arrived_s, content))
        scheduler().call_at(pipe.arrived_s, pipe.changed.notify)

    def reset(self) -> None:
        for pipe in self.pipes:
            pipe.is_reset = True
            pipe.changed.notify()

    def close(self, direction: int) -> None:
        pipe = self.pipes[direction]
        pipe.is_closed = True
        pipe.changed.notify()


def flipped(content: bytes, world: World) -> bytes:
    """With one bit that is wrong."""
    place = world.faults.randrange(len(content))
    wrong = content[place] ^ 1 << world.faults.randrange(8)
    return content[:place] + bytes([wrong]) + content[place + 1 :]


class Network:
    """Who listens where, and which connections are open."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._listeners: dict[Address, Listener] = {}
        self._links: list[Link] = []
        self._parted_until_s: dict[frozenset[str], float] = {}
        self._hung_until_s: dict[Process, float] = {}

    def listen(self, address: Address, process: Process, kind: str = "") -> "Listener":
        """`kind`: that of its connections (`Link.kind`)."""
        listener = self._listeners[address] = Listener(process, kind)
        return listener

    def part(self, one: str, other: str, duration_s: float) -> None:
        """Nothing arrives between two hosts for a while."""
        self._parted_until_s[frozenset((one, other))] = now_s() + duration_s

    def cut(self, one: str, other: str) -> None:
        """Connections between two hosts break, and what was under way is lost."""
        for link in [each for each in self._links if {each.client.name, each.server.name} == {one, other}]:
            link.reset()
            self._links.remove(link)

    def healed_s(self, one: Process, other: Process) -> float:
        parted_s = self._parted_until_s.get(frozenset((one.name, other.name)), 0.0)
        return max(parted_s, self.hung_s(one), self.hung_s(other))

    def hung_s(self, process: Process) -> float:
        """Until when a process is stopped: nothing that is sent to it, or by it, arrives."""
        return self._hung_until_s.get(process, 0.0)

    def hang(self, process: Process, duration_s: float) -> None:
        self._hung_until_s[process] = now_s() + duration_s

    def heal(self) -> None:
        self._parted_until_s.clear()
        self._hung_until_s = {process: min(end_s, now_s()) for process, end_s in self._hung_until_s.items()}

    def connect(self, address: Address, timeout_s: float = 10.0) -> "ClientSocket":
        """As `dieselfs.net.sockets.open_socket`."""
        process = current_process()
        assert process is not None
        self.world.pause(LATENCY_S)
        listener = self._listeners.get(address)
        if listener is not None and self.healed_s(process, listener.process) > now_s():
            pause(timeout_s)
            raise Unavailable(f"cannot reach the server at {address}: no answer in time")
        if listener is None or listener.process.is_dead or self.world.fault(f"{listener.kind}refused"):
            raise Unavailable(f"cannot reach the server at {address}: Connection refused") from (
                ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
            )
        link = Link(self, process, listener.process, kind=listener.kind)
        self._links.append(link)
        listener.arrive(link)
        return ClientSocket(link)

    def crash(self, process: Process) -> None:
        """The process ends: its connections are reset."""
        self._listeners = {
            address: one for address, one in self._listeners.items() if one.process is not process
        }
        for link in [one for one in self._links if process in (one.client, one.server)]:
            link.reset()
            self._links.remove(link)


class Listener:
    """As `trio.SocketListener`."""

    def __init__(self, process: Process, kind: str = "") -> None:
        self.process, self.kind = process, kind
        self._send, self._receive = trio.open_memory_channel[Link](1000)

    def arrive(self, link: Link) -> None:
        self._send.send_nowait(link)

    async def accept(self) -> Any:
        return ServerStream(await self._receive.receive())


class ClientSocket:
    """As a connected socket with timeouts, for green threads. Not a `socket.socket`, so it states its channel."""

    family = socket.AF_INET
    channel = auth.PLAIN_CHANNEL

    def __init__(self, link: Link) -> None:
        self._link = link
        self._is_open = True

    @property
    def arriving(self) -> Pipe:
        return self._link.pipes[1]

    @property
    def is_readable(self) -> bool:
        """Whether a receive would not wait."""
        pipe = self.arriving
        at_end = pipe.is_reset or (pipe.is_closed and not pipe.segments)
        return at_end or pipe.due_s <= now_s()

    def settimeout(self, timeout_s: float | None) -> None:
        """Each wait is bounded by LOOK_S."""

    def setsockopt(self, *_: object) -> None:
        """Without effect."""

    def fileno(self) -> int:
        return 1 if self._is_open else -1

    def send(self, content: bytes | memoryview) -> int:
        self._link.client.check()
        self._link.send(0, bytes(content))
        return len(content)

    def recv(self, size: int, flags: int = 0) -> bytes:
        found = self._link.pipes[1].take(size, now_s())
        if found is None:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return found

    def recv_into(self, destination: memoryview, size: int = 0, flags: int = 0) -> int:
        pipe = self._link.pipes[1]
        self._link.client.check()
        until_s = now_s() + LOOK_S
        while (found := pipe.take(len(destination), now_s())) is None and park((pipe.changed,), until_s):
            pass
        if found is None:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        destination[: len(found)] = found
        return len(found)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._link.close(0)


class ServerSocket:
    """As the `socket` of a `trio.SocketStream`."""

    family = socket.AF_INET

    def __init__(self, link: Link) -> None:
        self.link = link

    def getpeername(self) -> tuple[str, int]:
        return f"10.0.0.{self.link.client.number % 200 + 1}", 1

    async def recv_into(self, destination: memoryview) -> int:
        pipe = self.link.pipes[0]
        if pipe.is_reset or pipe.due_s <= now_s():
            await trio.lowlevel.checkpoint()
        while (found := pipe.take(len(destination), now_s())) is None:
            await pipe.changed.wait()
        destination[: len(found)] = found
        return len(found)

    def write(self, views: Any) -> int:
        """In the place of `os.writev`: the network takes all."""
        self.link.server.check()
        content = b"".join(views)
        self.link.send(1, content)
        return len(content)

    def close(self) -> None:
        self.link.close(1)


class ServerStream:
    """As `trio.SocketStream`."""

    def __init__(self, link: Link) -> None:
        self.socket = ServerSocket(link)

    def setsockopt(self, *_: object) -> None:
        """Without effect."""

    async def receive_some(self, size: int) -> bytes:
        room = bytearray(size)
        try:
            filled = await self.socket.recv_into(memoryview(room))
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error
        return bytes(room[:filled])
