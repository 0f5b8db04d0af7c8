"""Concurrent reads of one object become one; damage, and who is cancelled, costs nobody else anything."""

import math
from threading import Event, get_ident

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.arrays import Ranges
from dieselfs.errors import Damaged
from dieselfs.telemetry.registry import Registry
from dieselfs_server.reading.executor import (
    GAP_BYTES_MAX,
    INLINE_RANGES_MAX,
    JOINED_BYTES_MAX,
    JOINED_RANGES_MAX,
    ReadMetrics,
    ReadQueue,
    covers,
    cut_ranges,
    join_ranges,
    merge_ranges,
)

FAR = 4 * GAP_BYTES_MAX
CONTENT = bytes(range(251)) * (4 * FAR // 251 + 1)
TIMEOUT_S = 20.0


def ranges(*pairs: tuple[int, int]) -> Ranges:
    return np.array(pairs, np.int64).reshape(-1, 2)


class Slow:
    """A queue over an object whose reads wait until they are let go, all at once or one by one."""

    def __init__(self, reads_max: int = 8, bad_from: int = len(CONTENT)) -> None:
        self.bad_from = bad_from
        self.spans: list[tuple[int, int]] = []
        self.go = Event()
        self.metrics = Registry()
        self.tokens = trio.CapacityLimiter(reads_max)
        self.queue = ReadQueue(
            self._read, self.tokens, trio.CapacityLimiter(math.inf), ReadMetrics(self.metrics)
        )

    def _read(self, offset: int, length: int) -> bytes:
        self.spans.append((offset, length))
        assert self.go.wait(TIMEOUT_S)
        if offset + length > self.bad_from:
            raise Damaged(f"offset {offset}: bad")
        return CONTENT[offset : offset + length]

    async def read(self, wanted: Ranges) -> None:
        parts = await self.queue.read(wanted)
        assert [bytes(part) for part in parts] == [CONTENT[o : o + n] for o, n in wanted.tolist() if n]

    async def begun(self, spans: int) -> None:
        """Wait until so many spans have been begun to be read."""
        while len(self.spans) < spans:
            await trio.sleep(0.001)


@pytest.fixture(autouse=True)
def check_ends(request: pytest.FixtureRequest) -> None:
    """A queue that hangs fails its test soon."""
    request.node.add_marker(pytest.mark.timeout(60))


async def test_who_wants_what_is_being_read_shares_it() -> None:
    slow = Slow()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slow.read, ranges((0, FAR)))
        await slow.begun(1)
        for wanted in (ranges((0, FAR)), ranges((5, 7), (FAR - 1, 1)), ranges((3, 0))):
            nursery.start_soon(slow.read, wanted)
        await trio.testing.wait_all_tasks_blocked()
        slow.go.set()
    assert slow.spans == [(0, FAR)]
    counted = slow.metrics.as_dict()["reading"]
    assert (counted["requests"], counted["shared_requests"], counted["store_reads"]) == (4, 3, 1)
    assert counted["store_bytes"] == FAR


async def test_who_waits_is_taken_along_by_the_next_read() -> None:
    slow = Slow()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slow.read, ranges((2 * FAR, 10)))
        await slow.begun(1)
        for wanted in (
            ranges((0, 10)),
            ranges((20, 10), (5, 5)),
            ranges((3 * FAR, 1)),
            ranges((2 * FAR, 11)),
        ):
            nursery.start_soon(slow.read, wanted)
        await trio.testing.wait_all_tasks_blocked()
        slow.go.set()
    assert slow.spans == [(2 * FAR, 10), (0, 30), (2 * FAR, 11), (3 * FAR, 1)]
    assert slow.metrics.numbers()["reading.shared_requests"] == 3


async def test_reads_that_wait_for_a_token_are_merged() -> None:
    slow = Slow(reads_max=1)
    async with trio.open_nursery() as nursery, slow.tokens:
        for place in (4, 0, 2):
            nursery.start_soon(slow.read, ranges((place, 2)))
        await trio.testing.wait_all_tasks_blocked()
        slow.go.set()
    assert slow.spans == [(0, 6)]


async def test_damage_fails_only_who_wants_it() -> None:
    slow = Slow(bad_from=FAR)
    failed = []

    async def read_bad() -> None:
        with pytest.raises(Damaged, match=f"offset {2 * FAR}: bad"):
            await slow.queue.read(ranges((0, 1), (2 * FAR, 1)))
        failed.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(slow.read, ranges((0, 1)))
        await slow.begun(1)
        nursery.start_soon(read_bad)
        nursery.start_soon(slow.read, ranges((1, 1)))
        await trio.testing.wait_all_tasks_blocked()
        slow.go.set()
    assert failed == [True]


