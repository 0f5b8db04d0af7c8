"""The errors of dieselfs, and the exit code of `dlcmd` for each.

The message of an error says what failed, on which object, why, and what to do next. By `CODE_BY_ERROR` errors cross the
network: the server sends the code and the message, the client raises the same class.
"""

from collections.abc import Iterator
from contextlib import contextmanager

EXIT_OK = 0
EXIT_USAGE = 1
EXIT_PARTIAL = 2
EXIT_NOT_FOUND = 3
EXIT_REFUSED = 4
EXIT_DAMAGED = 5
EXIT_UNAVAILABLE = 6
EXIT_BUG = 70
EXIT_INTERRUPTED = 130


class DieselfsError(Exception):
    """Base of all errors that are not bugs."""

    exit_code = EXIT_PARTIAL


class InvalidInput(DieselfsError, ValueError):
    """An invalid request of the caller: a bad name, option, or path."""

    exit_code = EXIT_USAGE


class NotFound(DieselfsError):
    """A dataset, file, or folder that does not exist (or that this user may not see)."""

    exit_code = EXIT_NOT_FOUND


class PathNotFound(NotFound, FileNotFoundError):
    """A path that is not in a dataset: for code that expects what `open` raises."""


class AlreadyExists(DieselfsError):
    """An object with this name or ID exists already."""

    exit_code = EXIT_USAGE


class AccessDenied(DieselfsError):
    """A wrong key, an unknown user, or a missing right."""

    exit_code = EXIT_REFUSED


class Damaged(DieselfsError):
    """Stored or received bytes are wrong. Names the object and the offset."""

    exit_code = EXIT_DAMAGED


class ProtocolError(DieselfsError):
    """The other side violated the protocol. The connection must be closed."""

    exit_code = EXIT_UNAVAILABLE


class Unavailable(DieselfsError):
    """A server or a store cannot be reached, or did not answer in time. A later retry may succeed."""

    exit_code = EXIT_UNAVAILABLE


class NoRoom(Unavailable):
    """This process has no memory or descriptor left. Other processes may have."""


class StorageFull(DieselfsError):
    """The server has no room left. Acknowledged data is safe; data in flight is not stored."""

    exit_code = EXIT_PARTIAL


class SourceChanged(DieselfsError):
    """A source file changed, vanished, or could not be read while it was being uploaded."""


class MountError(DieselfsError):
    """The dataset cannot be mounted there."""

    exit_code = EXIT_USAGE


class MountNotFound(MountError, NotFound):
    """There is no such folder to mount on, or no mount on it."""

    exit_code = EXIT_NOT_FOUND


class MountDenied(MountError, AccessDenied):
    """The system does not let this user mount or unmount."""

    exit_code = EXIT_REFUSED


CODE_BY_ERROR: dict[type[DieselfsError], int] = {
    InvalidInput: 1,
    NotFound: 2,
    AlreadyExists: 3,
    AccessDenied: 4,
    Damaged: 5,
    ProtocolError: 6,
    Unavailable: 7,
    StorageFull: 8,
}
"""Numbers on the wire (`Refusal.code` in `rpc/dieselfs.thrift`); never renumber."""

ERROR_BY_CODE: dict[int, type[DieselfsError]] = {code: error for error, code in CODE_BY_ERROR.items()}


def code_of(error: DieselfsError) -> int:
    """The code of the nearest kind of an error that has one."""
    return next(CODE_BY_ERROR[kind] for kind in (*type(error).__mro__, Unavailable) if kind in CODE_BY_ERROR)


@contextmanager
def os_errors_as(kind: type[DieselfsError], what: object, then: str = "") -> Iterator[None]:
    """Raise `kind` in place of an OSError of the block: `what`, which failed, its reason, and `then`."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}{then}") from None


def parse_fault(error: Exception) -> str:
    """What was wrong with a parsed description, without the names of Python's errors."""
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)
