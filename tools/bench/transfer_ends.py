"""The two processes that `transfer` receives from: a node of a job, and one with a plain socket.

This module starts processes, and opens sockets.
"""

import mmap
import multiprocessing
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection

import trio

from bench.figures import RunFailed
from bench.homes import Home
from dieselfs.cache.member import INCARNATION_BYTES, Member
from dieselfs.cache.secret import JobSecret
from dieselfs.dataset import Dataset
from dieselfs.rpc.address import TcpAddress
from dieselfs.rpc.serving.reception import open_listeners
from dieselfs_client.job.peer_service import PeerService
from dieselfs_client.shelf import Shelf

SECRET = JobSecret(bytes(32))
HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 30.0

_ORDER = struct.Struct("<?II")
"""To the plain process: whether with `sendfile`, from where on, and how many bytes."""
_PORT = struct.Struct("<H")

_forks = multiprocessing.get_context("fork")


@contextmanager
def _serving(serve: Callable[[Connection], None]) -> Iterator[tuple[int, int]]:
    """`serve` in a process of its own, until the end of the block; its port, of which it tells, and its process ID."""
    pipe, theirs = _forks.Pipe()
    process = _forks.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        if process.pid is None or not pipe.poll(START_TIMEOUT_S):
            raise RunFailed(f"the other end did not listen within {START_TIMEOUT_S:g} s")
        try:
            (port,) = _PORT.unpack(pipe.recv_bytes())
        except EOFError:
            raise RunFailed("the other end has ended before it listened") from None
        yield port, process.pid
    finally:
        process.kill()
        process.join()
        pipe.close()


# -- a node of a job -------------------------------------------------------------------------------------


@contextmanager
def running_peer(home: Home, memory_bytes: int) -> Iterator[tuple[Member, int]]:
    """A node with all chunks of the home's dataset on its shelf; its process ID."""
    with _serving(partial(_serve_peer, home, memory_bytes)) as (port, process):
        yield Member("peer", 1, TcpAddress(HOST, port), memory_bytes, bytes(INCARNATION_BYTES)), process


def _serve_peer(home: Home, memory_bytes: int, pipe: Connection) -> None:
    with home.dataset() as dataset:
        trio.run(_be_peer, dataset, memory_bytes, pipe)


async def _be_peer(dataset: Dataset, memory_bytes: int, pipe: Connection) -> None:
    snapshot = dataset.snapshot
    async with trio.open_nursery() as nursery, open_listeners(TcpAddress(HOST, 0)) as (listener,):
        shelf = Shelf(snapshot, dataset.chunks.fetch_segment, memory_bytes, 0, nursery)
        for chunk in range(snapshot.chunk_count):
            await shelf.segment(chunk)
        pipe.send_bytes(_PORT.pack(listener.socket.getsockname()[1]))
        await PeerService(snapshot, shelf, SECRET.peer_key()).serve(listener)


# -- a plain socket --------------------------------------------------------------------------------------


@dataclass(slots=True)
class PlainEnd:
    """Receives over a plain socket, always into the same memory, what lies in the memory of another process."""

    connected: socket.socket
    process: int
    content_bytes: int

    def receive(self, is_sendfile: bool, request_bytes: int) -> int:
        """Ask for all of the content, so many bytes at a time."""
        memory = memoryview(bytearray(request_bytes))
        for start in range(0, self.content_bytes, request_bytes):
            left = memory[: self.content_bytes - start]
            self.connected.sendall(_ORDER.pack(is_sendfile, start, len(left)))
            while left:
                size = self.connected.recv_into(left)
                if not size:
                    raise RunFailed("the plain socket was closed")
                left = left[size:]
        return self.content_bytes


@contextmanager
def running_plain_end(content_bytes: int) -> Iterator[PlainEnd]:
    """A process that has as much in memory as the node beside it: what is sent again and again would stay in the
    processor's caches.
    """
    with (
        _serving(partial(_serve_plainly, content_bytes)) as (port, process),
        closing(socket.create_connection((HOST, port), ANSWER_TIMEOUT_S)) as connected,
    ):
        yield PlainEnd(connected, process, content_bytes)


def _serve_plainly(content_bytes: int, pipe: Connection) -> None:
    """From memory that has a descriptor, as chunks on a shelf have."""
    memory = os.memfd_create("plain")
    os.truncate(memory, content_bytes)
    with socket.create_server((HOST, 0)) as listener, mmap.mmap(memory, content_bytes) as content:
        content.write(os.urandom(content_bytes))
        pipe.send_bytes(_PORT.pack(listener.getsockname()[1]))
        connected, _ = listener.accept()
        with connected, memoryview(content) as view:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while order := connected.recv(_ORDER.size, socket.MSG_WAITALL):
                is_sendfile, start, size = _ORDER.unpack(order)
                end = start + size
                if not is_sendfile:
                    connected.sendall(view[start:end])
                    start = end
                while start < end:
                    start += os.sendfile(connected.fileno(), memory, start, end - start)
