"""Supervised mounts under readers who check every byte: their processes, and code that is run in them."""

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dieselfs.process.launch import wait_for_end
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.supervision.status import SupervisorStatus, supervision_of
from tests.support import verifying_reader
from tests.support.warm import prepared

READERS = 2


@dataclass
class Readers:
    stop: Path
    processes: list[subprocess.Popen[str]]
    results: list[dict[str, Any]] = field(default_factory=list)

    def finish(self) -> None:
        """Let them end, and see that nothing failed that they read."""
        self.stop.touch()
        self.results = [json.loads(process.communicate(timeout=60)[0]) for process in self.processes]
        assert [result["failures"] for result in self.results] == [[]] * len(self.processes)
        assert all(result["reads"] for result in self.results)


@contextmanager
def readers(mountpoint: Path, folder: Path) -> Iterator[Readers]:
    """All of them are reading."""
    stop = folder / "stop"
    processes = [
        subprocess.Popen(
            [sys.executable, verifying_reader.__file__, str(mountpoint), str(stop), str(seed)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(READERS)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == verifying_reader.BEGUN + "\n"
        yield Readers(stop, processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def state(mountpoint: Path) -> SupervisorStatus:
    found = supervision_of(str(mountpoint))
    assert found is not None, "the supervisor is gone"
    return found


def wait_for(
    mountpoint: Path, condition: Callable[[SupervisorStatus], bool], timeout_s: float = 60
) -> SupervisorStatus:
    """Wait until there is a supervisor whose status is as the condition says."""
    deadline_s = time.monotonic() + timeout_s
    while (now := supervision_of(str(mountpoint))) is None or not condition(now):
        assert time.monotonic() < deadline_s, now
        time.sleep(0.01)
    return now


def is_dead(mountpoint: Path, timeout_s: float = 60) -> bool:
    """Whether reads fail with ENOTCONN; waits until the connection has ended."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        try:
            os.statvfs(mountpoint)
        except OSError as error:
            if error.errno == errno.ENOTCONN:
                return True
        time.sleep(0.01)
    return False


def supervisor_and_zygote_run(
    monkeypatch: pytest.MonkeyPatch, in_supervisor: str = "", in_zygote: str = ""
) -> None:
    """Have Python run these before they begin; daemons are forks of the zygote."""
    command = control.supervisor_command  # the one place where the command lines are put together

    def changed(*arguments: str) -> list[str]:
        parts = command(*arguments)  # type: ignore[arg-type]  # they are handed through
        for module, code in (
            ("dieselfs_client.supervision.supervisor", in_supervisor),
            ("dieselfs_client.zygote", in_zygote),
        ):
            place = parts.index(module)
            parts[place - 1 : place + 1] = ["-c", prepared(code, module)]
        return parts

    monkeypatch.setattr(control, "supervisor_command", changed)


def wait_until_ended(process: int, timeout_s: float = 60) -> None:
    assert wait_for_end(process, timeout_s), "it did not end"


def zygote_of(now: SupervisorStatus) -> int:
    """The one that has a session of its own; what it forks is in that session, and a child of the supervisor, too."""
    return next((child for child in children_of(now) if os.getsid(child) == child), 0)


def children_of(now: SupervisorStatus) -> list[int]:
    return [*map(int, Path(f"/proc/{now.supervisor}/task/{now.supervisor}/children").read_text().split())]


def log_of(options: MountOptions) -> str:
    assert options.log_file is not None
    return Path(options.log_file).read_text()
