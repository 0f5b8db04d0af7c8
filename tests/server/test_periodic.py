"""Work in the background: repeated, rarely if it is slow, also after an error, and once more at the end."""

import pytest
import trio
import trio.testing

from dieselfs.errors import Unavailable
from dieselfs_server.periodic import INTERVAL_S, SHARE_MAX, at_end, pause_s, repeat


def test_work_is_repeated_also_after_errors(caplog: pytest.LogCaptureFixture) -> None:
    events: list[str] = []

    def work() -> None:
        events.append("work")
        raise Unavailable("away") if len(events) == 2 else RuntimeError("a fault")

    async def sleep(seconds: float) -> None:
        assert seconds >= INTERVAL_S
        events.append("pause")
        if len(events) == 5:
            scope.cancel()
        await trio.lowlevel.checkpoint()

    async def run() -> None:
        with scope:
            await repeat(work, "the figures are late", sleep)

    scope = trio.CancelScope()
    trio.run(run)
    assert events == ["pause", "work", "pause", "work", "pause"]
    assert "the figures are late: away" in caplog.text and "a fault" in caplog.text


def test_slow_work_takes_a_bounded_share_of_the_time() -> None:
    assert pause_s(0.1) == INTERVAL_S
    assert 30 / (30 + pause_s(30)) < SHARE_MAX


def test_the_end_waits_for_work_also_if_cancelled_but_not_for_ever() -> None:
    done: list[str] = []

    async def run() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await at_end(lambda: done.append("quick"), "quick")
            await at_end(lambda: trio.from_thread.run(trio.sleep_forever), "endless")
            done.append("ended")

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    assert done == ["quick", "ended"]
