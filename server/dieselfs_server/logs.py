"""The logs of a server. The log has one event a line, as text or JSON. The audit log has who did what, from where.

This module writes files. Values from clients are written as JSON strings, so they cannot forge a line.
"""

import fcntl
import json
import logging
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import count
from logging.handlers import RotatingFileHandler
from pathlib import Path
from threading import Lock

from dieselfs.limits import MIB
from dieselfs.process.state_dirs import is_at
from dieselfs.telemetry.budget import EventBudget

TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)

AUDIT_FILE_BYTES_MAX = 16 * MIB
"""At this size the audit log is renamed to `audit.log.1`, and begins again."""
AUDIT_FILES_MAX = 8
"""Older audit logs that are kept."""

_VALUE_CHARACTERS_MAX = 300
"""Of a text of a client in the audit log."""

_FIELDS = "fields"
_TEXT_FORMAT = "%(asctime)s %(levelname)s %(message)s"

Value = str | int | float | None

_log = logging.getLogger(__name__)


def configure(log_format: str) -> None:
    """Log to stderr in one of FORMATS."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == JSON else TextFormatter(_TEXT_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for noisy in ("asyncio", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.INFO)
    logging.getLogger("botocore").setLevel(logging.WARNING)  # it tells where it found credentials


def set_level(level: str) -> None:
    """Log what is at least of this level, one of `LOG_LEVELS`."""
    logging.getLogger().setLevel(level.upper())


def event(log: logging.Logger, level: int, message: str, **fields: Value) -> None:
    """Log an event with fields. `message` is a constant text."""
    if log.isEnabledFor(level):
        log.log(level, "%s", message, extra={_FIELDS: fields})


class TextFormatter(logging.Formatter):
    """The message, and the fields as `name=value`; a traceback follows on the same line, escaped."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {**getattr(record, _FIELDS, {})}
        shown = "".join(f" {name}={_shown(value)}" for name, value in fields.items())
        first, *rest = super().format(record).split("\n")
        return "\n".join([first + shown, *rest])


class JsonFormatter(logging.Formatter):
    """One JSON object: `time` (seconds since 1970), `level`, `logger`, `message`, the fields, and `traceback`."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def _shown(value: Value) -> str:
    if isinstance(value, str) and not (
        value and value.isascii() and value.isprintable() and " " not in value
    ):
        return json.dumps(value)
    return str(value)


class _PrivateFile(RotatingFileHandler):
    """Creates its files with mode 0600. Several processes may write one file: they lock its folder for each record, and
    find the file that another has begun.
    """

    has_failed = False

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(
            self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        return open(descriptor, "a", encoding="utf-8")

    def emit(self, record: logging.LogRecord) -> None:
        path = Path(self.baseFilename)
        try:
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            self.handleError(record)
            return
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            if self.stream and not is_at(path, self.stream.fileno()):
                self.stream.close()
                self.stream = self._open()
            super().emit(record)
        except OSError:
            self.handleError(record)
        finally:
            os.close(folder)

    def handleError(self, record: logging.LogRecord) -> None:
        """Say it once: the server continues to serve."""
        if not self.has_failed:
            self.has_failed = True
            _log.error("the audit log %s cannot be written: %s", self.baseFilename, sys.exc_info()[1])


class AuditLog:
    """Logins, refusals, and changes of users, rights, datasets and tags: one JSON object a line. Thread-safe.

    The file survives restarts, and is rotated. What was done is always written; of logins and refusals, which anybody
    can cause, as many as `EventBudget` allows, and then their number. Raises OSError if the file cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        bytes_max: int = AUDIT_FILE_BYTES_MAX,
        files_max: int = AUDIT_FILES_MAX,
        clock: Callable[[], float] = time.monotonic,
        send: Callable[[Mapping[str, Value]], object] = lambda _: None,
        share: int = 1,
    ) -> None:
        """`send` gets a copy of each entry; it must not wait. `share`: processes that write the file."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = _PrivateFile(path, maxBytes=bytes_max, backupCount=files_max)
        self._clock = clock
        self._send = send
        self._lock = Lock()  # guards the budget
        self._budget = EventBudget(share)

    def write(self, what: str, user: str, address: str, has_changed: bool = False, **fields: Value) -> None:
        """`has_changed`: the user has changed something, so the entry is always written."""
        with self._lock:
            omitted = self._budget.begin(self._clock())
            is_written = has_changed or self._budget.take(what, user, address)
        if omitted:
            self._write("omitted", "", "", omitted)
        if is_written:
            self._write(what, user, address, fields)

    def _write(self, what: str, user: str, address: str, fields: Mapping[str, Value]) -> None:
        shown = {
            name: value[:_VALUE_CHARACTERS_MAX] if isinstance(value, str) else value
            for name, value in fields.items()
        }
        entry: dict[str, Value] = {
            "time": round(time.time(), 6),
            "event": what,
            "user": user,
            "address": address,
            **shown,
        }
        self._file.handle(
            logging.LogRecord("audit", logging.INFO, "", 0, "%s", (json.dumps(entry),), exc_info=None)
        )
        self._send(entry)

    def close(self) -> None:
        if omitted := self._budget.begin(math.inf):
            self._write("omitted", "", "", omitted)
        with suppress(OSError):  # of a disk without room, which `handleError` has said
            self._file.close()


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
