"""`dlcmd` as users run it: in its own process, with an embedded home or with a server."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from dieselfs_tools.cli.command_line import VERBS
from dieselfs_tools.dlcmd import main
from tests.support.forks import forks
from tests.support.json_lines import schema
from tests.support.warm import WarmPopen

TIMEOUT_S = 120.0

COMMAND = (sys.executable, "-m", "dieselfs_tools.dlcmd")

_FORKS = threading.Lock()
"""Held while processes start and end: two threads that take the exit code of one process get 255."""

CALLER = -1
"""The process that calls the function: the command, or a worker of it."""

_STRUCK = """
import itertools, os, pkgutil, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # background processes of a shell ignore it
owner, _, name = "{function}".rpartition(".")
owner, calls = pkgutil.resolve_name(owner), itertools.count(1)
process = {process} or os.getpid()
original = getattr(owner, name)
token, given = os.pipe()
os.write(given, b"x")
os.set_blocking(token, False)
def is_first():  # of all processes: each counts its own calls, and a second signal ends a command at once
    try:
        return bool(os.read(token, 1))
    except BlockingIOError:
        return False
def call(*arguments, **more):
    result = original(*arguments, **more)
    if next(calls) == {times} and is_first():
        os.kill(os.getpid() if process == {CALLER} else process, {signum:d})
    return result
setattr(owner, name, call)
"""


@cache
def _validator(verb: str) -> Draft202012Validator:
    return Draft202012Validator({**schema(), "$ref": f"#/$defs/{verb}"})


def check_json_line(verb: str, line: dict[str, Any]) -> None:
    """Raises AssertionError unless the line of `--json` is as docs/reference/json.md says."""
    faults = [error.message for error in _validator(verb).iter_errors(line)]
    assert not faults, f"{verb}: {line} is not in tests.support.json_lines: {faults}"


def _verb(words: Sequence[str]) -> str:
    return next((word for word in words if word in VERBS), "")


@dataclass(frozen=True)
class Ran:
    """The result of a command."""

    exit_code: int | None
    stdout: bytes
    stderr: str
    verb: str = ""

    @property
    def text(self) -> str:
        return self.stdout.decode("utf-8")

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The objects that `--json` printed, without the summary."""
        return self._all_objects()[:-1]

    @property
    def summary(self) -> dict[str, Any]:
        return self._all_objects()[-1]

    def _all_objects(self) -> list[dict[str, Any]]:
        objects = [json.loads(line) for line in self.stdout.split(b"\n")[:-1]]
        assert [one["type"] == "summary" for one in objects] == [False] * (len(objects) - 1) + [True]
        assert objects[-1]["exit_code"] == self.exit_code
        for one in objects:  # each test of a verb tests its documented schema too
            check_json_line(self.verb, one)
        return objects


@dataclass(frozen=True)
class Dlcmd:
    """Runs commands in `folder`, with a separate configuration. `home` is the DIESELFS_HOME."""

    home: Path
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        pinned = {
            name: value for name, value in os.environ.items() if not name.startswith(("DIESELFS_", "XDG_"))
        }
        return {
            **pinned,
            "HOME": str(self.folder),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "DIESELFS_HOME": str(self.home),
            **self.variables,
        }

    def __call__(self, *arguments: str | bytes | Path, exit_code: int = 0, stdin: bytes = b"") -> Ran:
        """Run one command and require `exit_code`; an error must be printed in clear lines."""
        ran = self.forked([os.fsdecode(argument) for argument in arguments], stdin)
        assert ran.exit_code == exit_code, f"{arguments}: {ran}"
        assert "Traceback" not in ran.stderr
        if exit_code:
            assert ran.stderr.startswith("dlcmd: ")
        return ran

    def forked(self, words: Sequence[str], stdin: bytes = b"", code: str = "") -> Ran:
        """Run one command, in a process that has run `code` before."""
        with tempfile.TemporaryDirectory() as folder:
            streams = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
            streams[0].write_bytes(stdin)
            process = forks.Process(target=_run, args=(words, self.folder, self.environment(), streams, code))
            with _FORKS:
                process.start()
            wait([process.sentinel], TIMEOUT_S)
            with _FORKS:
                if process.exitcode is None:
                    process.kill()
                    process.join()
            ran = Ran(process.exitcode, streams[1].read_bytes(), streams[2].read_text("utf-8"), _verb(words))
            process.close()
        return ran

    def changed(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one command, in a Python that has run `code` before."""
        program = f"{code}\nimport sys\nsys.argv[0] = 'dlcmd'\nfrom dieselfs_tools.dlcmd import main\nmain()"
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def struck(
        self, signum: signal.Signals, process: int, function: str, times: int, *arguments: str
    ) -> subprocess.CompletedProcess[str]:
        """Run one command, and send a signal to a process (0: the command itself; or CALLER) when `function` (such as
        `module:Class.method`) has returned `times` times.
        """
        code = _STRUCK.format(CALLER=CALLER, signum=signum, process=process, function=function, times=times)
        ran = self.forked(arguments, code=code)
        assert ran.exit_code is not None
        return subprocess.CompletedProcess(arguments, ran.exit_code, ran.text, ran.stderr)

    def start(self, *arguments: str | bytes | Path, **options: Any) -> "subprocess.Popen[bytes]":
        """Start one command as an interactive shell does, for tests that disturb it."""
        options = {"cwd": self.folder, "env": self.environment(), "stdin": subprocess.DEVNULL, **options}
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what is ignored is inherited
        try:
            return WarmPopen([*COMMAND, *arguments], **options)
        finally:
            signal.signal(signal.SIGINT, before)


def _run(
    words: Sequence[str], folder: Path, environment: dict[str, str], streams: list[Path], code: str
) -> None:
    """Set up a command as the shell does, and run it."""
    flags = (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT)
    for number, (stream, access) in enumerate(zip(streams, flags, strict=True)):
        descriptor = os.open(stream, access)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = os.fdopen(0, closefd=False)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["dlcmd", *words]
    exec(code, {})
    main()


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll until the condition holds. Raises AssertionError after a timeout."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, "the condition does not become true"
        time.sleep(0.005)
