"""Warming by a clock that stands still but when all are asleep; loads take as long as they are told to."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
import trio
import trio.testing

from dieselfs.errors import Damaged, DieselfsError, Unavailable
from dieselfs_client.memory.trio_cache import Foreground
from dieselfs_client.memory.warming import WARM_AGAIN_S, WARM_QUIET_S, Pace, Warming, missing, rotated

CHUNK_BYTES = 1000
LOAD_S = 1.0


@dataclass
class Store:
    """Has room for `room` chunks; what is in `errors` fails, each time with the next of these."""

    room: int = 1000
    errors: dict[int, list[DieselfsError]] = field(default_factory=dict)
    pinned: list[int] = field(default_factory=list)
    began_s: list[float] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    damaged: set[int] = field(default_factory=set)

    def lacks(self, chunk: int) -> bool:
        return chunk not in self.pinned and chunk not in self.damaged

    def has_room(self, chunk: int) -> bool:
        return len(self.pinned) + self.at_once < self.room

    async def bring(self, chunk: int, limiter: trio.CapacityLimiter) -> None:
        self.began_s.append(trio.current_time())
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        await trio.sleep(LOAD_S)
        self.at_once -= 1
        if self.errors.get(chunk):
            error = self.errors[chunk].pop(0)
            if isinstance(error, Damaged):
                self.damaged.add(chunk)
            raise error
        self.pinned.append(chunk)


class Run:
    """A warming of the chunks of `order`; the clock begins at 0."""

    def __init__(self, store: Store, chunks: int, pace: Pace) -> None:
        self.store = store
        self.chunks = list(range(chunks))
        self.foreground = Foreground()
        self.warming = Warming(store, lambda: self.chunks, lambda _: CHUNK_BYTES, self.foreground, pace)

    async def finish(self) -> float:
        """Until all is done; when that was."""
        self.warming.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.warming.run)
            while self.warming.is_under_way:
                await trio.sleep(LOAD_S / 100)
            nursery.cancel_scope.cancel()
        return trio.current_time()

    @contextmanager
    def somebody_waits(self) -> Iterator[None]:
        with self.foreground.waiting():
            yield


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("share", [0.25, 0.8, 1.0])
async def test_each_lane_works_its_share_of_the_time(
    autojump_clock: trio.testing.MockClock, workers: int, share: float
) -> None:
    store = Store()
    took_s = await Run(store, 12, Pace(workers, share)).finish()
    assert sorted(store.pinned) == list(range(12)) and store.most_at_once == workers
    assert took_s == pytest.approx(12 / workers * LOAD_S / share, abs=0.02)


async def test_all_lanes_together_keep_to_the_rate(autojump_clock: trio.testing.MockClock) -> None:
    store = Store()
    await Run(store, 10, Pace(workers=8, share=1.0, rate_bytes=5 * CHUNK_BYTES)).finish()
    gaps_s = [after - before for before, after in pairwise(store.began_s)]
    assert len(gaps_s) == 9 and min(gaps_s) >= 0.2 - 1e-9
    assert store.began_s[-1] == pytest.approx(9 * 0.2)


@pytest.mark.parametrize("rate_bytes", [0, 3 * CHUNK_BYTES])
async def test_nothing_is_begun_while_somebody_waits(
    autojump_clock: trio.testing.MockClock, rate_bytes: int
) -> None:
    store = Store()
    run = Run(store, 20, Pace(workers=2, share=1.0, rate_bytes=rate_bytes))
    waits_s = [(2.5, 6.25), (7.5, 7.75)]

    async def read() -> None:
        for begin_s, end_s in waits_s:
            await trio.sleep_until(begin_s)
            with run.somebody_waits():
                await trio.sleep_until(end_s)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await run.finish()
    assert sorted(store.pinned) == list(range(20))
    for began_s in store.began_s:
        assert not any(begin_s < began_s < end_s + WARM_QUIET_S for begin_s, end_s in waits_s)


async def test_no_more_is_fetched_than_there_is_room_for(autojump_clock: trio.testing.MockClock) -> None:
    store = Store(room=5)
    await Run(store, 20, Pace(workers=3)).finish()
    assert sorted(store.pinned) == [0, 1, 2, 3, 4] and len(store.began_s) == 5


async def test_what_failed_is_tried_again_later_and_what_is_damaged_is_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = Store(errors={1: [Unavailable("once"), Unavailable("twice")], 3: [Damaged("for ever")]})
    took_s = await Run(store, 6, Pace(workers=1, share=1.0)).finish()
    assert sorted(store.pinned) == [0, 1, 2, 4, 5] and store.damaged == {3}
    assert took_s == pytest.approx(8 * LOAD_S + 2 * WARM_AGAIN_S, abs=0.02)


async def test_what_belongs_to_the_node_later_is_fetched_then(autojump_clock: trio.testing.MockClock) -> None:
    store = Store()
    run = Run(store, 3, Pace())
    run.warming.look_again()
    assert not run.warming.is_under_way, "nobody wanted it to be warmed"
    await run.finish()
    run.chunks += [7, 8]
    run.warming.look_again()
    await run.finish()
    assert sorted(store.pinned) == [0, 1, 2, 7, 8]


async def test_what_changes_on_the_way_is_not_forgotten(autojump_clock: trio.testing.MockClock) -> None:
    store = Store()
    run = Run(store, 6, Pace(workers=1, share=1.0))

    async def change() -> None:
        await trio.sleep(2.5 * LOAD_S)
        run.chunks = [0, 1, 9]
        run.warming.look_again()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        await run.finish()
    assert 9 in store.pinned


def test_nodes_begin_at_different_places() -> None:
    chunks = np.arange(100, 120)
    firsts = [rotated(chunks, place, 4)[0] for place in range(4)]
    assert firsts == [100, 105, 110, 115]
    assert all(sorted(rotated(chunks, place, 4)) == chunks.tolist() for place in range(4))
    assert rotated(np.empty(0, np.int64), 1, 3) == []


def test_each_chunk_is_looked_at_when_it_is_its_turn() -> None:
    store = Store(room=3, pinned=[1])
    chunks = missing(range(5), store)
    assert next(chunks) == 0
    store.pinned.append(2)
    assert next(chunks) == 3
    store.room = 2
    assert list(chunks) == []