async def test_a_cancelled_reader_leaves_the_others_their_read() -> None:
    slow = Slow(reads_max=1)
    async with trio.open_nursery() as nursery:
        scopes = []

        async def read_in_vain(wanted: Ranges) -> None:
            with trio.CancelScope() as scope:
                scopes.append(scope)
                await slow.read(wanted)

        async with slow.tokens:
            for place in range(3):
                nursery.start_soon(read_in_vain, ranges((place, 1)))
                await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(slow.read, ranges((7, 1)))
            await trio.testing.wait_all_tasks_blocked()
            scopes[0].cancel()  # it waits for the token, to read for all
            scopes[2].cancel()  # it waits for its turn
            await trio.testing.wait_all_tasks_blocked()
            slow.go.set()
    assert slow.spans == [(1, 7)]


async def test_a_read_that_is_under_way_survives_who_began_it() -> None:
    slow = Slow()
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as first:
                first.start_soon(slow.read, ranges((0, 9)))
                await slow.begun(1)
                nursery.start_soon(slow.read, ranges((3, 3)))
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
                slow.go.set()
    assert slow.spans == [(0, 9)]


async def test_nothing_is_read_for_nothing() -> None:
    slow = Slow()
    assert await slow.queue.read(ranges()) == []
    assert await slow.queue.read(ranges((5, 0))) == []
    assert slow.spans == []


PAYLOAD = bytes(range(256)) * 40
RANGES = st.lists(
    st.integers(0, len(PAYLOAD)).flatmap(
        lambda start: st.tuples(st.just(start), st.integers(0, min(300, len(PAYLOAD) - start)))
    ),
    max_size=40,
)


@given(RANGES, st.integers(0, 500))
def test_every_range_comes_out_of_the_spans(ranges: list[tuple[int, int]], gap_bytes_max: int) -> None:
    asked = np.array(ranges, np.int64).reshape(-1, 2)
    spans = merge_ranges(asked, gap_bytes_max)
    contents = [PAYLOAD[start : start + length] for start, length in spans.tolist()]
    assert b"".join(cut_ranges(asked, spans, contents)) == b"".join(PAYLOAD[s : s + n] for s, n in ranges)
    for (start, length), (following, _) in zip(spans.tolist(), spans[1:].tolist(), strict=False):
        assert following > start + length + gap_bytes_max  # or they would have been one read


@pytest.mark.parametrize("count", [1, INLINE_RANGES_MAX, INLINE_RANGES_MAX + 1, 3 * JOINED_RANGES_MAX])
def test_small_ranges_share_buffers_and_large_ones_have_their_own(count: int) -> None:
    wanted = np.array(
        [(at % 200, at % 7 + 1) for at in range(count)] + [(0, JOINED_BYTES_MAX), (5, 2)], np.int64
    )
    spans = np.array([(0, len(CONTENT))], np.int64)
    parts = join_ranges(wanted, spans, [CONTENT])
    assert b"".join(parts) == b"".join(cut_ranges(wanted, spans, [CONTENT]))
    if count > INLINE_RANGES_MAX:
        assert len(parts) <= count / JOINED_RANGES_MAX + 3
        assert all(len(part) <= JOINED_BYTES_MAX for part in parts)


@pytest.mark.parametrize("count, is_inline", [(INLINE_RANGES_MAX, True), (INLINE_RANGES_MAX + 1, False)])
async def test_many_ranges_are_cut_in_a_thread(count: int, is_inline: bool) -> None:
    """Also those of a request that another read covers."""
    slow, threads, loop = Slow(), [], get_ident()

    def cut(ranges: Ranges, spans: Ranges, contents: list[bytes]) -> list[memoryview]:
        threads.append(get_ident())
        return join_ranges(ranges, spans, contents)

    async def read() -> None:
        assert b"".join(await slow.queue.read(wanted, cut)) == CONTENT[: 2 * count]

    wanted = ranges(*((2 * at, 2) for at in range(count)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await slow.begun(1)
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        slow.go.set()
    assert len(threads) == 2 and [each == loop for each in threads] == [is_inline] * 2
    assert slow.metrics.numbers()["reading.shared_requests"] == 1


def test_neighbours_are_read_in_one_go() -> None:
    spans = merge_ranges(np.array([(5000, 10), (0, 100), (100, 50)], np.int64), gap_bytes_max=100)
    assert spans.tolist() == [[0, 150], [5000, 10]]


@pytest.mark.parametrize(
    ("spans", "ranges", "is_covered"),
    [
        ([(10, 5)], [(10, 5)], True),
        ([(10, 5)], [(9, 1)], False),
        ([(10, 5)], [(14, 2)], False),
        ([(10, 5)], [(2, 0), (90, 0)], True),
        ([(10, 5), (20, 5)], [(20, 1), (12, 3)], True),
        ([(10, 5), (20, 5)], [(14, 7)], False),
        ([], [(0, 1)], False),
        ([], [], True),
    ],
)
def test_ranges_are_covered_by_one_span_each(
    spans: list[tuple[int, int]], ranges: list[tuple[int, int]], is_covered: bool
) -> None:
    def table(pairs: list[tuple[int, int]]) -> Ranges:
        return np.array(pairs, np.int64).reshape(-1, 2)

    assert covers(table(spans), table(ranges)) == is_covered
