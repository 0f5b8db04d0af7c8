"""The log file of a daemon. This module opens files, and replaces standard error."""

import logging
import os
from logging.handlers import RotatingFileHandler
from pathlib import Path

from dieselfs.errors import DieselfsError, MountError
from dieselfs.limits import MIB
from dieselfs.process.state_dirs import open_private

LOG_BYTES_MAX = 16 * MIB
"""Size of the log file at which it is rotated; one old file is kept."""

_log = logging.getLogger(__name__)


def is_log(path: Path) -> bool:
    """Whether standard error is this file, as `open_log` has left it: no other process has rotated the file since."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(2))
    except OSError:
        return False


def open_log(path: Path) -> None:
    """Send the log and standard error to a file that only this user can read. Raises MountError."""
    try:
        descriptor = open_private(path)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        handler = RotatingFileHandler(path, maxBytes=LOG_BYTES_MAX, backupCount=1, errors="backslashreplace")
    except OSError as error:
        raise MountError(f"log file {path}: {error.strerror}") from None
    logging.basicConfig(
        level=logging.INFO,
        handlers=[handler],
        format="%(asctime)s %(process)d %(levelname)s %(message)s",
        force=True,
    )


def failure(error: DieselfsError, log_file: Path | None) -> str:
    """Log it; returns the argument of `failed`."""
    if log_file is not None:
        _log.error("%s", error)
    return f"{error.exit_code} {type(error).__name__} {' '.join(str(error).splitlines())}"
