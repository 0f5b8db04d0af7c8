"""Starts, ends, upgrades and lists mounts, as verbs of `dlcmd` do. This module starts processes.

from dieselfs_client import control

process = control.mount("imagenet", "/mnt/imagenet")
control.unmount("/mnt/imagenet")
"""

import contextlib
import errno
import json
import os
import select
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import dieselfs.errors
from dieselfs.errors import InvalidInput, MountError, Unavailable
from dieselfs.limits import (
    MOUNT_START_TIMEOUT_S,
    UNMOUNT_BUSY_TIMEOUT_S,
    UNMOUNT_TIMEOUT_S,
    UPGRADE_TIMEOUT_S,
)
from dieselfs.names import SCHEME, is_location, parse_location
from dieselfs_client.daemon import default_log_file
from dieselfs_client.mount.drivers import check_driver
from dieselfs_client.mount.mount_table import (
    FILESYSTEM_TYPE,
    MountRecord,
    dieselfs_mounts,
    is_stale,
    mount_at,
)
from dieselfs_client.mount.mounting import prepare_mountpoint, resolved_mountpoint
from dieselfs_client.mount.mounting import unmount as unmount_from_kernel
from dieselfs_client.options import MountOptions, format_options
from dieselfs_client.supervision.record import Supervision, supervision_of, supervisions

