"""The status of a supervisor: its daemon, and how often that was replaced. This module reads `/proc`.

The status is in a memory file of the supervisor, and of the daemon that may replace it, so nothing is left behind when
both die. Only processes of the same user, and root, can read it. The supervisor imports this module, so this module
imports little.
"""

import contextlib
import json
import os
from typing import NamedTuple

STATUS_NAME = "dieselfs-mount"
STATUS_BYTES_MAX = 64 << 10
_READS_MAX = 3
"""A reader may see half of a write, and reads again."""


class SupervisorStatus(NamedTuple):
    """The state of one supervisor.

    - `mountpoint`: resolved; `device`: `major:minor` of the mount, empty before it is mounted
    - `supervisor`, `daemon`: process IDs; 0 while there is no daemon
    - `is_served`: the daemon has answered the requests that waited for it
    - `restarts`: daemons started after one died; `upgrades`: on request
    - `refusals`: upgrades that failed, so that the old daemon continued
    - `trouble`: the last failure, empty if there was none
    - `view_reason`: why the mount has no better view, or empty
    - `resends`: the kernel can send requests again, so that readers do not notice the death of a daemon
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
    view_reason: str = ""
    resends: bool = False


class MemoryFile:
    """A file in memory (memfd) that is replaced as a whole. `descriptor`: one that exists; None makes a new one."""

    def __init__(self, name: str, descriptor: int | None = None) -> None:
        self.descriptor = os.memfd_create(name) if descriptor is None else descriptor
        self._written = b""

    def read(self, bytes_max: int | None = None) -> bytes:
        """The content, which may be half of one if its writer was killed."""
        size_bytes = os.fstat(self.descriptor).st_size
        return os.pread(self.descriptor, size_bytes if bytes_max is None else min(size_bytes, bytes_max), 0)

    def write(self, content: bytes) -> None:
        """Replace the content, unless it is the same. Blanks overwrite the rest of a longer predecessor."""
        if content != self._written:
            os.pwrite(self.descriptor, content.ljust(os.fstat(self.descriptor).st_size), 0)
            self._written = content


def name_process(name: str) -> None:
    """Set the name of this process in `ps -o comm` and `top`; up to 15 characters."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


def supervisions() -> list[SupervisorStatus]:
    """All supervisors of this user, in the mount namespace of this process. Those of others may claim anything, also
    to a caller who is root.
    """
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        supervision = _read(f"/proc/{process}")
        if supervision is not None and supervision.supervisor == int(process):
            found.append(supervision)
    return found


def supervision_of(mountpoint: str, device: str = "") -> SupervisorStatus | None:
    """The supervisor of the mount on this (resolved) path, if it lives and belongs to this user.

    There may be several, because an earlier mount lives on while another mount namespace has it: then that of `device`.
    """
    found = (one for one in supervisions() if one.mountpoint == mountpoint)
    return next((one for one in found if not device or one.device == device), None)


def processes_serving(mountpoint: str) -> list[int]:
    """The processes of the mount on this (resolved) path, in order. Each has the path in its command line."""
    found, wanted = [], os.fsencode(mountpoint)
    for process in filter(str.isdigit, os.listdir("/proc")):
        with (
            contextlib.suppress(OSError),
            open(f"/proc/{process}/cmdline", "rb") as file,
        ):  # it may have ended
            if wanted in file.read().split(b"\0"):
                found.append(int(process))
    return sorted(found)


def shares_mounts(process: str) -> bool:
    """Whether a process, as its folder in `/proc`, is in the mount namespace of this one. Raises OSError."""
    return os.readlink(f"{process}/ns/mnt") == os.readlink("/proc/self/ns/mnt")


def _read(process: str) -> SupervisorStatus | None:
    try:
        if os.stat(process).st_uid != os.geteuid():
            return None
        if not shares_mounts(process):
            return None
        place = _status_file(process)
        for _ in range(_READS_MAX if place else 0):
            with open(place, "rb") as file:
                supervision = parse_status(file.read(STATUS_BYTES_MAX))
            if supervision is not None:
                return supervision
    except OSError:  # it has ended, or belongs to another user
        pass
    return None


def _status_file(process: str) -> str:
    """The descriptor with the status; empty if there is none. Others may be closed while they are listed."""
    for number in os.listdir(f"{process}/fd"):
        link = f"{process}/fd/{number}"
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(link) == f"/memfd:{STATUS_NAME} (deleted)":
                return link
    return ""


def parse_status(content: bytes) -> SupervisorStatus | None:
    """What a supervisor wrote; None for anything else, which another program may have written."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    kinds = {name: type(value) for name, value in fields.items()}
    return SupervisorStatus(**fields) if kinds == SupervisorStatus.__annotations__ else None
