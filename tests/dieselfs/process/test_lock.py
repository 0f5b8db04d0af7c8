"""One process at a time, however the one before it ended."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dieselfs.process.launch import module_environment
from dieselfs.process.state_dirs import is_at, locked

HOLDER = """
import sys
from pathlib import Path
from dieselfs.process.state_dirs import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_that_is_held_is_refused_after_the_timeout(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path) as descriptor:
        assert is_at(path, descriptor)
        with pytest.raises(BlockingIOError), locked(path):
            pass
        began_s = time.monotonic()
        with pytest.raises(BlockingIOError, match="lock"), locked(path, 0.1):
            pass
        assert time.monotonic() - began_s >= 0.1
    with locked(path):
        pass
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_waiting_process_gets_it_when_the_holder_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=module_environment()
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError), locked(path):
            pass
        holder.kill()
        with locked(path, 60.0):
            pass


def test_a_file_that_the_holder_removed_is_not_taken_for_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"

    def hold(_: int) -> bool:
        with locked(path, 60.0) as descriptor:
            is_ours = is_at(path, descriptor)
            path.unlink()
            return is_ours

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(hold, range(100)))
    assert not path.exists()


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), locked(tmp_path / "none" / "lock", 60.0):
        pass
