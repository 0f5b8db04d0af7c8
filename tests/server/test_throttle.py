"""A user with a rate slows down, on a clock of the test, and no wait lasts as long as a client's patience."""

import trio
from trio.testing import MockClock

from dieselfs.limits import SERVER_SILENCE_S
from dieselfs.metrics import Registry
from dieselfs.rpc.auth import Key
from dieselfs_server.accounts import Accounts, Caller, Rate, StoredKey, with_key, with_rate
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.throttle import REQUEST_WAIT_S_MAX, SLOWEST_BYTES_PER_S, Throttle
from dieselfs_server.users import UserStore

MIB = 1 << 20
KEY = Key.generate("ada")
ADA = Caller("ada", KEY.key_id)


def throttle(rate: Rate) -> Throttle:
    def edit(accounts: Accounts) -> Accounts:
        accounts = with_key(accounts, "ada", KEY.key_id, StoredKey(KEY.verifier(), 0, 0))
        return with_rate(accounts, "ada", rate)

    users = UserStore(MemoryStore())
    users.change(edit)
    return Throttle(users, Registry())


async def test_calls_come_at_their_rate_and_leases_are_renewed_in_time(autojump_clock: MockClock) -> None:
    slowed = throttle(Rate(requests_per_s=2))
    start_s = trio.current_time()
    for _ in range(12):
        await slowed.before_call(ADA, "get_ranges")
    assert trio.current_time() - start_s == 5.0
    await slowed.before_call(ADA, "join_job")
    await slowed.before_call(Caller("bob", "k"), "get_ranges")
    await slowed.before_call(Caller("ada", "", is_trusted=True), "get_ranges")
    assert trio.current_time() - start_s == 5.0


async def test_no_call_of_many_waits_longer_than_clients_do(autojump_clock: MockClock) -> None:
    slowed, waits = throttle(Rate(requests_per_s=1)), []

    async def call() -> None:
        start_s = trio.current_time()
        await slowed.before_call(ADA, "get_ranges")
        waits.append(trio.current_time() - start_s)

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(call)
    assert max(waits) == REQUEST_WAIT_S_MAX < SERVER_SILENCE_S


async def test_connections_of_a_user_share_its_rate_evenly(autojump_clock: MockClock) -> None:
    slowed, ends = throttle(Rate(bytes_per_s=4 * MIB)), []

    async def send(pieces: int) -> None:
        pace = slowed.pace(ADA, "host", "pets")
        assert pace is not None
        for _ in range(pieces):
            await pace(MIB // 4)
        ends.append(trio.current_time() - start_s)

    used = slowed.pace(ADA, "host", "pets")
    assert used is not None
    await used(4 * MIB)  # what a second gives, which is free
    start_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(send, 32)  # 8 MiB each
    assert 7.5 < min(ends) <= max(ends) == 8.0


async def test_bytes_move_faster_than_the_least_rate_whatever_the_number_of_connections(
    autojump_clock: MockClock,
) -> None:
    slowed, waits = throttle(Rate(bytes_per_s=MIB)), []

    async def send() -> None:
        pace = slowed.pace(ADA, "host", "pets")
        assert pace is not None
        start_s = trio.current_time()
        await pace(MIB)
        waits.append(trio.current_time() - start_s)

    async with trio.open_nursery() as nursery:
        for _ in range(64):
            nursery.start_soon(send)
    assert max(waits) == MIB / SLOWEST_BYTES_PER_S


async def test_only_the_job_of_a_node_is_slowed_by_the_rate_of_jobs(autojump_clock: MockClock) -> None:
    slowed = throttle(Rate(job_bytes_per_s=MIB))
    slowed.joined(ADA, "node-1", "pets", "train")
    start_s = trio.current_time()
    for host, waited_s in (("node-2", 0.0), ("node-1", 1.0)):
        pace = slowed.pace(ADA, host, "pets")
        assert pace is not None
        for _ in range(8):
            await pace(MIB // 4)
        assert trio.current_time() - start_s == waited_s
