from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

import pytest
import trio
import trio.testing

from dieselfs.errors import Unavailable
from dieselfs_client.flights import Flights
from dieselfs_client.foreground import Foreground


class Gates:
    """What is fetched comes when its gate is opened; all are, in the end."""

    def __init__(self) -> None:
        self._gates = {key: Event() for key in range(8)}
        self.begun: list[int] = []

    def bring(self, key: int) -> str:
        self.begun.append(key)
        if not self._gates[key].wait(20):
            raise Unavailable("its gate was never opened")
        return str(key)

    def open(self, key: int) -> None:
        self._gates[key].set()

    @contextmanager
    def opened_in_the_end(self) -> Iterator[None]:
        try:
            yield
        finally:
            for gate in self._gates.values():
                gate.set()


def flights(gates: Gates, nursery: trio.Nursery, foreground: Foreground) -> Flights[int, str]:
    return Flights(
        gates.bring,
        lambda _: None,
        lambda *_: False,
        str,
        nursery,
        timeout_s=20,
        at_once=1,
        foreground=foreground,
    )


async def test_a_reader_does_not_queue_behind_what_is_fetched_ahead() -> None:
    gates = Gates()
    with trio.fail_after(60), gates.opened_in_the_end():
        async with trio.open_nursery() as nursery:
            flying = flights(gates, nursery, Foreground())
            lane = trio.CapacityLimiter(1)
            nursery.start_soon(flying.wait, 0, lane)
            while gates.begun != [0]:
                await trio.sleep(0.01)
            gates.open(1)
            assert await flying.wait(1) == "1"  # although only one at a time is fetched for readers
            assert lane.borrowed_tokens == 1
            gates.open(0)


async def test_a_reader_joins_what_is_fetched_ahead() -> None:
    gates = Gates()
    with trio.fail_after(60), gates.opened_in_the_end():
        async with trio.open_nursery() as nursery:
            flying = flights(gates, nursery, Foreground())
            nursery.start_soon(flying.wait, 0, trio.CapacityLimiter(1))
            await trio.testing.wait_all_tasks_blocked()
            gates.open(0)
            assert await flying.wait(0) == "0"
            assert gates.begun == [0]


@pytest.mark.parametrize("is_reader", [True, False])
async def test_only_readers_are_in_the_foreground(is_reader: bool) -> None:
    gates, foreground = Gates(), Foreground()
    with trio.fail_after(60), gates.opened_in_the_end():
        async with trio.open_nursery() as nursery:
            flying = flights(gates, nursery, foreground)
            nursery.start_soon(flying.wait, 0, None if is_reader else trio.CapacityLimiter(1))
            await trio.testing.wait_all_tasks_blocked()
            assert foreground.is_quiet is not is_reader
            gates.open(0)
        assert foreground.is_quiet
