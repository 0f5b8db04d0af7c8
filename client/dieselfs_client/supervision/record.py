"""What a supervisor says about itself: who serves its mount, and how often that changed. This module reads `/proc`.

It stands in a memory file of the supervisor, so that nothing is left behind when it dies; only processes of the same
user, and root, can look at it. The supervisor itself imports this module, so it imports next to nothing.
"""

import contextlib
import json
import os
from typing import NamedTuple

STATUS_NAME = "dieselfs-mount"
STATUS_BYTES_MAX = 64 << 10
_READS_MAX = 3
"""Whoever reads while it is written may see half of it."""


class Supervision(NamedTuple):
    """The state of one supervisor.

    - `mountpoint`: resolved; `device`: `major:minor` of the mount, empty until it is there
    - `supervisor`, `daemon`: process IDs; 0 for no daemon at the moment
    - `is_served`: the daemon has answered what was waiting for it
    - `restarts`: daemons started because one died; `upgrades`: because that was asked for
    - `refusals`: upgrades that failed, after which the old daemon went on
    - `trouble`: the last thing that went wrong, empty if nothing did
    - `resends`: the kernel can send requests again, so that a dead daemon costs no reader anything
    """

    mountpoint: str
    device: str = ""
    supervisor: int = 0
    daemon: int = 0
    is_served: bool = False
    restarts: int = 0
    upgrades: int = 0
    refusals: int = 0
    trouble: str = ""
    resends: bool = False


class StatusFile:
    """Where a supervisor writes its state."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create(STATUS_NAME)
        self._written = b""
        self._length_bytes = 0

    def write(self, supervision: Supervision) -> None:
        content = json.dumps(supervision._asdict()).encode()
        if content != self._written:
            os.pwrite(self._descriptor, content.ljust(self._length_bytes), 0)  # blanks cover what was longer
            self._written, self._length_bytes = content, max(len(content), self._length_bytes)

    def close(self) -> None:
        os.close(self._descriptor)


def name_process(name: str) -> None:
    """What `ps -o comm` and `top` show of this process; up to 15 characters."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


def supervisions() -> list[Supervision]:
    """All supervisors that this user may look at, in the mount namespace of this process."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        supervision = _read(f"/proc/{process}")
        if supervision is not None and supervision.supervisor == int(process):
            found.append(supervision)
    return found


def supervision_of(mountpoint: str) -> Supervision | None:
    """The supervisor of the mount on this (resolved) path, if it lives and this user may look at it."""
    return next((one for one in supervisions() if one.mountpoint == mountpoint), None)


def _read(process: str) -> Supervision | None:
    try:
        if os.readlink(f"{process}/ns/mnt") != os.readlink("/proc/self/ns/mnt"):
            return None
        for number in os.listdir(f"{process}/fd"):
            if os.readlink(f"{process}/fd/{number}") == f"/memfd:{STATUS_NAME} (deleted)":
                return _read_whole(f"{process}/fd/{number}")
    except OSError:  # the process is gone, or not ours to look at
        pass
    return None


def _read_whole(path: str) -> Supervision | None:
    for _ in range(_READS_MAX):
        with open(path, "rb") as file:
            supervision = parse_status(file.read(STATUS_BYTES_MAX))
        if supervision is not None:
            return supervision
    return None


def parse_status(content: bytes) -> Supervision | None:
    """What `StatusFile` wrote; None for anything else, whoever wrote it."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        return None
    kinds = Supervision.__annotations__
    if not isinstance(fields, dict) or fields.keys() != kinds.keys():
        return None
    if any(type(fields[name]) is not kind for name, kind in kinds.items()):
        return None
    return Supervision(**fields)
