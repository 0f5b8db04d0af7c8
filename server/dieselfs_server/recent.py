"""What failed lately on this server: refused and failed calls, and warnings of its log. Bounded, in memory."""

import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

FAILURES_MAX = 500
TEXT_CHARACTERS_MAX = 500


@dataclass(frozen=True, slots=True)
class Failure:
    """`time_s` since 1970. `what`: the method of a call, or the logger; `user` is empty for the log."""

    number: int
    time_s: float
    level: str
    what: str
    user: str
    outcome: str
    text: str


class RecentFailures:
    """The newest failures. Threads may add at any time."""

    def __init__(self) -> None:
        self._failures: deque[Failure] = deque(maxlen=FAILURES_MAX)
        self._numbers = count(1)

    def add(self, level: str, what: str, user: str, outcome: str, text: str) -> None:
        shown = text[:TEXT_CHARACTERS_MAX]
        self._failures.append(Failure(next(self._numbers), time.time(), level, what, user, outcome, shown))

    def newest(self) -> Iterator[Failure]:
        """The newest first."""
        yield from reversed([*self._failures])


@contextmanager
def noting_log(failures: RecentFailures) -> Iterator[None]:
    """Add warnings and errors of all loggers until the end of the block."""
    handler = RecentLog(failures)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


class RecentLog(logging.Handler):
    """Adds warnings and errors of the log."""

    def __init__(self, failures: RecentFailures) -> None:
        super().__init__(logging.WARNING)
        self._failures = failures

    def emit(self, record: logging.LogRecord) -> None:
        self._failures.add(record.levelname.lower(), record.name, "", "", record.getMessage())
