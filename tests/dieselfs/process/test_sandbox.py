"""What a process can no longer do. Each test forks one."""

import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dieselfs.process import sandbox

NO_CALL = 1_000
"""The number of no system call: the kernel returns ENOSYS."""
NEEDS_LANDLOCK = pytest.mark.skipif(not sandbox.landlock_version(), reason="the kernel has no Landlock")


def outcome(give_up: Callable[[], object], tried: Callable[[], object]) -> str:
    """What comes of a call in a process that has given up something: its result, its error, or its signal."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        try:
            give_up()
            text = str(tried())
        except BaseException as error:
            text = type(error).__name__
        os.write(theirs, text.encode())
        os._exit(0)
    os.close(theirs)
    with open(ours, encoding="utf-8") as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return text if status == 0 else signal.Signals(-status).name


def test_resources_are_bounded(tmp_path: Path) -> None:
    def write() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        (tmp_path / "new").write_bytes(b"x")

    assert outcome(sandbox.limit_resources, write) == "OSError"
    assert outcome(sandbox.limit_resources, lambda: len(bytes(sandbox.DATA_BYTES_MAX))) == "MemoryError"
    assert outcome(sandbox.limit_resources, lambda: resource.getrlimit(resource.RLIMIT_CORE)) == "(0, 0)"
    opened = range(sandbox.DESCRIPTORS_MAX)
    assert outcome(sandbox.limit_resources, lambda: [os.dup(1) for _ in opened]) == "OSError"


def test_without_progress_it_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "PROCESSOR_S_MAX", 0)

    def work() -> None:
        while True:
            pass

    assert outcome(sandbox.limit_resources, work) == "SIGXCPU"


def test_a_kernel_without_landlock_leaves_files_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sandbox, "_CREATE_RULESET", NO_CALL)
    (tmp_path / "file").write_text("content")

    def give_up() -> None:
        sandbox.gain_no_privileges()
        assert not sandbox.restrict_files({"/usr"}, [])

    assert sandbox.landlock_version() == 0
    assert outcome(give_up, (tmp_path / "file").read_text) == "content"


def test_progress_raises_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_noted_s", time.monotonic())  # by a parent

    def work() -> int:
        before = resource.getrlimit(resource.RLIMIT_CPU)[0]
        while time.process_time() < 1.1:
            sandbox.note_progress()
        return resource.getrlimit(resource.RLIMIT_CPU)[0] - before

    assert outcome(sandbox.limit_resources, work) == "1"


@NEEDS_LANDLOCK
def test_other_files_cannot_be_opened(tmp_path: Path) -> None:
    inside, other, source = tmp_path / "inside", tmp_path / "other", tmp_path / "source"
    inside.mkdir()
    for file in (inside / "a", other, source):
        file.write_bytes(b"content")

    def give_up() -> None:
        opened = os.open(source, os.O_RDONLY)
        sandbox.gain_no_privileges()
        assert sandbox.restrict_files([str(inside), "/none"], [opened])

    assert outcome(give_up, (inside / "a").read_text) == "content"
    assert outcome(give_up, source.read_text) == "content"
    for tried in (
        other.read_text,
        lambda: os.listdir(tmp_path),
        lambda: source.write_bytes(b"x"),
        lambda: (inside / "new").touch(),
        lambda: os.unlink(inside / "a"),
        Path("/proc/self/environ").read_bytes,
    ):
        assert outcome(give_up, tried) == "PermissionError", tried
    if sandbox.landlock_version() >= 6:
        parent = os.getpid()
        assert outcome(give_up, lambda: os.kill(parent, 0)) == "PermissionError"


def test_no_sockets_and_no_programs() -> None:
    def give_up() -> None:
        sandbox.gain_no_privileges()
        sandbox.refuse_calls()

    for family in (socket.AF_INET, socket.AF_UNIX):
        assert outcome(give_up, partial(socket.socket, family)) == "PermissionError"
    assert outcome(give_up, lambda: subprocess.run(["/bin/true"], check=True)) == "PermissionError"
    assert outcome(give_up, lambda: os.execv("/bin/true", ["true"])) == "PermissionError"
    assert outcome(give_up, lambda: os.getpid() > 0) == "True"


def test_the_network_has_no_interface_that_works() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        assert outcome(sandbox.leave_network, lambda: socket.create_connection(address, 1)) == "OSError"
