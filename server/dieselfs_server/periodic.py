"""Repeats work of a server in the background."""

import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

import trio

from dieselfs.errors import DieselfsError

INTERVAL_S = 60.0
SHARE_MAX = 0.05
"""The work may take this share of the time: with a slow metadata store it is done less often."""
LAST_S = 5.0
"""Limit of the work at the end of a server."""

log = logging.getLogger(__name__)


def pause_s(took_s: float) -> float:
    """Before the next work, after one that took `took_s`."""
    return max(INTERVAL_S, took_s / SHARE_MAX)


async def repeat(
    work: Callable[[], object], what: str, sleep: Callable[[float], Awaitable[None]] = trio.sleep
) -> NoReturn:
    """Call `work`, which blocks, in a thread until cancelled, first after INTERVAL_S. An error is logged, and the next
    call may succeed.
    """
    took_s = 0.0
    while True:
        await sleep(pause_s(took_s))
        took_s = await _timed(work, what)


async def at_end(work: Callable[[], object], what: str) -> None:
    """Call `work` once more, also if cancelled, for LAST_S at most."""
    with trio.move_on_after(LAST_S, shield=True):
        await _timed(work, what)


async def _timed(work: Callable[[], object], what: str) -> float:
    """How long it took, in seconds."""
    began_s = trio.current_time()
    try:
        await trio.to_thread.run_sync(work, abandon_on_cancel=True)
    except DieselfsError as error:
        log.warning("%s: %s", what, error)
    except Exception:  # the server must not end with a task that only keeps figures
        log.exception("%s: an internal error", what)
    return trio.current_time() - began_s
