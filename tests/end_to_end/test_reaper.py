"""A run of the tests that is killed leaves no process, and no mount."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import reaper

END_S = 60.0
RUN = """
import subprocess, sys
from pathlib import Path
from tests.support import reaper, warm
from tests.support.dlcmd import Dlcmd
warm.use()
folder = Path(sys.argv[1])
watching = reaper.start(folder)
detached = subprocess.Popen(["sleep", "1000"], start_new_session=True, stdout=subprocess.DEVNULL)
(folder / "f").write_text("content")
(folder / "mount").mkdir()
dlcmd = Dlcmd(folder / "home", folder)
dlcmd("put", "f", "dl://d/")
dlcmd("mount", "d", folder / "mount")
print(watching, detached.pid, (folder / "mount/f").read_text(), flush=True)
sys.stdin.read()
"""


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_is_killed_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, tmp_path],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert run.stdin is not None and run.stdout is not None
    with run.stdin, run.stdout:
        watching, detached, content = run.stdout.readline().split()
        assert content == b"content"
        ended = select.poll()
        ended.register(os.pidfd_open(int(watching)), select.POLLIN)
        mine = Path(f"/proc/{int(detached)}/environ").read_bytes().split(b"\0")
        name = next(each for each in mine if each.startswith(reaper.MARK.encode())).decode().split("=")[1]
        assert len(list(reaper.marked(name))) > 3  # the server, and those of the mount
        run.send_signal(number)
        run.wait()
    assert ended.poll(END_S * 1000)
    assert list(reaper.marked(name)) == []
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
