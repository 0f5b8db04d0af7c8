"""Every error that dieselfs raises on purpose, and the exit code that each one means for `dlcmd`.

The message of an error says what happened, to which object, and what to do next. `CODE_BY_ERROR` is how an
error crosses the network: the server sends the code and the message, the client raises the same class.
"""

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
    """Base of all; catching it catches every failure that is not a bug."""

    exit_code = EXIT_PARTIAL


class InvalidInput(DieselfsError, ValueError):
    """What the caller asked for cannot be: a bad name, option, or path."""

    exit_code = EXIT_USAGE


class NotFound(DieselfsError):
    """A dataset, file, or folder that does not exist (or that this user may not see)."""

    exit_code = EXIT_NOT_FOUND


class AlreadyExists(DieselfsError):
    """Something with this name or ID is there already."""

    exit_code = EXIT_USAGE


class AccessDenied(DieselfsError):
    """Wrong key, unknown user, or a right that the user does not have."""

    exit_code = EXIT_REFUSED


class Damaged(DieselfsError):
    """Stored or received bytes are not what they must be. Names the object and the offset."""

    exit_code = EXIT_DAMAGED


class ProtocolError(DieselfsError):
    """The other side of a connection broke the protocol. The connection is of no further use."""

    exit_code = EXIT_UNAVAILABLE


class Unavailable(DieselfsError):
    """A server or a store cannot be reached, or did not answer in time. Trying again later may help."""

    exit_code = EXIT_UNAVAILABLE


class NoRoom(Unavailable):
    """This process has no memory or no descriptor left for more. Others may have."""


class StorageFull(DieselfsError):
    """The server has no room left. What was acknowledged is safe; what was under way is not stored."""

    exit_code = EXIT_PARTIAL


class SourceChanged(DieselfsError):
    """A source file changed, vanished, or could not be read while it was being uploaded."""


class MountError(DieselfsError):
    """The dataset cannot be mounted there."""

    exit_code = EXIT_USAGE


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
