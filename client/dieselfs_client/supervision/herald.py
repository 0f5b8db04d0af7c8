"""What a supervisor has to tell: whoever waits for the mount, and the log. This module opens the log file."""

import contextlib
import os
import time
from collections.abc import Iterator


class Herald:
    """`report` is a pipe to whoever mounts, None in the foreground; `log` is None for standard error."""

    def __init__(self, report: int | None, log: str | None) -> None:
        self._report = report
        self._log = log

    def note(self, text: str) -> None:
        """Write a line into the log; if that cannot be, the mount goes on without."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {os.getpid()} WARNING {text}\n"
        with contextlib.suppress(OSError), self._opened_log() as descriptor:
            os.write(descriptor, _encoded(line))

    @contextlib.contextmanager
    def _opened_log(self) -> Iterator[int]:
        """Opened each time: daemons put one that is full aside."""
        if self._log is None:
            yield 2
            return
        descriptor = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def tell_readiness(self) -> None:
        """The mount can be used. Said once, however often it becomes true."""
        if self._report is not None:
            with contextlib.suppress(OSError), self._opened_log() as descriptor:
                os.dup2(descriptor, 2)  # and let go of the terminal, or the pipe, of whoever mounts
            self._write_report("ready")

    def tell_failure(self, kind: str, text: str) -> None:
        """It could not be mounted, or came to an end that nobody wanted: the name of the error, and its message."""
        if self._report is not None:
            self._write_report(f"{kind} {text}")
        elif self._log is not None:
            self.note(text)
        elif text:
            os.write(2, _encoded(f"dieselfs-mount: {text}\n"))

    def _write_report(self, line: str) -> None:
        assert self._report is not None
        with contextlib.suppress(BrokenPipeError):  # nobody waits any more
            os.write(self._report, _encoded(line + "\n"))
        os.close(self._report)
        self._report = None


def _encoded(line: str) -> bytes:
    return line.encode("utf-8", "surrogateescape")
