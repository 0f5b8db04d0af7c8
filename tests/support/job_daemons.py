"""Finds and ends the daemons of jobs that programs have started; no other process ends them."""

import os
import signal
import time
from pathlib import Path

from dieselfs.cluster.node_lock import NodeLock

PATIENCE_S = 60.0


def job_daemons(runtime: Path) -> dict[str, int]:
    """The process of each daemon without a mount that takes part in a job, by the name of its lock.

    `runtime`: the XDG_RUNTIME_DIR of the daemons.
    """
    daemons = {}
    for path in (runtime / "dieselfs").glob("*.job"):
        lock = NodeLock(path)
        process = lock.cache_process()
        lock.close()
        if process is not None:
            daemons[path.name] = process
    return daemons


def end_job_daemons(runtime: Path) -> None:
    """End the daemons, and wait for their end."""
    for process in job_daemons(runtime).values():
        os.kill(process, signal.SIGTERM)
    end_s = time.monotonic() + PATIENCE_S
    while job_daemons(runtime):
        assert time.monotonic() < end_s
        time.sleep(0.02)
