"""The errno of a request that failed, and the newest errors of a mount for `.dieselfs/errors`. No I/O but the log."""

import errno
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

from dieselfs.errors import DieselfsError, InvalidInput, NotFound, Unavailable
from dieselfs.names import printable
from dieselfs_client.mount.reading.core import MountCore

ERRORS_KEPT_MAX = 256
"""Lines of `.dieselfs/errors`."""

REPEAT_NS = 5 * 10**9
"""The kernel requests a page again after an error. A newer error of a path replaces one of this age or less."""

_log = logging.getLogger(__name__)


class Refused(Exception):
    """The errno for an invalid request, which is neither logged nor noted."""

    def __init__(self, code: int) -> None:
        super().__init__(os.strerror(code))
        self.code = code


class ErrorLog:
    """Keeps the newest errors. Used from one trio thread. `clock_ns` is the time since 1970.

    `trouble`: why the servers cannot be reached now; empty if they can be, or if this is unknown.
    """

    def __init__(self, errors_max: int = ERRORS_KEPT_MAX, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.trouble: Callable[[], str] = str
        self._errors: deque[tuple[int, str, str]] = deque(maxlen=errors_max)
        self._clock_ns = clock_ns

    def note(self, path: str, reason: str) -> None:
        """Add the `reason` for which an operation on `path`, which is printable, failed."""
        now_ns = self._clock_ns()
        for error in [*self._errors]:
            if error[1] == path and now_ns - error[0] < REPEAT_NS:
                self._errors.remove(error)
        self._errors.append((now_ns, path, " ".join(reason.split())))

    def text(self) -> str:
        """A line for each error, the oldest first: time (UTC), path and reason, separated by tabs."""
        lines = []
        for at_ns, path, reason in self._errors:
            time_utc = datetime.fromtimestamp(at_ns / 1e9, UTC).isoformat(timespec="milliseconds")
            lines.append(f"{time_utc}\t{path}\t{reason}\n")
        return "".join(lines)

    def code(self, core: MountCore, what: str, inode: int, error: Exception) -> int:
        """The errno for the `error` of operation `what` on an inode. Every exception has one: ESTALE for an inode that
        has ended, EIO for one whose bytes are not found. Errors of the data, of servers and of this program are logged
        and noted.
        """
        if isinstance(error, Refused):
            return error.code
        if isinstance(error, InvalidInput):
            return errno.EINVAL
        try:
            path = printable(core.snapshot.path(core.node(inode))) or "the root"
        except NotFound:
            if isinstance(error, NotFound):
                return errno.ESTALE
            path = f"inode {inode}"
        if isinstance(error, DieselfsError):
            reason = str(error)
            trouble = self.trouble() if isinstance(error, Unavailable) else ""
            if trouble not in reason:  # a read that timed out, while the client retries to connect
                reason += f"; {trouble}"
            _log.error("%s: %s", path, reason)
            self.note(path, reason)
        else:
            _log.error("%s on %s failed", what, path, exc_info=error)
            self.note(path, f"{what} failed: {error!r}; see the log of the daemon")
        return errno.EIO
