"""A user with a rate slows down, on a clock of the test, and no wait lasts as long as a client's patience."""

import os
from dataclasses import dataclass

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from dieselfs.limits import SERVER_SILENCE_S
from dieselfs.net.auth import Key
from dieselfs.rpc.limit_kinds import Limits
from dieselfs.rpc.messages import FRAME_HEADER_BYTES, encode_reply, thrift
from dieselfs.rpc.serving.connection import ClientConnection
from dieselfs.telemetry.registry import Registry
from dieselfs_server.access.accounts import Accounts, Caller, StoredKey, with_key, with_rate
from dieselfs_server.access.users import UserStore
from dieselfs_server.admission import throttle as throttling
from dieselfs_server.admission.throttle import (
    BURST_S,
    MEMBERSHIP_S,
    RENEWAL_WAIT_S_MAX,
    REQUEST_WAIT_S_MAX,
    SLOWEST_BYTES_PER_S,
    PacedCall,
    Rates,
    Throttle,
    TokenBucket,
)
from dieselfs_server.call import Reply
from dieselfs_server.dispatcher import _send
from dieselfs_server.store.memory import MemoryStore

MIB = 1 << 20
PIECE = MIB // 4
KEY = Key.generate("ada")
ADA = Caller("ada", KEY.key_id)


def throttle(rate: Limits) -> Throttle:
    def edit(accounts: Accounts) -> Accounts:
        accounts = with_key(accounts, "ada", KEY.key_id, StoredKey(KEY.verifier(), 0, 0))
        return with_rate(accounts, "ada", rate)

    users = UserStore(MemoryStore())
    users.change(edit)
    return Throttle(users, Registry())


def call_of(
    slowed: Throttle, host: str = "node-1", method: str = "get_payload", message_bytes: int = 0
) -> PacedCall:
    found = slowed.call(ADA, method, host, "pets", message_bytes)
    assert found is not None
    return found


async def test_calls_come_at_their_rate(autojump_clock: MockClock) -> None:
    slowed = throttle({"requests_per_s": 2})
    start_s = trio.current_time()
    for _ in range(12):
        await call_of(slowed).begin()
    assert trio.current_time() - start_s == 5.0


async def test_files_inside_messages_count_and_small_messages_do_not_wait(autojump_clock: MockClock) -> None:
    slowed, start_s = throttle({"bytes_per_s": MIB}), trio.current_time()
    for _ in range(3):
        await call_of(slowed, method="write_file", message_bytes=MIB).begin()
        await call_of(slowed, method="read_file").reply(MIB)
    assert trio.current_time() - start_s == pytest.approx(5)
    before_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(64):
            nursery.start_soon(call_of(slowed, message_bytes=MIB).begin)
        await trio.sleep(1)
        before_s = trio.current_time()
        await call_of(slowed, method="stat", message_bytes=100).begin()
        assert trio.current_time() - before_s < 1e-3


@pytest.mark.parametrize("is_bulk", [False, True])
async def test_each_byte_of_a_reply_counts_once(is_bulk: bool, autojump_clock: MockClock) -> None:
    content = bytes(32 << 10)
    reply = Reply(thrift.Bulk(bulk_length=len(content)), [content]) if is_bulk else Reply(content)
    method = "get_payload" if is_bulk else "read_file"
    message = encode_reply(method, 1, reply.value)
    sent_bytes = FRAME_HEADER_BYTES + len(message) + is_bulk * len(content)
    slowed, start_s = throttle({"bytes_per_s": MIB}), trio.current_time()
    near, far = (trio.SocketStream(end) for end in trio.socket.socketpair())
    async with near, far:
        for _ in range(64):
            one = call_of(slowed, method=method)
            if is_bulk:
                await one.announce(len(content))
            await _send(ClientConnection(near), message, reply, one)
            left = sent_bytes
            while left:
                left -= len(await far.receive_some(left))
    # 2 MiB, of which the rate gives 1 MiB at once.
    assert trio.current_time() - start_s == pytest.approx(1, rel=0.02)


async def test_renewals_of_leases_count_and_wait_shortly(autojump_clock: MockClock) -> None:
    slowed = throttle({"requests_per_s": 2})
    for _ in range(40):
        start_s = trio.current_time()
        await call_of(slowed, method="pin").begin()
        assert trio.current_time() - start_s <= RENEWAL_WAIT_S_MAX
    assert trio.current_time() > 15  # a flood on one connection


def test_other_users_and_the_user_of_the_server_are_not_slowed() -> None:
    slowed = throttle({"requests_per_s": 2})

    async def run() -> None:
        assert slowed.call(Caller("bob", "k"), "get_payload", "node-1", "pets") is None
        assert slowed.call(Caller("ada", "", is_trusted=True), "get_payload", "node-1", "pets") is None

    trio.run(run)


async def test_no_call_of_many_waits_longer_than_clients_do(autojump_clock: MockClock) -> None:
    slowed = throttle({"requests_per_s": 1, "bytes_per_s": MIB})
    waits: list[float] = []

    async def call() -> None:
        start_s, one = trio.current_time(), call_of(slowed)
        await one.begin()
        await one.announce(4 * MIB)
        waits.append(trio.current_time() - start_s)

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(call)
    assert max(waits) == REQUEST_WAIT_S_MAX < SERVER_SILENCE_S


