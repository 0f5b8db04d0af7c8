"""The last things that went wrong on a mount, for `.dieselfs/errors`. No I/O."""

import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

from dieselfs.limits import ERRORS_KEPT_MAX


class ErrorLog:
    """Keeps the newest errors; the oldest make room. `clock_ns` is the time since 1970."""

    def __init__(self, errors_max: int = ERRORS_KEPT_MAX, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._lines: deque[str] = deque(maxlen=errors_max)
        self._clock_ns = clock_ns

    def note(self, path: str, reason: str) -> None:
        """`path` is what failed, printable; `reason` says why."""
        at = datetime.fromtimestamp(self._clock_ns() / 1e9, UTC).isoformat(timespec="milliseconds")
        self._lines.append("\t".join([at, path, " ".join(reason.split())]))

    def text(self) -> str:
        """A line for each error, the oldest first: time (UTC), path and reason, with tabs between them."""
        return "".join(line + "\n" for line in self._lines)
