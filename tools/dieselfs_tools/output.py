"""What dlcmd prints: lines for people, or with --json one object a line. This module writes to stdout and stderr."""

import base64
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from dieselfs.names import printable
from dieselfs_tools.units import format_size

FAILURES_SHOWN_MAX = 20
"""On stderr; with --json all that are known are printed."""


def name_fields(path: bytes, name: str = "path") -> dict[str, object]:
    """A path for JSON: as text, and where that is not all of it (the bytes are not UTF-8), its bytes in base64."""
    fields: dict[str, object] = {name: path.decode("utf-8", "backslashreplace")}
    try:
        path.decode("utf-8")
    except UnicodeDecodeError:
        fields[f"{name}_bytes"] = base64.b64encode(path).decode("ascii")
    return fields


def write_bytes(content: bytes) -> None:
    """Write to stdout as it is, all of it: with PYTHONUNBUFFERED, its own `write` may leave off in the middle."""
    sys.stdout.flush()
    left = memoryview(content)
    while left:
        left = left[sys.stdout.buffer.write(left) :]
    sys.stdout.buffer.flush()


@dataclass
class Output:
    """How a command speaks. With `is_json` stdout carries objects only: records, and as the last one the summary.

    `is_exact`: sizes in bytes. `is_stdout_taken`: stdout carries the content of files, so people read stderr.
    """

    is_json: bool = False
    is_quiet: bool = False
    is_exact: bool = False
    is_stdout_taken: bool = False

    def size(self, size_bytes: int) -> str:
        return str(size_bytes) if self.is_exact else format_size(size_bytes)

    def record(self, kind: str, text: str, fields: Mapping[str, object]) -> None:
        """One result, in whichever form is asked for."""
        if self.is_json:
            self._print_json({"type": kind, **fields})
        else:
            self._print(text)

    def detail(self, kind: str, text: str, fields: Mapping[str, object]) -> None:
        """One result among many, which -q leaves out."""
        if not self.is_quiet:
            self.record(kind, text, fields)

    def note(self, text: str) -> None:
        """What -q leaves out, and JSON too."""
        if not self.is_json and not self.is_quiet:
            self._print(text)

    def aside(self, text: str) -> None:
        """What goes on just now, on stderr; -q leaves it out, and JSON too."""
        if not self.is_json and not self.is_quiet:
            print(text, file=sys.stderr, flush=True)

    def summary(self, text: str, fields: Mapping[str, object], exit_code: int = 0) -> int:
        """The last line; an empty `text` is not printed. Returns `exit_code`, which is what a command returns."""
        if self.is_json:
            self._print_json({"type": "summary", "exit_code": exit_code, **fields})
        elif text:
            self._print(text)
        return exit_code

    def failure(self, path: str, reason: str) -> None:
        """One thing that could not be done."""
        if self.is_json:
            self._print_json({"type": "failure", "path": path, "reason": reason})
        self.error(f"{path}: {reason}")

    def failures(self, failures: list[tuple[str, str]], total: int) -> None:
        """All that could not be done, where there may be more than anybody wants to read."""
        if self.is_json:
            for path, reason in failures:
                self._print_json({"type": "failure", "path": path, "reason": reason})
        for path, reason in failures[:FAILURES_SHOWN_MAX]:
            self.error(f"{path}: {reason}")
        if total > FAILURES_SHOWN_MAX:
            self.error(f"... and {total - FAILURES_SHOWN_MAX} more like these")

    def error(self, text: str) -> None:
        """Always on stderr, always one line."""
        line = printable(" ".join(text.splitlines()).encode("utf-8", "surrogateescape"))
        print(f"dlcmd: {line}", file=sys.stderr, flush=True)

    def _print(self, text: str) -> None:
        print(text, file=sys.stderr if self.is_stdout_taken else sys.stdout)

    def _print_json(self, fields: Mapping[str, object]) -> None:
        print(json.dumps(fields, ensure_ascii=False), file=sys.stdout)