async def test_connections_of_a_user_share_its_rate_evenly(autojump_clock: MockClock) -> None:
    slowed = throttle({"bytes_per_s": 4 * MIB})
    await call_of(slowed).move(4 * MIB)  # what a second gives, which is free
    ends: list[float] = []

    async def receive(payloads: int) -> None:
        for _ in range(payloads):
            one = call_of(slowed)
            await one.announce(MIB)
            for _ in range(MIB // PIECE):
                await one.move(PIECE)
        ends.append(trio.current_time() - start_s)

    start_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(receive, 8)
    assert 7 < min(ends) <= max(ends) == 8.0


async def test_what_a_client_has_no_patience_for_is_spread_over_its_bytes(autojump_clock: MockClock) -> None:
    slowed, start_s = throttle({"bytes_per_s": MIB}), trio.current_time()
    await call_of(slowed).move(MIB)
    one = call_of(slowed)
    await one.announce(10 * MIB)
    assert trio.current_time() - start_s == REQUEST_WAIT_S_MAX
    for _ in range(10 * MIB // PIECE):
        await one.move(PIECE)
    assert abs(trio.current_time() - start_s - 10) < 1e-6


async def test_bytes_move_faster_than_the_least_rate_whatever_the_number_of_connections(
    autojump_clock: MockClock,
) -> None:
    slowed = throttle({"bytes_per_s": MIB})
    waits: list[float] = []

    async def send() -> None:
        start_s = trio.current_time()
        await call_of(slowed).move(MIB)
        waits.append(trio.current_time() - start_s)

    async with trio.open_nursery() as nursery:
        for _ in range(64):
            nursery.start_soon(send)
    assert max(waits) == MIB / SLOWEST_BYTES_PER_S


async def test_only_the_job_of_a_node_is_slowed_by_the_rate_of_jobs(autojump_clock: MockClock) -> None:
    slowed, start_s = throttle({"job_bytes_per_s": MIB}), trio.current_time()
    slowed.joined(ADA, "node-1", "pets", "train")
    for host, waited_s in (("node-2", 0.0), ("node-1", 1.0)):
        for _ in range(2 * MIB // PIECE):
            await call_of(slowed, host).move(PIECE)
        assert trio.current_time() - start_s == waited_s


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


RATE = {"bytes_per_s": 1000, "requests_per_s": 10, "job_bytes_per_s": 100}


def test_the_first_second_is_free_and_then_each_waits_longer() -> None:
    found = Rates(clock := Clock())
    waits = [found.bytes_wait_s("ada", None, RATE, 500) for _ in range(5)]
    assert waits == [0.0, 0.0, 0.5, 1.0, 1.5]
    clock.now_s = 1.5
    assert found.bytes_wait_s("ada", None, RATE, 500) == pytest.approx(0.5)
    clock.now_s = 100.0
    assert found.bytes_wait_s("ada", None, RATE, 500) == 0.0
    assert found.bytes_wait_s("ada", None, RATE, 1000) == pytest.approx(0.5)  # idle time saves one second


def test_users_do_not_wait_for_each_other_and_requests_not_for_bytes() -> None:
    found = Rates(Clock())
    assert found.bytes_wait_s("ada", None, RATE, 10_000) == 9.0
    assert found.bytes_wait_s("bob", None, RATE, 1000) == 0.0
    assert [found.request_wait_s("ada", None, RATE) for _ in range(12)][9:] == pytest.approx([0.0, 0.1, 0.2])
    assert found.request_wait_s("eve", None, {"bytes_per_s": 1}) == 0.0


def test_a_job_has_a_bucket_of_its_own_within_that_of_its_user() -> None:
    found = Rates(clock := Clock())
    found.join("ada", "node-1", "pets", "train")
    found.join("ada", "node-3", "pets", "train")
    job = found.job_of("ada", "node-1", "pets")
    assert job is not None and job == found.job_of("ada", "node-3", "pets")
    for other in (("bob", "node-1", "pets"), ("ada", "node-2", "pets"), ("ada", "node-1", "ants")):
        assert found.job_of(*other) is None
    assert found.bytes_wait_s("ada", job, RATE, 200) == 1.0
    assert found.bytes_wait_s("ada", "other", RATE, 100) == 0.0
    assert found.bytes_wait_s("ada", None, RATE, 700) == 0.0
    assert found.bytes_wait_s("ada", None, RATE, 500) == 0.5  # all three count to the user
    clock.now_s = MEMBERSHIP_S
    assert found.job_of("ada", "node-1", "pets") is None


def test_a_changed_rate_counts_at_once() -> None:
    bucket = TokenBucket(10, 0.0, 0.0)
    assert bucket.take(100, 10, 0.0) == 10.0
    assert bucket.take(0, 100, 0.0) == 1.0


def test_buckets_that_are_full_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttling, "BUCKETS_MAX", 2)
    found = Rates(clock := Clock())
    assert found.request_wait_s("idle", None, RATE) == 0.0
    for _ in range(20):
        owed_s = found.request_wait_s("busy", None, RATE)
    clock.now_s = 0.2
    assert found.request_wait_s("new", None, RATE) == 0.0
    assert found.request_wait_s("busy", None, RATE) == pytest.approx(owed_s + 0.1 - 0.2)


def test_processes_have_one_bucket_of_a_user_and_know_each_job() -> None:
    found, code = Rates(Clock()), 255
    process = os.fork()
    if not process:
        try:
            found.join("ada", "node-1", "pets", "train")
            code = int(found.bytes_wait_s("ada", None, RATE, 3000))
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 2
    assert found.bytes_wait_s("ada", None, RATE, 500) == 2.5
    assert found.job_of("ada", "node-1", "pets") is not None


@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 3)), min_size=1, max_size=50))
def test_who_waits_as_told_never_gets_more_than_the_rate_and_a_burst(steps: list[tuple[int, float]]) -> None:
    clock, taken = Clock(), 0
    found = Rates(clock)
    for amount, pause_s in steps:
        clock.now_s += pause_s
        clock.now_s += found.bytes_wait_s("ada", None, RATE, amount)
        taken += amount
        assert taken <= 1000 * (clock.now_s + BURST_S) + 1e-6
