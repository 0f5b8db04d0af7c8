"""When the snapshots of datasets that are written are built, before a reader asks. Builds run in the trio thread."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf
from typing import NoReturn

import trio

from dieselfs.errors import DieselfsError

log = logging.getLogger(__name__)

QUIET_S = 1.0
"""A put has ended if no chunk of the dataset arrives for this long."""
STALE_S = 30.0
"""While chunks arrive, the snapshot is built at this interval."""
PAUSE_FACTOR = 3
"""Pauses between two builds of a dataset are this many times as long as the last one: a quarter of a core at most."""


@dataclass(slots=True)
class _Written:
    """A dataset that was written: when first since its last build, when last, and when it may be built again."""

    first_s: float
    last_s: float
    not_before_s: float = -inf

    def due_s(self) -> float:
        return max(min(self.last_s + QUIET_S, self.first_s + STALE_S), self.not_before_s)


class Refresh:
    """Builds by `build`, which gets the name of a dataset. Times are those of trio's clock."""

    def __init__(self, build: Callable[[str], Awaitable[object]]) -> None:
        self._build = build
        self._written: dict[str, _Written] = {}
        self._pauses: dict[str, float] = {}
        self._changed = trio.Event()

    def note(self, dataset: str) -> None:
        """A chunk of the dataset was applied."""
        now_s = trio.current_time()
        if (written := self._written.get(dataset)) is not None:
            written.last_s = now_s
            return
        self._written[dataset] = _Written(now_s, now_s, self._pauses.get(dataset, -inf))
        self._changed.set()

    async def run(self) -> NoReturn:
        """Build until cancelled. An error is logged; the next reader gets it again."""
        while True:
            if not self._written:
                await self._changed.wait()
            self._changed = trio.Event()
            dataset = min(self._written, key=lambda name: self._written[name].due_s())
            due_s = self._written[dataset].due_s()
            if due_s > trio.current_time():
                with trio.move_on_at(due_s):
                    await self._changed.wait()
                continue
            del self._written[dataset]
            started_s = trio.current_time()
            try:
                await self._build(dataset)
            except DieselfsError as error:
                log.info("the snapshot of %s is not built ahead: %s", dataset, error)
            except Exception:  # the server must not end with a task that only saves time
                log.exception("building the snapshot of %s ahead failed with an internal error", dataset)
            now_s = trio.current_time()
            self._pauses = {name: until_s for name, until_s in self._pauses.items() if until_s > now_s}
            self._pauses[dataset] = now_s + PAUSE_FACTOR * (now_s - started_s)
