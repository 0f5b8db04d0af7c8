"""Answers the other nodes of a job, from the chunks on this node's shelf.

A peer that asks knows the job's secret, reads the same snapshot, and gets chunks of that one and no others. An answer
comes within PEER_ANSWER_S: with what is here by then, and word of what is not, so that a node that waits for a server
is not taken for one that is dead.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import trio

from dieselfs.cache.warmth import Warmth
from dieselfs.errors import DieselfsError, InvalidInput, ProtocolError
from dieselfs.limits import PEER_ANSWER_S, PEER_CLIENTS_MAX, PEER_FETCHES_MAX
from dieselfs.meta.snapshot import Snapshot
from dieselfs.peers.asking import Asked, State, decode_wanted
from dieselfs.rpc import auth
from dieselfs.rpc.messages import PEER_METHODS, decode_call, encode_refusal, encode_reply, thrift
from dieselfs.rpc.serving.connection import ClientConnection
from dieselfs.rpc.serving.handshake import Identity
from dieselfs.rpc.serving.reception import Reception
from dieselfs_client.shelf import Shelf

Here = list[tuple[Asked, memoryview]]
"""What is asked of chunks that are here, with their payloads."""


class JobKeys:
    """The one key that lets peers in."""

    def __init__(self, key: auth.Key) -> None:
        self.salt = os.urandom(auth.SECRET_BYTES)
        self._key = key

    def verifier(self, name: str, key_id: str) -> auth.Verifier | None:
        is_ours = (name, key_id) == (self._key.user, self._key.key_id)
        return self._key.verifier() if is_ours else None


@dataclass(slots=True)
class ServiceFigures:
    """Counts since the start; `chunks` = `chunks_here` + `chunks_later` + `chunks_elsewhere`, once for each request.
    Bytes are those of connections that are over.
    """

    requests: int = 0
    refused: int = 0
    chunks: int = 0
    chunks_here: int = 0
    chunks_later: int = 0
    chunks_elsewhere: int = 0
    answered_bytes: int = 0
    connections: int = 0
    bulk_bytes_received: int = 0
    bulk_bytes_sent: int = 0


class PeerService:
    """Used from one trio thread. `key`: `JobSecret.peer_key()`; `warmth`: of the shelf, which is also to be warmed if
    that is what it is told.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        shelf: Shelf,
        key: auth.Key,
        answer_s: float = PEER_ANSWER_S,
        warmth: Callable[[bool], Warmth] = lambda is_to_warm: Warmth(0, 0),
    ) -> None:
        self.keys = JobKeys(key)
        self.traffic = self.figures = ServiceFigures()
        self._snapshot = snapshot
        self._shelf = shelf
        self._warmth = warmth
        self._answer_s = answer_s
        self._reception = Reception(self, clients_max=PEER_CLIENTS_MAX)

    async def serve(self, listener: trio.SocketListener) -> None:
        """Take in peers until cancelled; then all their connections are closed. What they had asked for stays on its
        way to the shelf. Listeners come from `dieselfs.rpc.serving.reception.open_listeners`.
        """
        await self._reception.serve(listener, is_encrypted=False)

    async def answer(self, connection: ClientConnection, caller: Identity, message: bytes) -> None:
        """Answer one call. What it raises ends the conversation; if cancelled, so does that."""
        method, sequence, arguments = decode_call(message, PEER_METHODS)
        if method in ("hello", "prove"):
            raise ProtocolError("a second handshake")
        self.figures.requests += 1
        try:
            if arguments.digest != self._snapshot.digest:
                ours, theirs = self._snapshot.digest.hex(), arguments.digest.hex()
                raise InvalidInput(f"this node reads snapshot {ours[:16]}, the other one {theirs[:16]}")
            if method == "ping":
                await connection.send(encode_reply(method, sequence, None))
                return
            if method == "get_warmth":
                warmth = thrift.WarmthInfo(**asdict(self._warmth(arguments.is_to_warm)))
                await connection.send(encode_reply(method, sequence, warmth))
                return
            asked = decode_wanted(arguments, self._snapshot)
        except DieselfsError as error:
            self.figures.refused += 1
            await connection.send(encode_refusal(method, sequence, error))
            return
        states, here = await self._pieces(asked)
        length_bytes = sum(each.length_bytes for each, _ in here)
        reply = thrift.Pieces(states=bytes(states), bulk_length=length_bytes)
        self.figures.answered_bytes += length_bytes
        pieces = (piece for each, payload in here for piece in each.of(payload))  # cut as they are sent
        await connection.send(encode_reply(method, sequence, reply), pieces)

    async def _pieces(self, asked: Sequence[Asked]) -> tuple[list[State], Here]:
        """What is here in time, in the order that it was asked for."""
        payloads: dict[int, memoryview | State] = {}
        missing: list[int] = []
        for each in asked:
            if each.chunk in payloads:
                continue
            segment = self._shelf.held(each.chunk)
            if segment is not None:
                self._shelf.figures.hits += 1
                payloads[each.chunk] = segment.view
            elif self._shelf.is_worth_fetching(each.chunk, each.length_bytes, each.is_common):
                payloads[each.chunk] = State.LATER
                missing.append(each.chunk)
            else:
                payloads[each.chunk] = State.ELSEWHERE

        async def fetch(chunk: int) -> None:
            try:
                payloads[chunk] = await self._shelf.payload(chunk)
            except DieselfsError:  # the shelf's fetch has told why, and the peer may have better luck
                payloads[chunk] = State.ELSEWHERE

        if missing:
            with trio.move_on_after(self._answer_s):
                async with trio.open_nursery() as nursery:
                    for chunk in missing[:PEER_FETCHES_MAX]:
                        nursery.start_soon(fetch, chunk)
        return self._told(asked, payloads)

    def _told(
        self, asked: Sequence[Asked], payloads: dict[int, memoryview | State]
    ) -> tuple[list[State], Here]:
        states: list[State] = []
        here: Here = []
        for each in asked:
            payload = payloads[each.chunk]
            if isinstance(payload, State):
                states.append(payload)
            else:
                states.append(State.HERE)
                here.append((each, payload))
                if not each.is_whole:
                    self._shelf.handed_out(each.chunk, each.ranges)
        self.figures.chunks += len(states)
        self.figures.chunks_here += states.count(State.HERE)
        self.figures.chunks_later += states.count(State.LATER)
        self.figures.chunks_elsewhere += states.count(State.ELSEWHERE)
        return states, here
