"""Memory of replies: taken from a budget before it is, given back when the client has received them, or is too slow."""

import errno
import os
import random
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from dieselfs.errors import NotFound, Unavailable
from dieselfs.limits import (
    BULK_IDLE_TIMEOUT_S,
    BULK_WAIT_S,
    CHUNK_PAYLOAD_BYTES_MAX,
    LEAST_RATE_BYTES_PER_S,
    MIB,
    OPEN_FILE_HELD_BYTES,
    REPLY_BYTES_MAX,
    REPLY_BYTES_PER_USER_MAX,
    SHARED_PAYLOADS_MAX,
    SMALL_REPLY_BYTES,
)
from dieselfs.rpc.messages import decode_reply, encode_call, thrift
from dieselfs.rpc.serving.connection import ClientConnection, Pace
from dieselfs.rpc.serving.handshake import Identity
from dieselfs.telemetry.registry import Registry
from dieselfs_server import dispatcher
from dieselfs_server.access.users import UserStore
from dieselfs_server.call import Call, Reply
from dieselfs_server.dispatcher import Dispatcher
from dieselfs_server.handlers.reading import ReadCalls
from dieselfs_server.logs import RecentFailures
from dieselfs_server.service import Service
from dieselfs_server.store.interface import OpenPayload
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.wrapper import HANGS_S, RetryingStore, RetryPolicy
from tests.support.descriptors import descriptor_count

GET_PAYLOAD = encode_call("get_payload", 1, {"dataset": "d", "chunk_id": bytes(16)})
OPEN_PAYLOADS = encode_call(
    "open_payloads", 1, {"dataset": "d", "chunk_ids": bytes(16 * SHARED_PAYLOADS_MAX)}
)


class _Reader:
    """A client that takes a reply when it is told to."""

    name = peer = "reader"
    bulk_bytes_received = bulk_bytes_sent = 0

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_to_take = trio.Event()
        self.is_waiting = trio.Event()

    async def send(self, message: bytes, bulk: Iterable[bytes] = (), pace: Pace | None = None) -> None:
        self.is_waiting.set()
        await self.is_to_take.wait()
        self.sent.append(message)

    async def send_with_files(self, message: bytes, descriptors: Sequence[int], length: int) -> None:
        await self.send(message)


class _Server:
    """A dispatcher whose payloads have `payload_bytes`; it counts those in memory."""

    def __init__(self, payload_bytes: int) -> None:
        self.taken = 0
        self._payload_bytes = payload_bytes
        registry = Registry()
        self.service = SimpleNamespace(
            access=None,
            handlers=dict.fromkeys(("get_payload", "put_chunk"), self._payload),
            audit=None,
            metrics=registry,
            users=UserStore(MemoryStore()),
            recent=RecentFailures(),
            share=1,
        )
        self._dispatcher = Dispatcher(cast(Service, self.service))

    async def _payload(self, call: Call) -> Reply:
        call.is_allowed = True
        await call.hold_reply(self._payload_bytes)
        self.taken += 1
        return Reply(thrift.Bulk(bulk_length=self._payload_bytes), [_Long(self._payload_bytes)])

    async def answer(
        self, reader: Any, user: str, message: bytes = GET_PAYLOAD, is_trusted: bool = False
    ) -> None:
        caller = Identity(user, "k", is_trusted)
        await self._dispatcher.answer(cast(ClientConnection, reader), caller, message)


class _Long(bytes):
    """No bytes, which say that they are many."""

    def __new__(cls, length: int) -> "_Long":
        made = super().__new__(cls)
        made.length = length
        return made

    length: int

    def __len__(self) -> int:
        return self.length


def test_replies_of_a_user_who_takes_none_use_a_bounded_share() -> None:
    payload_bytes = 64 * MIB
    of_user = REPLY_BYTES_PER_USER_MAX // payload_bytes

    async def scenario() -> None:
        server = _Server(payload_bytes)
        slow = [_Reader() for _ in range(of_user)]
        async with trio.open_nursery() as nursery:
            for reader in slow:
                nursery.start_soon(server.answer, reader, "mal")
            for reader in slow:
                await reader.is_waiting.wait()
            late, other = _Reader(), _Reader()
            for reader in (late, other):
                reader.is_to_take.set()
            await server.answer(other, "ada")  # others have their own share
            assert len(other.sent) == 1
            started_s = trio.current_time()
            await server.answer(late, "mal")
            assert trio.current_time() - started_s == pytest.approx(BULK_WAIT_S)
            assert server.taken == of_user + 1  # no memory was taken for it
            with pytest.raises(Unavailable, match="replies of user mal"):
                decode_reply("get_payload", 1, late.sent[0])
            for reader in slow:
                reader.is_to_take.set()
        await server.answer(late, "mal")
        assert decode_reply("get_payload", 1, late.sent[1]).bulk_length == payload_bytes

    trio.run(scenario, clock=MockClock(autojump_threshold=0))


