"""Answers the calls of authenticated clients, one at a time on each connection, with the handlers."""

import logging
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from dieselfs.errors import DieselfsError, InvalidInput, ProtocolError, Unavailable
from dieselfs.limits import (
    BULK_BYTES_MAX,
    BULK_BYTES_PER_USER_MAX,
    BULK_IDLE_TIMEOUT_S,
    CHUNK_OBJECT_BYTES_MAX,
    CHUNK_PAYLOAD_BYTES_MAX,
    KEEP_ALIVE_S,
    LEAST_RATE_BYTES_PER_S,
    MIB,
    PROGRESS_S,
    REPLY_BYTES_MAX,
    REPLY_BYTES_PER_USER_MAX,
    SMALL_REPLY_BYTES,
)
from dieselfs.names import printable
from dieselfs.rpc.messages import decode_call, encode_call, encode_refusal, encode_reply
from dieselfs.rpc.methods import METHODS
from dieselfs.rpc.scan import VALUES_MAX
from dieselfs.rpc.serving.byte_budget import ByteBudget
from dieselfs.rpc.serving.connection import ClientConnection
from dieselfs.rpc.serving.handshake import Identity
from dieselfs.rpc.serving.keep_alive import kept_alive
from dieselfs.rpc.serving.slots import part_of
from dieselfs.telemetry import catalogue
from dieselfs_server.access.accounts import Caller
from dieselfs_server.access.users import UserStore
from dieselfs_server.admission.call_queue import CallQueue
from dieselfs_server.admission.processor_time import in_thread
from dieselfs_server.admission.throttle import PacedCall, Rates, Throttle
from dieselfs_server.admission.usage import Transferred
from dieselfs_server.call import Call, Reply
from dieselfs_server.logs import event
from dieselfs_server.service import Service
from dieselfs_server.store.wrapper import one_timeout

log = logging.getLogger(__name__)

AUDITED_CHUNK_BYTES = 32 * MIB
AUDITED_CHUNK_S = 1.0
"""A chunk that is larger, or takes longer, is in the audit log; ordinary ones have 4 MiB, and take milliseconds."""

QUESTIONS = frozenset(("get_dataset", "stat"))
"""Programs ask by these whether something is there, as before the first `put`: NotFound is an answer, and no error."""

_AUDITED_AS = {
    "name": "dataset",
    "user": "of",
    "users": "members",
    "key_id": "key",
    "target_dataset": "target",
}
"""Names in the audit log of arguments that have another one there."""

ENCODINGS_MAX = 2
"""Long replies that are encoded at the same time."""
INLINE_ENTRIES_MAX = 32
"""A list of more is encoded in a thread."""


@dataclass(eq=False)
class _Noted:
    """What the logs say about a call."""

    service: Service
    peer: str
    request: str
    call: Call
    started_s: float = field(default_factory=time.monotonic)
    has_ended: bool = False

    def end(self, outcome: str, is_refused: bool = False, reason: str = "") -> None:
        """Write the logs and count, before the reply; later calls do nothing. `reason`: of a failure."""
        if self.has_ended:
            return
        self.has_ended = True
        call, audit, metrics = self.call, self.service.audit, self.service.metrics
        took_s = time.monotonic() - self.started_s
        took = metrics.declare_histogram(catalogue.RPC_ANSWERED_S, method=call.method)
        took.observe(took_s)
        if outcome != "ok":
            metrics.declare(catalogue.RPC_FAILURES, outcome=outcome).value += 1
            if call.method not in QUESTIONS or outcome != "NotFound":
                self.service.recent.add("call", call.method, call.caller.name, outcome, reason)
        event(
            log,
            logging.DEBUG,
            "call",
            request=self.request,
            method=call.method,
            user=call.caller.name,
            address=self.peer,
            outcome=outcome,
            ms=round(took_s * 1000, 1),
        )
        audited = METHODS[call.method].audited
        costly = self._costly_chunk(took_s)
        if audit is not None and (audited is not None or call.audited or costly):
            arguments = {
                _AUDITED_AS.get(name, name): _loggable(getattr(call.arguments, name))
                for name in audited or ()
            } | call.audited
            audit.write(
                call.method,
                call.caller.name,
                self.peer,
                has_changed=not (is_refused or costly),
                key_used=call.caller.key_id,
                request=self.request,
                outcome=outcome,
                **arguments,
                **costly,
            )

    def _costly_chunk(self, took_s: float) -> dict[str, Any]:
        """What the audit log says of a chunk that is large or slow; as often as its budget allows."""
        call = self.call
        is_costly = len(call.bulk) >= AUDITED_CHUNK_BYTES or took_s >= AUDITED_CHUNK_S
        if call.method != "put_chunk" or call.audited or not is_costly:
            return {}
        return {"dataset": call.arguments.dataset, "bytes": len(call.bulk), "ms": round(took_s * 1000)}


def _loggable(value: Any) -> Any:
    return printable(value) if isinstance(value, bytes) else value


