"""Runs an unchanged Python program and makes its N-th system call fail, or kills it there.

Needs strace. The program is a module of the tests, run with `python -m`.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 60.0

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")

KILL = "signal=SIGKILL"
KILLED = -9


def run_with_fault(
    module: str,
    arguments: Sequence[str],
    calls: str,
    fault: str,
    when: int,
    expected_codes: Sequence[int] = (0,),
) -> subprocess.CompletedProcess[str]:
    """Run `module` with `fault` (`signal=SIGKILL`, `error=EIO`) at the `when`-th call of `calls`.

    `calls` is a regular expression for the names of one system call; the faulty call itself is not made. Asserts
    that the exit code is an expected one; -9 is that of a killed program.
    """
    options = [
        "-o",
        os.devnull,
        "-e",
        f"trace=/^({calls})$",
        "-e",
        f"inject=/^({calls})$:{fault}:when={when}",
    ]
    done = _run(options, module, arguments)
    assert done.returncode in expected_codes, f"exit code {done.returncode}: {done.stderr}"
    return done


def count_calls(module: str, arguments: Sequence[str], calls: str, log: Path) -> int:
    """Run `module` and count the system calls that it makes out of `calls`. `log` is a file to write."""
    done = _run(["-o", str(log), "-e", f"trace=/^({calls})$", "-e", "signal=none"], module, arguments)
    assert done.returncode == 0, done.stderr
    return sum("(" in line for line in log.read_text().splitlines())


def _run(options: Sequence[str], module: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    paths = [str(REPOSITORY), str(REPOSITORY / "server")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["strace", "-f", "-qq", *options, sys.executable, "-m", module, *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
