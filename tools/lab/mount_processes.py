"""The processes of a mount, and a storm of kills. This module reads `/proc`, and kills."""

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

from dieselfs.process.launch import wait_for_end
from dieselfs_client.supervision.status import SupervisorStatus, supervision_of

KINDS = ("supervisor", "zygote", "standby", "daemon", "page helper")
DEATH_TIMEOUT_S = 10.0
_POLL_S = 0.005


def processes_of(mountpoint: Path) -> dict[str, list[int]]:
    """The living processes of a mount by their kind. Those that an adopted zygote forks are nobody's children."""
    found: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for process in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(OSError):  # it has just ended
            folder = Path(f"/proc/{process}")
            words = os.fsdecode((folder / "cmdline").read_bytes()).split("\0")
            if str(mountpoint) not in words:
                continue
            name = (folder / "comm").read_text().strip()
            if name == "dieselfs-zygote":
                name = "zygote" if os.getsid(process) == process else "standby"
            name = {"dieselfs-mount": "supervisor", "dieselfs-daemon": "daemon"}.get(name, name)
            if name not in found:  # it is starting
                continue
            found[name].append(process)
            if name == "daemon":
                children = (folder / f"task/{process}/children").read_text().split()
                found["page helper"] += [
                    int(child)
                    for child in children
                    if b"page_helper.py" in Path(f"/proc/{child}/cmdline").read_bytes()
                ]
    return found


def may_be_killed(kind: str, status: SupervisorStatus | None, daemons: list[int]) -> bool:
    """Whether the mount survives that: it ends when daemon or supervisor dies before it has replaced the other.

    `daemons`: those that live; the status may still name one that has just died.
    """
    if kind not in ("supervisor", "daemon"):
        return True
    return status is not None and status.is_served and status.daemon in daemons


def kill_any(mountpoint: Path, choice: random.Random, timeout_s: float) -> str | None:
    """Kill a process of the mount, as soon as it may be killed. Returns its kind; None if there is none at the moment,
    or if it may not be killed within `timeout_s`.
    """
    kind = choice.choice(KINDS)
    end_s = time.monotonic() + timeout_s
    while not may_be_killed(kind, supervision_of(str(mountpoint)), processes_of(mountpoint)["daemon"]):
        if time.monotonic() > end_s:
            return None
        time.sleep(_POLL_S)
    for process in processes_of(mountpoint)[kind]:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
            wait_for_end(process, DEATH_TIMEOUT_S)  # until then it would count as alive
            return kind
    return None
