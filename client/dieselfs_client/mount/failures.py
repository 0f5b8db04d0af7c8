"""What is answered to a request that failed, and where it is said why. No I/O but the log."""

import errno
import logging
import os

from dieselfs.errors import DieselfsError, InvalidInput, NotFound, Unavailable
from dieselfs.names import printable
from dieselfs_client.mount.core import MountCore
from dieselfs_client.mount.error_log import ErrorLog

_log = logging.getLogger(__name__)


class Refused(Exception):
    """Carries the errno that answers a request which cannot be, and is nobody's fault."""

    def __init__(self, code: int) -> None:
        super().__init__(os.strerror(code))
        self.code = code


class Failures:
    """Used from one trio thread. What fails for want of bytes, or by our own fault, is logged and kept in `errors`."""

    def __init__(self, core: MountCore, errors: ErrorLog) -> None:
        self.errors = errors
        self._core = core

    def code(self, what: str, inode: int, error: Exception) -> int:
        """The errno that the error means to who asked `what` about an inode. Every exception has one."""
        if isinstance(error, Refused):
            return error.code
        if isinstance(error, NotFound):
            return errno.ESTALE
        if isinstance(error, InvalidInput):
            return errno.EINVAL
        path = self._path(inode)
        if isinstance(error, DieselfsError):
            reason = str(error)
            trouble = self.errors.trouble() if isinstance(error, Unavailable) else ""
            if trouble not in reason:  # a read that timed out, while the client retries to connect
                reason += f"; {trouble}"
            _log.error("%s: %s", path, reason)
            self.errors.note(path, reason)
        else:
            _log.error("%s about %s failed", what, path, exc_info=error)
            self.errors.note(path, f"{what} failed: {error!r}; the log has more")
        return errno.EIO

    def _path(self, inode: int) -> str:
        """What to call an inode."""
        try:
            return printable(self._core.snapshot.path(self._core.node(inode))) or "the root"
        except NotFound:
            return f"inode {inode}"