def _longest_s(bulk_bytes: int) -> float:
    """How long the bytes behind a call or a reply may take."""
    return BULK_IDLE_TIMEOUT_S + bulk_bytes / LEAST_RATE_BYTES_PER_S


def _budget(what: str, total_bytes: int, user_bytes: int, largest_bytes: int, share: int) -> ByteBudget:
    """The part of one of `share` processes, which can take the largest chunk in any case."""
    return ByteBudget(
        what, max(part_of(total_bytes, share), largest_bytes), max(part_of(user_bytes, share), largest_bytes)
    )


class Dispatcher:
    def __init__(self, service: Service, rates: Rates | None = None) -> None:
        """`rates`: those that several processes have in common."""
        self._service, share = service, service.share
        self._uploads = _budget(
            "uploads", BULK_BYTES_MAX, BULK_BYTES_PER_USER_MAX, CHUNK_OBJECT_BYTES_MAX, share
        )
        self._replies = _budget(
            "replies", REPLY_BYTES_MAX, REPLY_BYTES_PER_USER_MAX, CHUNK_PAYLOAD_BYTES_MAX, share
        )
        metrics = service.metrics
        self._throttle = Throttle(service.users, metrics, rates)
        self._queue = CallQueue(metrics, share=share)
        self._encodings = trio.CapacityLimiter(ENCODINGS_MAX)
        self._requests = metrics.declare(catalogue.RPC_REQUESTS)
        self._refused_logins = metrics.declare(catalogue.RPC_REFUSED_LOGINS)

    @property
    def keys(self) -> UserStore:
        return self._service.users

    def logged_in(self, connection: ClientConnection, caller: Identity) -> None:
        if self._service.audit is not None:
            self._service.audit.write(
                "login", caller.name, connection.peer, key_used=caller.key_id, connection=connection.name
            )

    def refused(self, connection: ClientConnection, reason: str) -> None:
        self._refused_logins.value += 1
        if self._service.audit is not None:
            self._service.audit.write(
                "refused", "", connection.peer, reason=reason, connection=connection.name
            )

    async def answer(self, connection: ClientConnection, caller: Identity, message: bytes) -> None:
        """Answer one call. An exception, also a cancellation, ends the connection."""
        user = Caller(caller.name, caller.key_id, caller.is_trusted)
        method, sequence, _ = decode_call(message)
        if method not in self._service.handlers:
            raise ProtocolError("a second handshake")
        trio.lowlevel.current_task().name = method  # in the metrics of long steps
        held: list[int] = []
        call, paced = self._begun(user, connection.peer, message, held)
        # Jobs, which have a limit of their own, may outlast a store that hangs.
        waits = nullcontext() if METHODS[method].work.limit_s else one_timeout()
        try:
            with waits:
                await self._answer(connection, call, sequence, paced)
        finally:
            for reply_bytes in held:
                self._replies.give(user.name, reply_bytes)

    def _begun(
        self, user: Caller, peer: str, message: bytes, held: list[int]
    ) -> tuple[Call, PacedCall | None]:
        """A call by a message, and its pace; `held` gets the bytes of replies that it takes."""
        method, _, arguments = decode_call(message)
        dataset = getattr(arguments, "dataset", "")
        paced = self._throttle.call(user, method, peer, dataset, len(message))
        call = Call(self._service.access, user, method, arguments, hold=partial(self._hold, held, user.name))
        if paced is not None:
            call.pace = paced.announce
        return call, paced

    @asynccontextmanager
    async def reply_here(
        self, caller: Caller, peer: str, method: str, **named: object
    ) -> AsyncIterator[Reply]:
        """The reply to a call of the web page, with the rights, cost, rates, memory and logs of a client's call. Its
        bytes are held until the end of the block. Raises the refusal.
        """
        held: list[int] = []
        call, paced = self._begun(caller, peer, encode_call(method, 0, named), held)
        noted = _Noted(self._service, peer, "page", call)
        self._requests.value += 1
        try:
            with one_timeout():
                if paced is not None:
                    await paced.begin()
                reply, message = await self._in_turn(call, 0)
            noted.end("ok")
            length = sum(len(part) for part in reply.bulk)
            if paced is not None:
                await paced.reply(len(message))
                await paced.move(length)
            self._count(call, Transferred(length, 0))
            yield reply
        except DieselfsError as error:
            noted.end(type(error).__name__, is_refused=True, reason=str(error))
            raise
        finally:
            noted.end("failed")
            for reply_bytes in held:
                self._replies.give(caller.name, reply_bytes)

    async def _hold(self, held: list[int], user: str, size_bytes: int) -> None:
        held.append(await self._replies.take(user, size_bytes))

    async def _answer(
        self, connection: ClientConnection, call: Call, sequence: int, paced: PacedCall | None
    ) -> None:
        """The bytes of the reply are held until this returns."""
        method, arguments, user = call.method, call.arguments, call.caller
        noted = _Noted(self._service, connection.peer, f"{connection.name}-{sequence}", call)
        before_bytes = connection.bulk_bytes_received, connection.bulk_bytes_sent
        try:
            if paced is not None:
                await paced.begin()
            if METHODS[method].sizes.bulk_bytes:
                reply, message = await self._received_and_worked(connection, call, sequence, paced)
            else:
                reply, message = await self._worked(connection, call, sequence)
            noted.end("ok")
            if method == "join_job":
                self._throttle.joined(user, connection.peer, arguments.dataset, arguments.job)
        except ProtocolError:
            raise
        except DieselfsError as error:
            noted.end(type(error).__name__, is_refused=True, reason=str(error))
            await connection.send(encode_refusal(method, sequence, error))
        except (trio.TooSlowError, trio.BrokenResourceError):
            raise
        except Exception:  # a bug fails this request, not the connection
            noted.end("failed")
            log.exception("%s of user %s failed with an internal error: %s", method, user.name, noted.request)
            fault = Unavailable(
                f"{method} failed with an internal error of the server; its log has the details "
                f"(request {noted.request})"
            )
            await connection.send(encode_refusal(method, sequence, fault))
        else:
            await _send(connection, message, reply, paced)
        finally:
            noted.end("interrupted")
            self._count_bytes(call, connection, *before_bytes)

    async def _received_and_worked(
        self, connection: ClientConnection, call: Call, sequence: int, paced: PacedCall | None
    ) -> tuple[Reply, bytes]:
        """As `_worked`, of a call with bulk bytes, which are received first; their memory is held until then."""
        arguments, user, taken_bytes = call.arguments, call.caller.name, 0
        try:
            try:
                length = await call.bulk_length()
                if paced is not None:
                    await paced.announce(length)
                taken_bytes = await self._uploads.take(user, length)
            except InvalidInput:
                raise ProtocolError(f"bulk of {arguments.bulk_length} bytes") from None
            except DieselfsError:
                with trio.fail_after(_longest_s(arguments.bulk_length)):
                    await connection.discard_bulk(arguments.bulk_length)
                raise
            with trio.fail_after(_longest_s(length)):
                call.bulk = await connection.receive_bulk(length, None if paced is None else paced.move)
            return await self._worked(connection, call, sequence)
        finally:
            self._uploads.give(user, taken_bytes)

    async def _worked(self, connection: ClientConnection, call: Call, sequence: int) -> tuple[Reply, bytes]:
        """What the handler returns, and its message. Meanwhile a client that waits long gets signs of life."""
        self._requests.value += 1
        work = METHODS[call.method].work
        if not work.limit_s:
            return await self._in_turn(call, sequence)
        is_shown = work.has_progress and getattr(call.arguments, "with_progress", True)
        interval_s = PROGRESS_S if is_shown else KEEP_ALIVE_S
        in_turn = partial(self._in_turn, call, sequence)
        return await kept_alive(connection, in_turn, interval_s, call.sign_of_life)

    async def _in_turn(self, call: Call, sequence: int) -> tuple[Reply, bytes]:
        """Long lists are encoded in a thread, as each value takes microseconds."""
        row, user = METHODS[call.method], call.caller.name
        async with self._queue.turn(user, call.method, row.cost_of(call.arguments)):
            value = await call.answered_by(self._service.handlers[call.method])
            reply = value if isinstance(value, Reply) else Reply(value)
            encoded = partial(encode_reply, call.method, sequence, reply.value)
            if row.sizes.reply_values == VALUES_MAX and len(reply.value) > INLINE_ENTRIES_MAX:
                return reply, await in_thread(encoded, limiter=self._encodings)
            return reply, encoded()

    def _count_bytes(self, call: Call, connection: ClientConnection, received: int, sent: int) -> None:
        """Count the bulk bytes of a call; `received`, `sent`: before it."""
        self._count(
            call, Transferred(connection.bulk_bytes_sent - sent, connection.bulk_bytes_received - received)
        )

    def _count(self, call: Call, moved: Transferred) -> None:
        metrics, user = self._service.metrics, call.caller.name
        if moved.written:
            metrics.declare(catalogue.USERS_RECEIVED_BYTES, user=user).value += moved.written
        if moved.read:
            metrics.declare(catalogue.USERS_SENT_BYTES, user=user).value += moved.read
        if any(moved):
            self._service.traffic.count(user, call.dataset_found, moved)


async def _send(connection: ClientConnection, message: bytes, reply: Reply, paced: PacedCall | None) -> None:
    if not reply.files:
        length = sum(len(part) for part in reply.bulk)
        if paced is not None:
            await paced.reply(len(message))
        move = None if paced is None else paced.move
        if length <= SMALL_REPLY_BYTES:  # which the kernel takes at once
            await connection.send(message, reply.bulk, move)
            return
        with trio.fail_after(_longest_s(length)):
            await connection.send(message, reply.bulk, move)
        return
    with ExitStack() as stack:
        files = [stack.enter_context(file) for file in reply.files]
        length = sum(file.length for file in files)
        await connection.send_with_files(message, [file.descriptor for file in files], length)
