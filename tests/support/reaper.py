"""Ends what a run of the tests has started, however the run ends: also by SIGTERM, SIGKILL or an interrupt.

A process of its own waits for the end of the run. Then it kills every process that has MARK with the value of the run
in its environment, and removes the mounts below the run's folder. Forks of the warm process have it too.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MARK = "RUN_OF_TESTS"
GRACE_S = 2.0
"""For processes that end by themselves when the run has ended."""
END_TIMEOUT_S = 20.0
_POLL_S = 0.02


def start(folder: Path) -> int:
    """Watch this process, whose mounts are below `folder`. Processes that it starts from now on are marked.
    Returns the process that watches.
    """
    os.environ.pop(MARK, None)
    code = "from tests.support import reaper; reaper.main()"
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
    ready, report = os.pipe()
    run = f"{os.getpid()}-{time.monotonic_ns()}"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(os.getpid()), run, str(folder), str(report)],
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.DEVNULL,
        pass_fds=(report,),
        start_new_session=True,  # an interrupt of the terminal is for the tests
    )
    process.returncode = 0  # nobody waits for it: it ends after this process
    os.close(report)
    os.environ[MARK] = run
    with open(ready, "rb") as answer:
        answer.read(1)
    return process.pid


def main() -> None:
    """The process that waits."""
    process, run, folder, report = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    poll = select.poll()
    try:
        poll.register(os.pidfd_open(process), select.POLLIN)
    finally:
        os.write(report, b"x")
        os.close(report)
    while not poll.poll():
        pass
    end(run, folder)


def end(run: str, folder: Path) -> None:
    """Kill what is left of an ended run, and remove its mounts and networks."""
    from dieselfs_client.mount.points.mount_table import dieselfs_mounts
    from lab.network import clear, sweep

    began_s = time.monotonic()
    while (left := list(marked(run))) and time.monotonic() - began_s < END_TIMEOUT_S:
        if time.monotonic() - began_s > GRACE_S:
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        time.sleep(_POLL_S)
    for record in dieselfs_mounts():
        if Path(record.mountpoint).is_relative_to(folder):
            clear(Path(record.mountpoint))
    if os.geteuid() == 0:
        sweep()


def marked(run: str) -> Iterator[int]:
    """The processes of a run."""
    wanted = f"{MARK}={run}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):  # it has ended, or is another user's
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)
