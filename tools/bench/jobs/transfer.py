"""Extents and chunks from one node of a job to another, compared with plain sockets between two Python processes.

The peer has all chunks in memory and runs in its own process; this process requests and verifies as a node does, with
TLS and without. Sockets of Python's `ssl`, and plain ones with `send` and with `sendfile`, move equal blocks from
memory into allocated memory, unverified. All over loopback. This module starts processes.
"""

import mmap
import os
import socket
import ssl
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from enum import IntEnum
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import BinaryIO

import trio

from bench.harness.figures import Run, RunFailed, Scale, Side, Trial
from bench.harness.forms import LARGE_FILE_BYTES, SMALL_FILE_BYTES, Home, make_tree, running_home, store_tree
from bench.harness.readers import ForkedProcess
from bench.harness.stopwatch import measure
from dieselfs.cluster.credential import JobCredential
from dieselfs.cluster.member import INCARNATION_BYTES, Member
from dieselfs.cluster.peer_client import PeerClient
from dieselfs.cluster.pooled_source import PooledSource
from dieselfs.cluster.secret import JobSecret
from dieselfs.dataset import Dataset
from dieselfs.errors import DieselfsError
from dieselfs.limits import CHUNK_TARGET_BYTES, MIB
from dieselfs.net.address import TcpAddress
from dieselfs.net.tls import new_context
from dieselfs.rpc.serving.server import open_listeners
from dieselfs.snapshot.reader import ExtentRef
from dieselfs.sources.interface import Wanted
from dieselfs_client.cluster.peer_service import PeerService
from dieselfs_client.memory.node_cache import NodeCache
from dieselfs_server.access.certificates import identity_tls
from dieselfs_server.access.identity import Identity

CHUNKS = 16
REQUEST_CHUNKS = 4
"""Whose extents are requested together: 16 MiB, two requests."""
RANKS = 4
"""Each requests one file in RANKS of a chunk, and of RANKS times as many chunks at once."""
PASSES = 4
"""How often a run moves everything: 256 MiB, in less than a second."""
ROUNDS = 3
"""Rounds for each round of other benchmarks."""
SECRET, HOST = JobSecret(bytes(32)), "127.0.0.1"
START_TIMEOUT_S, ANSWER_TIMEOUT_S = 60.0, 30.0

TLS_SOCKET = "socket of Python's ssl"

_ORDER = struct.Struct("<?II")
"""To the plain process: whether with `sendfile`, offset, length."""


def transfer(folder: Path, scale: Scale) -> Generator[Trial]:
    for file_bytes in (SMALL_FILE_BYTES, LARGE_FILE_BYTES):
        with asking_node(folder / str(file_bytes), file_bytes) as (node, bare, plain):
            title, request_bytes = f"Extents of {file_bytes:,} bytes", REQUEST_CHUNKS * CHUNK_TARGET_BYTES
            ways = [
                (f"{title}, a quarter of each chunk", AskingNode.shares, request_bytes),
                (f"{title}, all of each chunk", AskingNode.all_extents, request_bytes),
            ]
            if file_bytes == SMALL_FILE_BYTES:
                ways.append(("Whole chunks", AskingNode.whole_chunks, CHUNK_TARGET_BYTES))
            for title, ask, request_bytes in ways:
                runs: dict[str, Callable[[], Run]] = {
                    "node to node": partial(node.run, ask),
                    "node to node, tls off": partial(bare.run, ask),
                    TLS_SOCKET: partial(plain.run, Way.TLS, request_bytes),
                    "plain socket, send": partial(plain.run, Way.SEND, request_bytes),
                    "plain socket, sendfile": partial(plain.run, Way.SENDFILE, request_bytes),
                }
                amount = PASSES * node.size_bytes / MIB
                sides = [Side(name, run, amount, "MiB") for name, run in runs.items()]
                yield Trial(title, sides, ROUNDS * scale.rounds, TLS_SOCKET)


