"""Starts, ends and lists mounts, as `dlcmd mount`, `umount` and `mounts` do. This module starts processes.

from dieselfs_client import control

process = control.mount("imagenet", "/mnt/imagenet")
control.unmount("/mnt/imagenet")
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import dieselfs.errors
from dieselfs.errors import DieselfsError, InvalidInput, MountError, Unavailable
from dieselfs.limits import MOUNT_START_TIMEOUT_S, UNMOUNT_TIMEOUT_S
from dieselfs.names import SCHEME, is_location, parse_location
from dieselfs_client.daemon import default_log_file
from dieselfs_client.mount.mount_table import (
    FILESYSTEM_TYPE,
    dieselfs_mounts,
    is_stale,
    mount_at,
    serving_process,
)
from dieselfs_client.mount.mounting import prepare_mountpoint, resolved_mountpoint
from dieselfs_client.mount.mounting import unmount as unmount_from_kernel
from dieselfs_client.options import MountOptions, format_options

READY = "ready"
_REPORT_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount of dieselfs. `process` is the daemon, None where it is dead or cannot be seen."""

    mountpoint: str
    dataset: str
    process: int | None
    options: tuple[str, ...]
    is_stale: bool


def mount(
    dataset: str,
    mountpoint: str | os.PathLike[str],
    options: MountOptions | None = None,
    timeout_s: float = MOUNT_START_TIMEOUT_S,
) -> int:
    """Mount a dataset (`name` or `name@tag`, with or without `dl://`); returns the process ID of its daemon.

    It returns once the mount can be used. Raises MountError (about the mount point, or the kernel), and what
    `dieselfs.connect` raises; Unavailable if it takes longer than `timeout_s`. If it raises, nothing is mounted.
    """
    location = parse_location(dataset if is_location(dataset) else SCHEME + dataset)
    if location.path:
        raise InvalidInput(f"{location}: a part of a dataset cannot be mounted; mount {location.state}")
    name = location.state
    options = options or MountOptions()
    place = resolved_mountpoint(mountpoint)
    prepare_mountpoint(place)  # said at once and here, rather than by a process that starts
    deadline_s = time.monotonic() + timeout_s
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        try:
            _start_daemon(name, place, options, writing)
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
    raise error(message or f"{place}: the daemon ended; see {options.log_file or default_log_file(place)}")


def _start_daemon(dataset: str, place: str, options: MountOptions, report_descriptor: int) -> None:
    command = [sys.executable, "-m", "dieselfs_client.main", dataset, place]
    command += ["-o", format_options(options.absolute()), "--report-fd", str(report_descriptor)]
    subprocess.run(
        # The shell ends at once, so that the daemon is nobody's child and nobody has to wait for it.
        ["/bin/sh", "-c", '"$@" &', "sh", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[report_descriptor],
        start_new_session=True,
        check=True,
    )


class _Reports:
    """What a daemon writes while it starts, by line: its process ID, then `READY` or an error and its message."""

    def __init__(self, descriptor: int, deadline_s: float) -> None:
        self._descriptor = descriptor
        self._deadline_s = deadline_s
        self._received = b""

    def next(self) -> str:
        """The next line; empty if the daemon ends before it. Raises Unavailable when the time is up."""
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


def report(descriptor: int | None, verdict: str | DieselfsError) -> None:
    """The daemon's side: say how starting goes, if anybody wants to know."""
    if descriptor is None:
        return
    if isinstance(verdict, DieselfsError):
        verdict = f"{type(verdict).__name__} {verdict}"
    line = " ".join(verdict.splitlines()) + "\n"
    with contextlib.suppress(BrokenPipeError):  # nobody waits any more
        os.write(descriptor, line.encode("utf-8", "surrogateescape"))


def unmount(mountpoint: str | os.PathLike[str], lazily: bool = False) -> None:
    """Unmount, and wait for the daemon to end. Raises MountError if there is no mount of dieselfs.

    Refuses while files on it are open; `lazily`, it goes all the same, and what is open is served to its end.
    """
    place = resolved_mountpoint(mountpoint)
    record = mount_at(place)
    if record is None or record.filesystem != FILESYSTEM_TYPE:
        raise MountError(f"{place}: no dataset is mounted there; dlcmd mounts lists what is")
    process = serving_process(record.device)
    unmount_from_kernel(place, lazily)
    if process is not None and not lazily:
        _wait_for_end(process, UNMOUNT_TIMEOUT_S)


def _wait_for_end(process: int, timeout_s: float) -> None:
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        select.select([descriptor], [], [], timeout_s)
    finally:
        os.close(descriptor)


def mounts() -> list[Mount]:
    """The mounts of dieselfs on this machine, in the order in which they were made."""
    return [
        Mount(
            record.mountpoint,
            record.source,
            serving_process(record.device),
            record.options,
            is_stale(record.mountpoint),
        )
        for record in dieselfs_mounts()
    ]
