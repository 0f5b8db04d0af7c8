"""Answers requests of the other nodes of a job, from this node's cache.

A peer must know the job's secret and read the same snapshot; it gets only chunks of that snapshot. A reply comes within
PEER_ANSWER_S, with the chunks in memory by then and the states of the others. So a node that waits for a server does
not look dead.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import trio

from dieselfs.cluster.chunk_requests import ChunkAvailability, ReceivedRequest, decode_requests
from dieselfs.cluster.credential import JobCredential
from dieselfs.cluster.holdings import encoded
from dieselfs.cluster.warmth import Warmth
from dieselfs.errors import DieselfsError, InvalidInput, ProtocolError
from dieselfs.limits import PEER_ANSWER_BYTES_MAX, PEER_ANSWER_S, PEER_CLIENTS_MAX, PEER_REPORT_BYTES_MAX
from dieselfs.net import auth
from dieselfs.rpc.messages import decode_call, encode_refusal, encode_reply, thrift
from dieselfs.rpc.methods import PEER_METHODS
from dieselfs.rpc.serving.connection import ClientConnection
from dieselfs.rpc.serving.handshake import Identity
from dieselfs.rpc.serving.server import RpcServer
from dieselfs.snapshot.reader import Snapshot
from dieselfs.telemetry.registry import Registry
from dieselfs.telemetry.socket import PublishedMetrics
from dieselfs_client.cluster.job_files import JobFiles
from dieselfs_client.cluster.job_scores import JobScores
from dieselfs_client.cluster.kept_samples import read_samples, write_samples
from dieselfs_client.memory.node_cache import NodeCache

PEER_FETCHES_MAX = 16
"""Chunks that a node fetches for one request before it answers; the peer requests the others again."""

Here = list[tuple[ReceivedRequest, memoryview]]
"""Requests for chunks in memory, with their payloads."""


class JobKeys:
    """The key of the peers of one job."""

    def __init__(self, key: auth.Key) -> None:
        self.salt = os.urandom(auth.SECRET_BYTES)
        self._key = key

    def verifier(self, name: str, key_id: str) -> auth.Verifier | None:
        is_ours = (name, key_id) == (self._key.user, self._key.key_id)
        return self._key.verifier() if is_ours else None


class PeerService:
    """Used from one trio thread. `credential`: of this process; `warmth`: returns that of this node, and starts warming
    if its argument is True.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        node_cache: NodeCache,
        credential: JobCredential,
        answer_s: float = PEER_ANSWER_S,
        warmth: Callable[[bool], Warmth] = lambda is_to_warm: Warmth(0, 0),
        metrics: Registry | None = None,
        published_metrics: PublishedMetrics | None = None,
        scores: JobScores | None = None,
        files: JobFiles | None = None,
    ) -> None:
        self._published_metrics, self._scores, self._files = published_metrics, scores, files
        self.keys = JobKeys(credential.key)
        self._has_tls = credential.has_tls
        self.metrics = metrics = metrics or Registry()
        self._requests = metrics.counter("served.requests", "Requests of other nodes.")
        self._refused = metrics.counter("served.refused", "Requests of other nodes that were refused.")
        self._bytes = metrics.counter("served.bytes", "Bytes of chunks sent to other nodes.")
        self._chunks = metrics.counter("served.chunks", "Requested chunks, sent or not.")
        self._by_state = {
            ChunkAvailability.HERE: metrics.counter("served.chunks_here", "Requested chunks sent."),
            ChunkAvailability.LATER: metrics.counter("served.chunks_later", "Requested chunks in flight."),
            ChunkAvailability.ELSEWHERE: metrics.counter(
                "served.chunks_elsewhere", "Requested chunks not fetched here."
            ),
        }
        self._snapshot = snapshot
        self._node_cache = node_cache
        self._warmth = warmth
        self._answer_s = answer_s
        self._server = RpcServer(
            self, credential.server_tls, PEER_CLIENTS_MAX, role=auth.PEER_ROLE, metrics=metrics
        )

    async def serve(self, listener: trio.SocketListener) -> None:
        """Accept peers until cancelled; then close their connections. Fetches in flight complete. Listeners come from
        `dieselfs.rpc.serving.server.open_listeners`.
        """
        await self._server.serve(listener, is_encrypted=self._has_tls)

    def logged_in(self, connection: ClientConnection, caller: Identity) -> None:
        """Nothing is logged: members connect often."""

    def refused(self, connection: ClientConnection, reason: str) -> None:
        """The listener has logged it."""

    async def answer(self, connection: ClientConnection, caller: Identity, message: bytes) -> None:
        """Answer one call. An error or a cancellation ends the connection."""
        method, sequence, arguments = decode_call(message, PEER_METHODS)
        if method in ("hello", "prove"):
            raise ProtocolError("a second handshake")
        self._requests.value += 1
        sent = await _received(connection, arguments) if hasattr(arguments, "bulk_length") else bytearray()
        try:
            if arguments.digest != self._snapshot.digest:
                ours, theirs = self._snapshot.digest.hex(), arguments.digest.hex()
                raise InvalidInput(f"this node reads snapshot {ours[:16]}, the peer {theirs[:16]}")
            if method == "ping":
                await connection.send(encode_reply(method, sequence, None))
                return
            if method == "get_warmth":
                warmth = thrift.WarmthInfo(**asdict(self._warmth(arguments.is_to_warm)))
                await connection.send(encode_reply(method, sequence, warmth))
                return
            if method in ("get_report", "get_held"):
                if method == "get_report":
                    bulk = await self._report(arguments)
                else:
                    bulk = encoded(self._snapshot.chunk_count, [*self._node_cache.policy])
                await connection.send(
                    encode_reply(method, sequence, thrift.Bulk(bulk_length=len(bulk))), [bulk]
                )
                return
            if method in ("put_scores", "get_order"):
                await self._importance(connection, method, sequence, arguments, sent)
                return
            if method in ("get_samples", "put_samples"):
                await self._samples(connection, method, sequence, arguments, sent)
                return
            requests = decode_requests(arguments, self._snapshot)
        except DieselfsError as error:
            self._refused.value += 1
            await connection.send(encode_refusal(method, sequence, error))
            return
        states, here = await self._extents(requests)
        length_bytes = sum(each.length_bytes for each, _ in here)
        reply = thrift.Extents(states=bytes(states), bulk_length=length_bytes)
        self._bytes.value += length_bytes
        extents = (
            extent for each, payload in here for extent in each.of(payload)
        )  # lazily, as they are sent
        await connection.send(encode_reply(method, sequence, reply), extents)

    async def _importance(
        self, connection: ClientConnection, method: str, sequence: int, arguments: Any, bulk: bytearray
    ) -> None:
        """Raises InvalidInput if this node has no scores, too."""
        if self._scores is None:
            raise InvalidInput("this node keeps no scores")
        if method == "put_scores":
            self._scores.add_of_peer(arguments, bulk)
            await connection.send(encode_reply(method, sequence, None))
            return
        order = await trio.to_thread.run_sync(self._scores.order_for_peer, arguments)
        await connection.send(encode_reply(method, sequence, thrift.Bulk(bulk_length=len(order))), [order])

    async def _samples(
        self, connection: ClientConnection, method: str, sequence: int, arguments: Any, bulk: bytearray
    ) -> None:
        """Raises InvalidInput for a malformed request."""
        of_job = self._files if self._files and arguments.store == self._files.store_name else None
        if of_job is not None:
            of_job.begin()
        if method == "put_samples":
            write = partial(write_samples, of_job=of_job)
            await trio.to_thread.run_sync(write, self._snapshot, arguments, bulk)
            await connection.send(encode_reply(method, sequence, None))
            return
        read = partial(read_samples, of_job=of_job)
        states, contents = await trio.to_thread.run_sync(read, self._snapshot, arguments)
        length_bytes = sum(map(len, contents))
        self._bytes.value += length_bytes
        reply = thrift.Extents(states=bytes(states), bulk_length=length_bytes)
        await connection.send(encode_reply(method, sequence, reply), contents)

    async def _report(self, arguments: Any) -> bytes:
        """Raises InvalidInput if this node publishes nothing, or more than a reply may have."""
        if self._published_metrics is None:
            raise InvalidInput("this node publishes no metrics")
        if arguments.is_history:
            report = await self._published_metrics.recorded((arguments.first_s, arguments.last_s))
        else:
            report = self._published_metrics.report()
        if len(report) > PEER_REPORT_BYTES_MAX:
            raise InvalidInput(f"the report has {len(report)} bytes, limit {PEER_REPORT_BYTES_MAX}")
        return report

    async def _extents(self, requests: Sequence[ReceivedRequest]) -> tuple[list[ChunkAvailability], Here]:
        """The states of all requests, and the payloads in memory within `answer_s`, in the order of the requests."""
        payloads: dict[int, memoryview | ChunkAvailability] = {}
        missing: list[int] = []
        for each in requests:
            if each.chunk in payloads:
                continue
            segment = self._node_cache.held(each.chunk)
            if segment is not None:
                self._node_cache.hits.value += 1
                payloads[each.chunk] = segment.view
            elif self._node_cache.is_worth_sending(each.chunk, each.wanted_bytes):
                payloads[each.chunk] = ChunkAvailability.LATER
                missing.append(each.chunk)
            else:
                payloads[each.chunk] = ChunkAvailability.ELSEWHERE

        async def fetch(chunk: int) -> None:
            try:
                payloads[chunk] = (await self._node_cache.fetch(chunk)).view
            except DieselfsError:  # logged by the node cache; the peer uses a server
                payloads[chunk] = ChunkAvailability.ELSEWHERE

        if missing:
            with trio.move_on_after(self._answer_s):
                async with trio.open_nursery() as nursery:
                    for chunk in missing[:PEER_FETCHES_MAX]:
                        nursery.start_soon(fetch, chunk)
        return self._states(requests, payloads)

    def _states(
        self, requests: Sequence[ReceivedRequest], payloads: dict[int, memoryview | ChunkAvailability]
    ) -> tuple[list[ChunkAvailability], Here]:
        states: list[ChunkAvailability] = []
        here: Here = []
        for each in requests:
            payload = payloads[each.chunk]
            if isinstance(payload, ChunkAvailability):
                states.append(payload)
            else:
                states.append(ChunkAvailability.HERE)
                here.append((each, payload))
                if each.starts and each.chunk not in self._node_cache.policy.pinned:
                    self._node_cache.policy.handed_out(each.chunk, each.ranges)
        self._chunks.value += len(states)
        for state, counter in self._by_state.items():
            counter.value += states.count(state)
        return states, here


async def _received(connection: ClientConnection, arguments: Any) -> bytearray:
    """The bytes behind a call. Raises ProtocolError for more than a call may have."""
    if not 0 < arguments.bulk_length <= PEER_ANSWER_BYTES_MAX:
        raise ProtocolError(f"{arguments.bulk_length} bytes of samples, limit {PEER_ANSWER_BYTES_MAX}")
    return await connection.receive_bulk(arguments.bulk_length)
