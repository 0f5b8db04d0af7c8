"""What failed lately on this server: refused and failed calls, and warnings of its log. Bounded, in memory."""

import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from threading import Lock

FAILURES_MAX = 500
FAILURES_PER_USER_MAX = 50
"""So that one user's calls do not push out all others."""
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
        self._lock = Lock()

    def add(self, level: str, what: str, user: str, outcome: str, text: str) -> None:
        shown = text[:TEXT_CHARACTERS_MAX]
        with self._lock:
            of_user = [each for each in self._failures if each.user == user] if user else []
            if len(of_user) >= FAILURES_PER_USER_MAX:
                self._failures.remove(of_user[0])
            self._failures.append(
                Failure(next(self._numbers), time.time(), level, what, user, outcome, shown)
            )

    def newest(self) -> Iterator[Failure]:
        """The newest first."""
        with self._lock:
            failures = [*self._failures]
        yield from reversed(failures)


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
        try:
            kind = record.exc_info[0] if record.exc_info else None
            text = record.getMessage() + (f" ({kind.__name__})" if kind else "")
            self._failures.add(record.levelname.lower(), record.name, "", "", text)
        except Exception:  # a log call with wrong arguments must not fail its caller
            self.handleError(record)