@contextmanager
def asking_node(
    folder: Path, file_bytes: int, chunks: int = CHUNKS
) -> Iterator[tuple["AskingNode", "AskingNode", "PlainEnd"]]:
    """A node whose peer has `chunks` chunks of such files, the same without TLS, and the sockets of Python alone, in a
    new folder.
    """
    folder.mkdir()
    tree = make_tree(folder / "source", chunks * CHUNK_TARGET_BYTES // file_bytes, file_bytes)
    with running_home(folder / "home") as home:
        store_tree(home, tree.folder, tree.size_bytes)
        with ExitStack() as stack:
            processes = [
                stack.enter_context(closing(ForkedProcess(work)))
                for work in (
                    partial(_serve_peer, home, 2 * tree.size_bytes, True),
                    partial(_serve_peer, home, 2 * tree.size_bytes, False),
                    partial(_serve_plainly, tree.size_bytes),
                )
            ]
            dataset = stack.enter_context(home.dataset())
            nodes = []
            for process, has_tls in zip(processes, (True, False), strict=False):
                port, fingerprint = process.receive(START_TIMEOUT_S)
                address, incarnation = TcpAddress(HOST, port), bytes(INCARNATION_BYTES)
                member = Member("peer", 1, address, 2 * tree.size_bytes, incarnation, fingerprint)
                node = AskingNode(dataset, member, process.pid, has_tls)
                nodes.append(stack.enter_context(closing(node)))
            address_of_plain = HOST, processes[2].receive(START_TIMEOUT_S)
            sockets = [
                stack.enter_context(socket.create_connection(address_of_plain, ANSWER_TIMEOUT_S))
                for _ in range(2)
            ]
            encrypted = stack.enter_context(new_context(ssl.PROTOCOL_TLS_CLIENT).wrap_socket(sockets[1]))
            yield nodes[0], nodes[1], PlainEnd(sockets[0], encrypted, processes[2].pid, tree.size_bytes)


def _run(work: Callable[[], int], size_bytes: int, other_end: int) -> Run:
    """Everything, PASSES times."""
    moved_bytes: list[int] = []
    run = measure(lambda: moved_bytes.extend(work() for _ in range(PASSES)), {"other end": [other_end]})
    if moved_bytes != [size_bytes] * PASSES:
        raise RunFailed(f"{moved_bytes} bytes received, {size_bytes} expected each time")
    return run


# -- a node of a job -------------------------------------------------------------------------------------


def _serve_peer(home: Home, memory_bytes: int, has_tls: bool, pipe: Connection) -> None:
    """A node with all chunks in memory."""
    with home.dataset() as dataset:
        trio.run(_be_peer, dataset, memory_bytes, has_tls, pipe)


async def _be_peer(dataset: Dataset, memory_bytes: int, has_tls: bool, pipe: Connection) -> None:
    snapshot, credential = dataset.snapshot, JobCredential(SECRET, has_tls)
    async with trio.open_nursery() as nursery, open_listeners(TcpAddress(HOST, 0)) as (listener,):
        node_cache = NodeCache(snapshot, dataset.chunks.fetch_segment, memory_bytes, 0, nursery)
        for chunk in range(snapshot.chunk_count):
            await node_cache.fetch(chunk)
        pipe.send((listener.socket.getsockname()[1], credential.fingerprint))
        await PeerService(snapshot, node_cache, credential).serve(listener)


class AskingNode:
    """A node that requests everything from its one peer."""

    def __init__(self, dataset: Dataset, peer: Member, process: int, has_tls: bool) -> None:
        """`process`: of the peer."""
        snapshot = dataset.snapshot
        self._process = process
        self._peers = PeerClient(JobCredential(SECRET, has_tls), snapshot.digest)
        self._source = PooledSource(snapshot, lambda _: peer, None, self._peers, dataset.chunks)
        self._chunks = range(snapshot.chunk_count)
        self._extents: dict[int, list[ExtentRef]] = {chunk: [] for chunk in self._chunks}
        for node in snapshot.walk():
            for extent in snapshot.extents(node):
                self._extents[extent.chunk].append(extent)
        self.size_bytes = sum(map(snapshot.chunk_payload_length, self._chunks))

    def close(self) -> None:
        self._source.close()
        self._peers.close()

    def figures(self) -> dict[str, int]:
        figures: dict[str, int] = self._source.metrics.as_dict()["requested"]
        return figures

    def run(self, ask: Callable[["AskingNode"], int]) -> Run:
        """Raises RunFailed if a byte was not from the peer."""
        run = _run(partial(ask, self), self.size_bytes, self._process)
        figures = self.figures()
        if figures["from_peers"] != figures["extents"]:
            raise RunFailed(f"the peer did not have everything: {figures}")
        return run

    def shares(self) -> int:
        """The files of each rank in turn, of many chunks in one request."""
        return sum(self._ask(self._chunks, rank, RANKS) for rank in range(RANKS))

    def all_extents(self) -> int:
        starts = range(0, len(self._chunks), REQUEST_CHUNKS)
        return sum(self._ask(self._chunks[start : start + REQUEST_CHUNKS], 0, 1) for start in starts)

    def whole_chunks(self) -> int:
        return sum(len(self._source.fetch_chunk(chunk)) for chunk in self._chunks)

    def _ask(self, chunks: Sequence[int], rank: int, ranks: int) -> int:
        """Request the files of one rank; the bytes that arrived."""
        total_bytes = 0
        wanted = Wanted({chunk: self._extents[chunk][rank::ranks] for chunk in chunks})
        for arrival in self._source.fetch_many(wanted):
            for extents in arrival.values():
                if isinstance(extents, DieselfsError):
                    raise extents
                total_bytes += sum(map(len, extents))
        return total_bytes


# -- a plain socket --------------------------------------------------------------------------------------


class Way(IntEnum):
    """How the other process sends."""

    SEND = 0
    SENDFILE = 1
    TLS = 2


class PlainEnd:
    """Receives the memory of another process over a socket, plain or of Python's `ssl`, into one buffer. That memory is
    as large as the node's, as a smaller one would stay in the processor's caches.
    """

    def __init__(
        self, connected: socket.socket, encrypted: socket.socket, process: int, content_bytes: int
    ) -> None:
        self._connected, self._encrypted = connected, encrypted
        self._process, self._content_bytes = process, content_bytes

    def run(self, way: Way, request_bytes: int) -> Run:
        return _run(partial(self.receive, way, request_bytes), self._content_bytes, self._process)

    def receive(self, way: Way, request_bytes: int) -> int:
        """Request all of the content, `request_bytes` at a time."""
        memory = memoryview(bytearray(request_bytes))
        connected = self._encrypted if way == Way.TLS else self._connected
        for start in range(0, self._content_bytes, request_bytes):
            left = memory[: self._content_bytes - start]
            connected.sendall(_ORDER.pack(way == Way.SENDFILE, start, len(left)))
            while left:
                size = connected.recv_into(left)
                if not size:
                    raise RunFailed("the plain socket was closed")
                left = left[size:]
        return self._content_bytes


def _serve_plainly(content_bytes: int, pipe: Connection) -> None:
    """From a memfd, as a node cache does: a plain socket, then one of TLS, each for one client at a time."""
    memory = os.memfd_create("plain")
    os.truncate(memory, content_bytes)
    with (
        socket.create_server((HOST, 0)) as listener,
        open(memory, "r+b") as file,
        mmap.mmap(memory, content_bytes) as content,
    ):
        content.write(os.urandom(content_bytes))
        pipe.send(listener.getsockname()[1])
        plain, _ = listener.accept()
        other, _ = listener.accept()
        for each in (plain, other):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = identity_tls(Identity.generate()).context
        with plain, context.wrap_socket(other, server_side=True) as encrypted, memoryview(content) as view:
            threads = [Thread(target=_answer, args=(each, file, view)) for each in (plain, encrypted)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()


def _answer(connected: socket.socket, file: BinaryIO, view: memoryview) -> None:
    while order := connected.recv(_ORDER.size):
        is_sendfile, start, size = _ORDER.unpack(order)
        if is_sendfile:
            connected.sendfile(file, start, size)
        else:
            connected.sendall(view[start : start + size])
