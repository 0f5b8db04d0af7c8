"""The output of dlcmd: text, or with --json one object per line. This module writes to stdout and stderr, reads
answers, and replaces files.
"""

import base64
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import click

from dieselfs.errors import InvalidInput
from dieselfs.names import printable
from dieselfs.units import format_size

_encoded = json.JSONEncoder(ensure_ascii=False).encode
_Result = TypeVar("_Result")

RECORDS_TOGETHER = 1024
FAILURES_SHOWN_MAX = 20
"""On stderr; --json prints all that are known."""


def name_fields(path: bytes, name: str = "path") -> dict[str, object]:
    """A path for JSON: as text, and if it is not UTF-8, also its bytes in base64."""
    try:
        return {name: path.decode("utf-8")}
    except UnicodeDecodeError:
        text = path.decode("utf-8", "backslashreplace")
        return {name: text, f"{name}_bytes": base64.b64encode(path).decode("ascii")}


def write_bytes(content: bytes) -> None:
    """Write all bytes to stdout. With PYTHONUNBUFFERED, a single `write` may be partial."""
    sys.stdout.flush()
    left = memoryview(content)
    while left:
        left = left[sys.stdout.buffer.write(left) :]
    sys.stdout.buffer.flush()


def replace_file(path: Path, text: str) -> None:
    """Write a file that nobody reads half of. Raises InvalidInput if it cannot be written."""
    if not path.name:
        raise InvalidInput(f"{path} is a folder: name a file")
    aside = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        descriptor = os.open(
            aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666
        )
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        aside.replace(path)
    except OSError as error:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise InvalidInput(
            f"{path}: {error.strerror}; name a file in a folder that you may write to"
        ) from None


@dataclass
class Output:
    """The form of the output. With `is_json` stdout carries objects only: records, and last the summary.

    `is_exact`: sizes in bytes. `is_progress`: the progress is printed also where stderr is no terminal.
    `is_stdout_taken`: stdout carries the content of files, so text goes to stderr.
    """

    is_json: bool = False
    is_quiet: bool = False
    is_exact: bool = False
    is_stdout_taken: bool = False
    is_progress: bool = False

    def size(self, size_bytes: int) -> str:
        return str(size_bytes) if self.is_exact else format_size(size_bytes)

    def coloured(self, text: str, colour: str) -> str:
        """The text in a colour, where a terminal shows it; not with NO_COLOR."""
        is_shown = sys.stdout.isatty() and not self.is_json and not os.environ.get("NO_COLOR")
        return click.style(text, fg=colour) if is_shown else text

    def record(self, kind: str, text: str, fields: Mapping[str, object]) -> None:
        """One result, in the requested form."""
        if self.is_json:
            self._print_json({"type": kind, **fields})
        else:
            self._print(text)

    def records(
        self,
        kind: str,
        results: Iterable[_Result],
        text: Callable[[_Result], str],
        fields: Callable[[_Result], Mapping[str, object]],
    ) -> int:
        """Many results, in the requested form, RECORDS_TOGETHER in each write; returns their number."""
        number, left = 0, iter(results)
        while block := [*islice(left, RECORDS_TOGETHER)]:
            number += len(block)
            if self.is_json:
                self._print("\n".join([_encoded({"type": kind, **fields(result)}) for result in block]))
            else:
                self._print("\n".join(map(text, block)))
        return number

    def detail(self, kind: str, text: str, fields: Mapping[str, object]) -> None:
        """One result of many; -q omits it."""
        if not self.is_quiet:
            self.record(kind, text, fields)

    def heading(self, text: str) -> None:
        """The names of the columns that follow, for people: on a terminal only, never in a pipe, -q or --json."""
        if sys.stdout.isatty():
            self.note(click.style(text, bold=not os.environ.get("NO_COLOR")))

    def note(self, text: str) -> None:
        """A line that -q and --json omit."""
        if not self.is_json and not self.is_quiet:
            self._print(text)

    def aside(self, text: str) -> None:
        """A state, on stderr; -q and --json omit it."""
        if not self.is_json and not self.is_quiet:
            print(text, file=sys.stderr, flush=True)

    def summary(self, text: str, fields: Mapping[str, object], exit_code: int = 0) -> int:
        """The last line; -q and an empty `text` omit it. Returns `exit_code`."""
        if self.is_json:
            self._print_json({"type": "summary", "exit_code": exit_code, **fields})
        elif text and not self.is_quiet:
            self._print(text)
        return exit_code

    def failure(self, path: str, reason: str) -> None:
        """One failed item."""
        self.failures([(path, reason)], 1)

    def failures(self, failures: list[tuple[str, str]], total: int) -> None:
        """The failed items that are known, of `total`."""
        if self.is_json:
            for path, reason in failures:
                self._print_json({"type": "failure", "path": path, "reason": reason})
        for path, reason in failures[:FAILURES_SHOWN_MAX]:
            self.error(f"{path}: {reason}")
        if total > FAILURES_SHOWN_MAX:
            self.error(f"... and {total - FAILURES_SHOWN_MAX} more like these")

    def error(self, text: str) -> None:
        """One line on stderr."""
        line = printable(" ".join(text.splitlines()).encode("utf-8", "surrogateescape"))
        print(f"dlcmd: {line}", file=sys.stderr, flush=True)

    def _print(self, text: str) -> None:
        print(text, file=sys.stderr if self.is_stdout_taken else sys.stdout)

    def _print_json(self, fields: Mapping[str, object]) -> None:
        print(_encoded(fields), file=sys.stdout)


def confirm_name(name: str, warning: str) -> None:
    """Have the user type `name`. Raises InvalidInput if the input differs, or is no terminal."""
    if not sys.stdin.isatty():
        raise InvalidInput(f"{warning}: to do so without confirmation, add -y")
    question = f"{warning}, permanently. Type {name} to continue"
    if click.prompt(question, default="", show_default=False, err=True).strip() != name:
        raise InvalidInput(f"the name typed is not {name}; nothing was changed")
