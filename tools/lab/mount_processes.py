"""The processes of a mount, and a storm of kills. This module reads `/proc`, and kills."""

import os
import random
import signal
from contextlib import suppress
from pathlib import Path

from dieselfs.process.launch import wait_for_end
from dieselfs_client.supervision.status import processes_serving

LASTING = ("supervisor", "keeper", "zygote", "standby", "daemon")
"""Processes of a mount that is read: it has a standby from the first read on, and a page helper from the first push."""
KINDS = (*LASTING, "page helper")
DEATH_TIMEOUT_S = 10.0
_NAMES = {"dieselfs-mount": "supervisor", "dieselfs-keeper": "keeper", "dieselfs-daemon": "daemon"}


def processes_of(mountpoint: Path) -> dict[str, list[int]]:
    """The living processes of a mount by their kind. Those that an adopted zygote forks are nobody's children."""
    found: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for process in processes_serving(str(mountpoint)):
        with suppress(OSError):  # it has just ended
            folder = Path(f"/proc/{process}")
            name = (folder / "comm").read_text().strip()
            if name == "dieselfs-zygote":
                name = "zygote" if os.getsid(process) == process else "standby"
            name = _NAMES.get(name, name)
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


def kill_all(mountpoint: Path) -> None:
    """Kill all processes of the mount, before one can replace the others."""
    while processes := processes_serving(str(mountpoint)):
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def kill_any(mountpoint: Path, choice: random.Random) -> str | None:
    """Kill a process of the mount, whatever state the others are in. Returns its kind; None if there is none of the
    chosen kind at the moment.
    """
    kind = choice.choice(KINDS)
    for process in processes_of(mountpoint)[kind]:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
            wait_for_end(process, DEATH_TIMEOUT_S)  # until then it would count as alive
            return kind
    return None
