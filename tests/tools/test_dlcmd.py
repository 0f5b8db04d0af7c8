"""How dlcmd starts and how signals end it, as a program of its own."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.errors import EXIT_INTERRUPTED, EXIT_UNAVAILABLE
from tests.support.dlcmd import Dlcmd
from tests.support.server import RunningServer

HEAVY = {"numpy", "trio", "thriftpy2", "dieselfs.dataset", "dieselfs_client.daemon.mount_daemon"}
"""Modules that take most of the time of a start."""

_LOADED = "import atexit, sys; atexit.register(lambda: print('LOADED', *sys.modules, file=sys.stderr))"


def loaded(dlcmd: Dlcmd, *arguments: str) -> set[str]:
    """The heavy modules that one command imports."""
    ran = dlcmd.changed(_LOADED, *arguments)
    assert ran.returncode == 0, ran
    return HEAVY & set(ran.stderr.rpartition("LOADED")[2].split())


@pytest.mark.parametrize(
    "arguments", [("--version",), ("--help",), ("help", "ls"), ("completion", "bash")], ids=" ".join
)
def test_what_needs_no_server_imports_nothing_heavy(dlcmd: Dlcmd, arguments: tuple[str, ...]) -> None:
    assert loaded(dlcmd, *arguments) == set()


def test_ls_imports_the_protocol_and_nothing_else(dlcmd: Dlcmd, server: RunningServer) -> None:
    (dlcmd.folder / "f").touch()
    dlcmd("--server", server.unix, "put", "f", "dl://listed-lightly/")
    assert loaded(dlcmd, "--server", server.unix, "ls") == {"thriftpy2"}
    assert loaded(dlcmd, "--server", server.unix, "ls", "-l", "dl://listed-lightly") == {"thriftpy2"}


@pytest.mark.parametrize("module", ["click", "dieselfs.errors", "dieselfs_tools.commands.copy"])
def test_an_interruption_while_it_imports_is_one_line(dlcmd: Dlcmd, module: str) -> None:
    """The signal comes when the import of `module` begins."""
    code = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupting:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
"""
    ran = dlcmd.changed(code, "put", "--help")
    assert ran.returncode == EXIT_INTERRUPTED
    assert ran.stderr == "dlcmd: interrupted\n" or ran.stderr.startswith(
        "dlcmd: interrupted; the same command"
    )


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_ends_it_at_once(dlcmd: Dlcmd, signum: signal.Signals) -> None:
    code = f"""
import os, signal
signal.signal({signum:d}, signal.SIG_DFL)  # the tests may have been started with it ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
from dieselfs_tools.cli.session import Session
def close(self, error=None):
    os.kill(os.getpid(), {signum:d})
Session.close = close
from dieselfs_tools.cli import output
output.Output.summary = lambda *_: os.kill(os.getpid(), {signum:d})
"""
    ran = dlcmd.changed(code, "completion", "bash")
    assert ran.returncode == 128 + signum
    assert ran.stderr == "dlcmd: interrupted\n"


def test_a_program_in_the_background_of_a_shell_ignores_ctrl_c(dlcmd: Dlcmd, tmp_path: Path) -> None:
    code = "import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nimport atexit; " + (
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))"
    )
    assert dlcmd.changed(code, "--version").returncode == 0


def test_the_module_runs_as_the_command_does() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "dieselfs_tools.dlcmd", "--version"],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.startswith("dlcmd ")


@pytest.mark.parametrize("limit", [8, 11])
@pytest.mark.parametrize("arguments", [("cat", "dl://d/f"), ("put", "f", "dl://d/")], ids=" ".join)
def test_too_few_open_files_end_a_command_with_one_line(
    dlcmd: Dlcmd, tmp_path: Path, limit: int, arguments: tuple[str, ...]
) -> None:
    """Also the embedded server, which it starts, has this limit."""
    (dlcmd.folder / "f").write_bytes(b"x")
    alone = replace(dlcmd, home=tmp_path / "home")
    ran = alone.changed(
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit},) * 2)", *arguments
    )
    assert ran.returncode == EXIT_UNAVAILABLE, ran
    assert ran.stderr.startswith("dlcmd: ") and ran.stderr.count("\n") == 1
    assert "Too many open files" in ran.stderr and "ulimit -n" in ran.stderr