def test_clients_that_take_no_files_keep_a_bounded_number_open(monkeypatch: pytest.MonkeyPatch) -> None:
    files_max = CHUNK_PAYLOAD_BYTES_MAX // OPEN_FILE_HELD_BYTES

    async def dataset_id(call: Call) -> bytes:
        call.is_allowed = True
        return bytes(16)

    async def open_ahead(_: bytes, chunk_ids: Sequence[bytes]) -> list[OpenPayload]:
        return [OpenPayload(os.open(os.devnull, os.O_RDONLY), 0, 1) for _ in chunk_ids]

    async def scenario() -> None:
        server, before = _Server(0), descriptor_count()
        calls = SimpleNamespace(
            executor=SimpleNamespace(open_ahead=open_ahead), sent_payload_bytes=SimpleNamespace(value=0)
        )
        server.service.handlers["open_payloads"] = partial(ReadCalls.open_payloads, cast(ReadCalls, calls))
        slow = [_Reader() for _ in range(2 * files_max // SHARED_PAYLOADS_MAX)]
        async with trio.open_nursery() as nursery:
            for reader in slow:
                nursery.start_soon(server.answer, reader, "", OPEN_PAYLOADS, True)
            await wait_all_tasks_blocked()
            assert descriptor_count() - before <= files_max
            assert sum(reader.is_waiting.is_set() for reader in slow) == len(slow) // 2
            for reader in slow:
                reader.is_to_take.set()
        assert descriptor_count() == before
        replies = [decode_reply("open_payloads", 1, reader.sent[0]) for reader in slow]
        assert all(len(reply.files) == SHARED_PAYLOADS_MAX for reply in replies)

    # More would need more descriptors than some systems allow.
    monkeypatch.setattr(dispatcher, "REPLY_BYTES_PER_USER_MAX", CHUNK_PAYLOAD_BYTES_MAX)
    monkeypatch.setattr(Call, "dataset_id", dataset_id)
    trio.run(scenario, clock=MockClock(autojump_threshold=1))


def test_small_replies_do_not_count() -> None:
    async def scenario() -> None:
        server = _Server(SMALL_REPLY_BYTES)
        readers = [_Reader() for _ in range(REPLY_BYTES_MAX // SMALL_REPLY_BYTES // 16 + 1)]
        async with trio.open_nursery() as nursery:
            for reader in readers:
                nursery.start_soon(server.answer, reader, "ada")
            for reader in readers:
                await reader.is_waiting.wait()
                reader.is_to_take.set()

    trio.run(scenario, clock=MockClock(autojump_threshold=0))


def test_a_reader_below_the_least_rate_loses_its_connection() -> None:
    async def scenario() -> None:
        server, started_s = _Server(64 * MIB), trio.current_time()
        with pytest.raises(trio.TooSlowError):
            await server.answer(_Reader(), "mal")
        least_s = BULK_IDLE_TIMEOUT_S + 64 * MIB / LEAST_RATE_BYTES_PER_S
        assert trio.current_time() - started_s == pytest.approx(least_s)

    trio.run(scenario, clock=MockClock(autojump_threshold=0))


def test_a_handler_that_looks_at_no_right_gives_no_reply() -> None:
    async def careless(call: Call) -> Reply:
        return Reply(thrift.Bulk(bulk_length=1), [b"x"])

    async def scenario() -> None:
        server, reader = _Server(0), _Reader()
        server.service.handlers["get_payload"] = careless
        reader.is_to_take.set()
        await server.answer(reader, "mal")
        with pytest.raises(Unavailable, match="internal error"):
            decode_reply("get_payload", 1, reader.sent[0])

    trio.run(scenario)


def test_a_call_waits_once_for_a_store_that_hangs() -> None:
    """The next call asks it again."""

    class Hanging(MemoryStore):
        calls = 0

        def get_record(self, name: str) -> bytes | None:
            self.calls += 1
            raise Unavailable("away") from OSError(errno.ETIMEDOUT, "timed out")

    seconds, backend = count(), Hanging()
    store = RetryingStore(backend, RetryPolicy(), random.Random(1), lambda: next(seconds) * HANGS_S * 2)

    async def reads(call: Call) -> None:
        for _ in range(2):
            with pytest.raises(Unavailable, match="away"):
                await trio.to_thread.run_sync(store.get_record, "name")
        await trio.to_thread.run_sync(store.get_record, "name")

    async def scenario() -> None:
        server, reader = _Server(0), _Reader()
        server.service.handlers["get_payload"] = reads
        reader.is_to_take.set()
        for number in range(2):
            await server.answer(reader, "ada")
            assert backend.calls == number + 1
            with pytest.raises(Unavailable, match="away"):
                decode_reply("get_payload", 1, reader.sent[number])
        for number in range(2):  # not for a client
            with pytest.raises(Unavailable):
                store.get_record("name")
            assert backend.calls == number + 3

    trio.run(scenario)


class _Trickle:
    """A client whose announced bytes never all come."""

    name = peer = "trickle"
    bulk_bytes_received = bulk_bytes_sent = 0

    async def receive_bulk(self, length: int, pace: Pace | None = None) -> bytearray:
        await trio.sleep_forever()
        raise AssertionError

    async def discard_bulk(self, length: int) -> None:
        await trio.sleep_forever()


@pytest.mark.parametrize("is_allowed", [True, False])
def test_an_upload_below_the_least_rate_loses_its_connection(
    monkeypatch: pytest.MonkeyPatch, is_allowed: bool
) -> None:
    """Also one that is refused, whose bytes are dropped."""
    upload_bytes = 64 * MIB
    upload = encode_call("put_chunk", 1, {"dataset": "d", "chunk_id": bytes(16), "bulk_length": upload_bytes})

    async def bulk_length(call: Call) -> int:
        if is_allowed:
            return upload_bytes
        raise NotFound("there is no dataset 'd'")

    async def scenario() -> None:
        monkeypatch.setattr(Call, "bulk_length", bulk_length)
        server, started_s = _Server(0), trio.current_time()
        with pytest.raises(trio.TooSlowError):
            await server.answer(_Trickle(), "mal", upload)
        least_s = BULK_IDLE_TIMEOUT_S + upload_bytes / LEAST_RATE_BYTES_PER_S
        assert trio.current_time() - started_s == pytest.approx(least_s)

    trio.run(scenario, clock=MockClock(autojump_threshold=0))
