"""Calls wait for the turn of their user: how long, and for whom."""

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from dieselfs.errors import Unavailable
from dieselfs.limits import BUILDS_OF_USER_MAX, CALL_COST_OF_USER_MAX_US, TURN_WAIT_S
from dieselfs.telemetry.registry import Registry
from dieselfs_server.admission.call_queue import CallQueue
from dieselfs_server.admission.processor_time import in_thread
from dieselfs_server.admission.throttle import RENEWAL_WAIT_S_MAX

WHOLE = CALL_COST_OF_USER_MAX_US


async def held(queue: CallQueue, scope: trio.CancelScope, method: str = "get_ranges") -> None:
    with scope:
        async with queue.turn("mal", method, WHOLE):
            await trio.sleep_forever()


async def entered_s(queue: CallQueue, user: str, method: str) -> float:
    started_s = trio.current_time()
    async with queue.turn(user, method, 1):
        return trio.current_time() - started_s


async def test_a_call_waits_for_those_of_its_user_only(autojump_clock: MockClock) -> None:
    metrics, scope = Registry(), trio.CancelScope()
    queue = CallQueue(metrics)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held, queue, scope)
        await trio.testing.wait_all_tasks_blocked()
        assert await entered_s(queue, "ada", "stat") == 0
        with pytest.raises(Unavailable, match="calls of user mal"):
            await entered_s(queue, "mal", "stat")
        assert trio.current_time() == pytest.approx(TURN_WAIT_S)
        assert await entered_s(queue, "mal", "join_job") == pytest.approx(RENEWAL_WAIT_S_MAX)
        numbers = metrics.numbers()
        assert numbers["calls.waits"] == 2 and metrics.as_dict()["calls"]["cost_in_flight_s"] == WHOLE / 1e6
        assert metrics.as_dict()["calls"]["waited_s"] == pytest.approx(TURN_WAIT_S + RENEWAL_WAIT_S_MAX)
        scope.cancel()
    assert metrics.as_dict()["calls"]["cost_in_flight_s"] == metrics.numbers()["calls.waiting"] == 0


async def test_a_job_waits_for_its_turn_and_holds_nothing(autojump_clock: MockClock) -> None:
    queue, first, job = CallQueue(Registry()), trio.CancelScope(), trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held, queue, first)
        nursery.start_soon(held, queue, job, "purge")
        await trio.sleep(2 * TURN_WAIT_S)
        first.cancel()
        assert await entered_s(queue, "mal", "stat") == 0
        job.cancel()


async def test_few_builds_of_a_user_run_at_a_time_and_hold_up_nothing_else(autojump_clock: MockClock) -> None:
    queue, scopes = CallQueue(Registry()), [trio.CancelScope() for _ in range(BUILDS_OF_USER_MAX)]
    async with trio.open_nursery() as nursery:
        for scope in scopes:
            nursery.start_soon(held, queue, scope, "get_snapshot")
        await trio.testing.wait_all_tasks_blocked()
        assert await entered_s(queue, "mal", "stat") == await entered_s(queue, "ada", "get_snapshot") == 0
        nursery.start_soon(
            held, queue, trio.CancelScope(deadline=trio.current_time() + 3 * TURN_WAIT_S), "put_tag"
        )
        nursery.start_soon(_end_later, scopes, 2 * TURN_WAIT_S)
        assert await entered_s(queue, "mal", "get_snapshot") == pytest.approx(2 * TURN_WAIT_S)


async def _end_later(scopes: list[trio.CancelScope], delay_s: float) -> None:
    await trio.sleep(delay_s)
    for scope in scopes:
        scope.cancel()


class _Threads:
    """Work in threads, by a clock that only it moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.done = trio.Event()

    def clock(self) -> float:
        return self.now_s

    def work(self, took_s: float) -> None:
        self.now_s += took_s


async def test_what_a_call_took_beyond_its_cost_is_charged_to_its_user(autojump_clock: MockClock) -> None:
    metrics, threads, order = Registry(), _Threads(), list[str]()
    queue, ends = CallQueue(metrics, threads.clock), {user: trio.Event() for user in ("mal", "ada", "bob")}
    half = WHOLE // 2

    async def call(user: str, cost_us: int, took_s: float = 0.0) -> None:
        async with queue.turn(user, "get_ranges", cost_us):
            order.append(user)
            if took_s:
                await in_thread(threads.work, took_s)
                threads.done.set()
            await ends[user].wait()

    async with trio.open_nursery() as nursery:
        for user, cost_us in (("mal", half), ("ada", WHOLE), ("bob", WHOLE)):
            took_s = 3 * WHOLE / 1e6 if user == "mal" else 0.0
            nursery.start_soon(call, user, cost_us, took_s)
            await trio.testing.wait_all_tasks_blocked()
        for user in ("eve", "dan"):
            ends[user] = trio.Event()
            nursery.start_soon(call, user, half if user == "dan" else WHOLE)
            await trio.testing.wait_all_tasks_blocked()
        await threads.done.wait()
        for user in ("mal", "ada"):  # both wait; without the charge, mal would be the next one
            nursery.start_soon(call, user, WHOLE)
            await trio.testing.wait_all_tasks_blocked()
        begun = len(order)
        for user in ("mal", "ada", "bob", "eve", "dan"):
            ends[user].set()
            await trio.testing.wait_all_tasks_blocked()
        assert order[begun] == "ada" and order[begun:].count("mal") == 1
    beyond = metrics.as_dict()["calls"]["beyond_cost_s"]
    assert beyond == {"get_ranges": pytest.approx(2.5 * WHOLE / 1e6)}


async def test_a_call_that_is_cancelled_while_it_waits_leaves_nothing(autojump_clock: MockClock) -> None:
    metrics, scope, waiting = Registry(), trio.CancelScope(), trio.CancelScope()
    queue = CallQueue(metrics)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held, queue, scope)
        nursery.start_soon(held, queue, waiting)
        await trio.testing.wait_all_tasks_blocked()
        assert metrics.numbers()["calls.waiting"] == 1
        waiting.cancel()
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        assert await entered_s(queue, "mal", "stat") == 0
    assert metrics.as_dict()["calls"]["cost_in_flight_s"] == 0
