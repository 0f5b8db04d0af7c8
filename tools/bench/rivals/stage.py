"""The hosts: one with all servers, and for each kind of link one that reads over it. This module starts processes.

The servers share one host, so what they ask of each other takes no time on a link. All trees are stored from that host.
"""

import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from statistics import median
from threading import Thread

from lab.network import Host, Network

CAPACITY_BYTES = 8 << 30
"""Of the object storage daemon, in memory."""
_PROBES, _PROBE_BYTES = 200, 64 << 20
_PROBE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Link:
    """Of a host to the servers. `round_trip_s`: added to each round trip."""

    bytes_per_s: int
    round_trip_s: float

    def __str__(self) -> str:
        return f"{8 * self.bytes_per_s / 1e9:g} Gb/s, {1e3 * self.round_trip_s:g} ms"


LINKS = tuple(Link(rate, delay_s) for delay_s in (1e-3, 1e-4) for rate in (125_000_000, 1_250_000_000))


@dataclass(frozen=True, slots=True)
class Stage:
    """`storage`: the host of all servers; `clients`: the hosts that read."""

    net: Network
    storage: Host
    clients: Mapping[Link, Host]


@contextmanager
def running_stage(links: Sequence[Link]) -> Iterator[Stage]:
    """Until the end of the block. Raises Unsuitable."""
    with Network() as net:
        storage = net.host("storage")
        clients = {link: net.host(f"client-{number}", link.round_trip_s) for number, link in enumerate(links)}
        for link, host in clients.items():
            net.rate(host, link.bytes_per_s)
        yield Stage(net, storage, clients)


def measured_link(client: Host, storage: Host) -> tuple[float, float]:
    """The median time in seconds of a round trip of one byte, and the bytes a second of one TCP stream."""
    with storage.inside():
        listening = socket.create_server((storage.address, 0))
    with closing(listening):
        answering = Thread(target=_answer, args=[listening])
        answering.start()
        try:
            with client.inside():
                near = socket.create_connection(listening.getsockname(), _PROBE_TIMEOUT_S)
            with closing(near):
                near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return _round_trip_s(near), _rate(near)
        finally:
            listening.close()
            answering.join(_PROBE_TIMEOUT_S)


def _round_trip_s(near: socket.socket) -> float:
    took_s = []
    for _ in range(_PROBES):
        started_s = time.perf_counter()
        near.sendall(b"?")
        near.recv(1)
        took_s.append(time.perf_counter() - started_s)
    return median(took_s)


def _rate(near: socket.socket) -> float:
    """Includes the slow start of the connection."""
    started_s = time.perf_counter()
    near.sendall(bytes(_PROBE_BYTES))
    near.shutdown(socket.SHUT_WR)
    near.recv(1)
    return _PROBE_BYTES / (time.perf_counter() - started_s)


def _answer(listening: socket.socket) -> None:
    """Echo the single bytes of a connection; after that, receive to the end."""
    far = listening.accept()[0]
    with closing(far):
        far.settimeout(_PROBE_TIMEOUT_S)
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(_PROBES):
            far.sendall(far.recv(1))
        while far.recv(1 << 20):
            pass
        far.sendall(b".")
