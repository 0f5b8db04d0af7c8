"""The newest errors of a mount, for `.dieselfs/errors`. No I/O."""

import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

ERRORS_KEPT_MAX = 256
"""Lines of `.dieselfs/errors`."""

REPEAT_NS = 5 * 10**9
"""The kernel requests a page that it did not get twice. A newer error of a path replaces one of this age or less."""


class ErrorLog:
    """Keeps the newest errors. `clock_ns` is the time since 1970.

    `trouble`: why the servers cannot be reached now; empty if they can be, or if nothing is known.
    """

    def __init__(self, errors_max: int = ERRORS_KEPT_MAX, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.trouble: Callable[[], str] = str
        self._errors: deque[tuple[int, str, str]] = deque(maxlen=errors_max)
        self._clock_ns = clock_ns

    def note(self, path: str, reason: str) -> None:
        """Note why `path`, which is printable, failed."""
        now_ns = self._clock_ns()
        for error in [*self._errors]:
            if error[1] == path and now_ns - error[0] < REPEAT_NS:
                self._errors.remove(error)
        self._errors.append((now_ns, path, " ".join(reason.split())))

    def text(self) -> str:
        """A line for each error, the oldest first: time (UTC), path and reason, separated by tabs."""
        return "".join(f"{_time(at_ns)}\t{path}\t{reason}\n" for at_ns, path, reason in self._errors)


def _time(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns / 1e9, UTC).isoformat(timespec="milliseconds")
