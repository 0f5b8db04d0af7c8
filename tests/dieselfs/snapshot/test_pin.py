"""The pin of a mount: renewed as long as it lives, taken back at its end, never in its way."""

import threading

import pytest
import trio
import trio.testing

from dieselfs.errors import Unavailable
from dieselfs.snapshot.pin import PIN_INTERVAL_S, PIN_LEASE_S, holder_name, keep_pinned, unpin
from tests.support.dataset import TreeEntry, pack_entries

HEADER = pack_entries([TreeEntry(b"f", 0o100644, 0, b"x")]).snapshot.header
THREAD_S = 0.3
"""The clock does not see that a thread is at work, and must not jump while one is."""


async def test_it_is_renewed_and_taken_back(autojump_clock: trio.testing.MockClock) -> None:
    autojump_clock.autojump_threshold = THREAD_S
    told: list[tuple[str, str, int, int, int]] = []
    with trio.move_on_after(PIN_INTERVAL_S * 3.5):
        await keep_pinned(lambda *words: told.append(words), HEADER, "me")
    await unpin(lambda *words: told.append(words), HEADER, "me")
    assert told[:-1] == [("packed", "me", HEADER.generation, HEADER.updated_ns, PIN_LEASE_S)] * 4
    assert told[-1] == ("packed", "me", HEADER.generation, HEADER.updated_ns, 0)


async def test_the_first_pin_is_announced_even_if_the_server_refuses_it(nursery: trio.Nursery) -> None:
    def refused(*words: object) -> None:
        told.append(words)
        raise Unavailable("the server is away")

    told: list[object] = []
    sent = trio.Event()
    nursery.start_soon(keep_pinned, refused, HEADER, "me", sent.set)
    with trio.fail_after(10):
        await sent.wait()
    assert told
    nursery.cancel_scope.cancel()


async def test_a_server_that_is_away_does_not_end_the_mount(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*words: object) -> None:
        raise Unavailable("the server is away")

    autojump_clock.autojump_threshold = THREAD_S
    with trio.move_on_after(PIN_INTERVAL_S * 2.5) as lived:
        await keep_pinned(away, HEADER, "me")
    assert lived.cancelled_caught
    await unpin(away, HEADER, "me")
    assert sum("the server is away" in record.message for record in caplog.records) == 4


async def test_a_server_that_hangs_does_not_keep_the_mount_from_ending() -> None:
    let_go = threading.Event()
    try:
        with trio.fail_after(30):
            with trio.move_on_after(0.01):
                await keep_pinned(lambda *words: void(let_go.wait(60)), HEADER, "me")
            await unpin(lambda *words: void(let_go.wait(60)), HEADER, "me")
    finally:
        let_go.set()


def void(_: object) -> None:
    """For a lambda that must return nothing."""


def test_holders_are_printable_and_short() -> None:
    name = holder_name("/mnt/" + "ä" * 300, 7)
    assert name.isprintable() and len(name) < 190 and " 7 " in name
