"""Reports of a supervisor to the process that launched it, and to the log. This module opens the log file.

`dieselfs.process.launch.LaunchReport` does the first, but importing it would take 20 MB in the supervisor.
"""

import contextlib
import os
import time


class StartupReport:
    """`descriptor`: a pipe to the launcher, None in the foreground and after use; `log`: None for standard error."""

    def __init__(self, descriptor: int | None, log: str | None) -> None:
        self.descriptor = descriptor
        self._log = log
        self._is_ready = False

    def note(self, text: str) -> None:
        """Write a line to the log; if that fails, the line is lost."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {os.getpid()} WARNING {text}\n"
        with contextlib.suppress(OSError):
            if self._log is None:
                os.write(2, _encoded(line))
                return
            # Opened each time: daemons rotate the file.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
            with open(os.open(self._log, flags, 0o600), "wb") as file:
                file.write(_encoded(line))

    def ready(self) -> None:
        """Report that the mount can be used: to the launcher or to the service manager; only the first call does."""
        if self._is_ready:
            return
        self._is_ready = True
        if self.descriptor is not None:
            self._write("ready")
        elif "NOTIFY_SOCKET" in os.environ:  # else the import would cost each supervisor memory for nothing
            from dieselfs.process.service_manager import SERVICE_READY, notify

            notify(SERVICE_READY)

    def failed(self, kind: str, text: str) -> None:
        """Report why it cannot be mounted, or why it ended: the name of the error, and its message."""
        if self.descriptor is not None:
            self._write(f"{kind} {text}")
        elif self._log is not None:
            self.note(text)
        elif text:
            os.write(2, _encoded(f"dieselfs-mount: {text}\n"))

    def forget(self) -> None:
        """Close the pipe: the launcher no longer waits."""
        if self.descriptor is not None:
            os.close(self.descriptor)
        self.descriptor = None

    def _write(self, line: str) -> None:
        assert self.descriptor is not None
        with contextlib.suppress(BrokenPipeError):  # the launcher no longer waits
            os.write(self.descriptor, _encoded(line + "\n"))
        self.forget()


def _encoded(line: str) -> bytes:
    return line.encode("utf-8", "surrogateescape")