READY = "ready"
_STATS = Path(".dieselfs/stats")
_REPORT_BYTES_MAX = 64 << 10
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount of dieselfs.

    - `process`: its supervisor, None where it is dead or cannot be seen; the rest is known only from that
    - `daemon`: the process that serves it at the moment, None while it is replaced
    - `restarts`: how many daemons took the place of one that died; `upgrades`, of one that was asked to yield
    - `resends`: the kernel sends requests again (Linux 6.9), so that readers notice none of that
    - `trouble`: what went wrong last, or empty
    """

    mountpoint: str
    dataset: str
    process: int | None
    options: tuple[str, ...]
    is_stale: bool
    daemon: int | None = None
    restarts: int = 0
    upgrades: int = 0
    resends: bool = True
    trouble: str = ""


def mount(
    dataset: str,
    mountpoint: str | os.PathLike[str],
    options: MountOptions | None = None,
    timeout_s: float = MOUNT_START_TIMEOUT_S,
) -> int:
    """Mount a dataset (`name` or `name@tag`, with or without `dl://`); returns the process ID of its supervisor.

    It returns once the mount can be used. Raises MountError (about the mount point, or the kernel), and what
    `dieselfs.connect` raises; Unavailable if it takes longer than `timeout_s`. If it raises, nothing is mounted.
    """
    options = options or MountOptions()
    place = resolved_mountpoint(mountpoint)
    log_file = options.log_file or str(default_log_file(place))
    name = _checked(dataset, place, options)
    deadline_s = time.monotonic() + timeout_s
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        try:
            subprocess.run(
                # The shell ends at once, so that the supervisor is nobody's child and nobody has to wait for it.
                ["/bin/sh", "-c", '"$@" &', "sh", *_command(name, place, options, str(writing), log_file)],
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[writing],
                start_new_session=True,
                check=True,
            )
        finally:
            os.close(writing)
        reports = _Reports(pipe.fileno(), deadline_s)
        process = int(reports.next() or 0)
        try:
            verdict = reports.next()
        except BaseException:  # too late, or the user has had enough
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
            raise
    if verdict == READY:
        return process
    kind, _, message = verdict.partition(" ")
    error = getattr(dieselfs.errors, kind, MountError)
    raise error(message or f"{place}: the daemon ended; see {log_file}")


def become_supervisor(dataset: str, mountpoint: str | os.PathLike[str], options: MountOptions) -> NoReturn:
    """Mount as `mount` does, but stay and log to standard error: this process becomes the supervisor.

    Raises InvalidInput and MountError; what goes wrong later is written to standard error, and is the exit code.
    """
    place = resolved_mountpoint(mountpoint)
    command = _command(_checked(dataset, place, options), place, options, "-", "-")
    os.execve(command[0], command, _environment())


def _checked(dataset: str, place: str, options: MountOptions) -> str:
    """What to mount, by its name. Raises what can be said at once and here, rather than by a process that starts."""
    location = parse_location(dataset if is_location(dataset) else SCHEME + dataset)
    if location.path:
        raise InvalidInput(f"{location}: a part of a dataset cannot be mounted; mount {location.state}")
    options.check()
    check_driver(options.driver)
    prepare_mountpoint(place)
    return location.state


def _command(dataset: str, place: str, options: MountOptions, report: str, log_file: str) -> list[str]:
    """The supervisor, and behind it what it starts."""
    log = os.path.abspath(log_file) if log_file != "-" else "-"
    python = [sys.executable, "-P", "-m"]
    zygote = [
        *python,
        "dieselfs_client.supervision.zygote",
        dataset,
        place,
        format_options(options.absolute()),
        log,
    ]
    return [*python, "dieselfs_client.supervision.supervisor", report, log, place, *zygote]


def _environment() -> dict[str, str]:
    """They see the modules that we see, also where dieselfs runs from a checkout; they work in another folder.

    What is found without being told is left out: it may be elsewhere, when an upgrade finds a newer Python.
    """
    found = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    told = [os.path.abspath(path) for path in sys.path if not path.startswith(found)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(told)}


class _Reports:
    """What a supervisor writes while it starts, by line: its process ID, then `READY` or an error and its message."""

    def __init__(self, descriptor: int, deadline_s: float) -> None:
        self._descriptor = descriptor
        self._deadline_s = deadline_s
        self._received = b""

    def next(self) -> str:
        """The next line; empty if the supervisor ends before it. Raises Unavailable when the time is up."""
        while b"\n" not in self._received:
            left_s = max(self._deadline_s - time.monotonic(), 0)
            if not select.select([self._descriptor], [], [], left_s)[0]:
                raise Unavailable("the mount was not there in time; the server may be slow, or gone")
            more = os.read(self._descriptor, _REPORT_BYTES_MAX)
            if not more:
                return ""
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        return line.decode("utf-8", "surrogateescape")


def unmount(mountpoint: str | os.PathLike[str], lazily: bool = False) -> None:
    """Unmount, and wait for the processes behind it to end. Raises MountError if there is no mount of dieselfs.

    Refuses while files on it are open; `lazily`, it goes all the same, and what is open is served to its end.
    """
    place = mounted_place(mountpoint)
    supervision = supervision_of(place)
    deadline_s = time.monotonic() + UNMOUNT_BUSY_TIMEOUT_S
    while True:
        try:
            unmount_from_kernel(place, lazily)
            break
        except MountError as error:
            # The mount itself has some of its files open now and then, to fill the page cache.
            if time.monotonic() > deadline_s:
                if os.strerror(errno.EBUSY) not in str(error):
                    raise
                raise MountError(
                    f"{error}: files on it are open, or somebody is in it; close them, "
                    f"or let them be read to the end: dlcmd umount --lazy {place}"
                ) from None
            time.sleep(_POLL_S)
    if supervision is not None and not lazily:
        _wait_for_end(supervision.supervisor, UNMOUNT_TIMEOUT_S)


def mounted_place(mountpoint: str | os.PathLike[str]) -> str:
    place = resolved_mountpoint(mountpoint)
    record = mount_at(place)
    if record is None or record.filesystem != FILESYSTEM_TYPE:
        raise MountError(f"{place}: no dataset is mounted there; dlcmd mounts lists what is")
    return place


def job_of(place: str) -> Mapping[str, Any] | None:
    """What a mount (`mounted_place`) tells of its job in `.dieselfs/stats`; None if it is of none, or does not tell."""
    try:
        told: Mapping[str, Any] | None = json.loads(Path(place, _STATS).read_bytes())["job"]
    except (OSError, ValueError, KeyError):  # a dataset may have a folder of its own under that name
        return None
    return told


def _wait_for_end(process: int, timeout_s: float) -> None:
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        select.select([descriptor], [], [], timeout_s)
    finally:
        os.close(descriptor)


def upgrade(mountpoint: str | os.PathLike[str], timeout_s: float = UPGRADE_TIMEOUT_S) -> Mount:
    """Have the daemon of a mount replaced by a new one, of the code that is installed now; readers see a pause.

    Returns the mount as it is then. Raises MountError if there is none, or none whose supervisor this user may tell, or
    if the new daemon does not come up: then the old one goes on. Unavailable if that takes longer than `timeout_s`.
    """
    place = mounted_place(mountpoint)
    before = supervision_of(place)
    if before is None:
        raise MountError(f"{place}: its supervisor is dead, or belongs to another user")
    deadline_s = time.monotonic() + timeout_s
    os.kill(before.supervisor, signal.SIGUSR2)
    while (now := supervision_of(place)) is not None:
        if now.refusals > before.refusals:
            raise MountError(f"{place}: {now.trouble}")
        if now.upgrades > before.upgrades and now.is_served:
            return next(found for found in mounts() if found.mountpoint == place)
        if time.monotonic() > deadline_s:
            raise Unavailable(f"{place}: no new daemon serves it after {timeout_s:g} s; see dlcmd mounts")
        time.sleep(_POLL_S)
    raise MountError(f"{place}: it was unmounted meanwhile")


def mounts() -> list[Mount]:
    """The mounts of dieselfs on this machine, in the order in which they were made."""
    known = {one.mountpoint: one for one in supervisions()}
    return [_described(record, known.get(record.mountpoint)) for record in dieselfs_mounts()]


def _described(record: MountRecord, supervision: Supervision | None) -> Mount:
    stale = is_stale(record.mountpoint)
    if supervision is None or supervision.device != record.device:
        return Mount(record.mountpoint, record.source, None, record.options, stale)
    return Mount(
        record.mountpoint,
        record.source,
        supervision.supervisor,
        record.options,
        stale,
        supervision.daemon or None,
        supervision.restarts,
        supervision.upgrades,
        supervision.resends,
        supervision.trouble,
    )
