"""The mounts of this machine, as the kernel lists them. This module reads `/proc`."""

import errno
import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dieselfs.names import CONTROL_FOLDER, SCHEME
from dieselfs.settings.table import FUSE
from dieselfs_client.mount.points.view_choice import BY_FILESYSTEM, VIEWS

MOUNT_PROBE_TIMEOUT_S = 2.0
"""A mount that does not answer `statfs` within this time hangs, but is not dead."""

MOUNTINFO = Path("/proc/self/mountinfo")

PRIVATE_MARK = "#control"
"""The end of the source of a FUSE mount below another view, so that it is not listed as a mount of a dataset."""

STAGED = ".next"
"""The name of the folder on which a mount is made that will take the place of another one."""

_UPPER = "upperdir="
MOUNT_FIELDS_MIN = 6
"""Fields of a line before the optional ones."""
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2})")


@dataclass(frozen=True, slots=True)
class MountRecord:
    """One mount. `device` is the `major:minor` that its files have; `options` as `/proc/self/mountinfo` prints them.
    `number`: of the mount, and `below`: that of the mount on which it is.
    """

    mountpoint: str
    source: str
    filesystem: str
    device: str
    options: tuple[str, ...]
    number: int = 0
    below: int = 0

    @property
    def is_dieselfs(self) -> bool:
        """Whether users see it as a mount of dieselfs. The private FUSE mount below another view is none."""
        is_private = self.source.endswith(PRIVATE_MARK)
        return self.source.startswith(SCHEME) and not is_private and self.filesystem in BY_FILESYSTEM

    @property
    def view(self) -> str:
        """The view, of a mount of dieselfs."""
        return BY_FILESYSTEM.get(self.filesystem, FUSE)

    @property
    def write_folder(self) -> str:
        """The folder that holds what is written through it, until it is stored; empty if it cannot be written."""
        upper = next((option for option in self.options if option.startswith(_UPPER)), "")
        return os.path.dirname(upper.removeprefix(_UPPER)) if self.is_dieselfs else ""

    @property
    def dataset(self) -> str:
        """For a mount of dieselfs, whose source is `dl://DATASET[@TAG][/FOLDER]`."""
        return self.source.removeprefix(SCHEME)


def parse_mountinfo(text: bytes, mountpoint: str | None = None) -> Iterator[MountRecord]:
    """The mounts in `/proc/self/mountinfo` (see proc_pid_mountinfo(5)), in order; a later one covers an earlier one.
    With `mountpoint`, those on exactly this path.

    Lines that are none of the kernel's are skipped. A source may have any bytes, among them carriage returns.
    """
    for line in text.split(b"\n"):
        mount, _, filesystem = line.partition(b" - ")
        fields, described = mount.split(b" "), filesystem.split(b" ", 2)
        if len(fields) < MOUNT_FIELDS_MIN or len(described) != 3:
            continue
        place = _unescaped(fields[4])
        if mountpoint is not None and place != mountpoint:
            continue
        kind, source, super_options = described
        yield MountRecord(
            place,
            _unescaped(source),
            _unescaped(kind),
            os.fsdecode(fields[2]),
            tuple(dict.fromkeys(_unescaped(fields[5] + b"," + super_options).split(","))),
            *(int(field) if field.isdigit() else 0 for field in fields[:2]),
        )


def _unescaped(field: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field))


def dieselfs_mounts() -> list[MountRecord]:
    """The mounts of dieselfs, in the order in which they were made; without those that take the place of another."""
    found = [record for record in parse_mountinfo(MOUNTINFO.read_bytes()) if record.is_dieselfs]
    return [record for record in found if not is_staged(record.mountpoint) and not _is_covered(record, found)]


def is_staged(mountpoint: str) -> bool:
    """Whether this is the place of a mount that will take the place of another one."""
    return os.path.basename(mountpoint) == STAGED


def _is_covered(record: MountRecord, others: Iterable[MountRecord]) -> bool:
    """Whether one of the other mounts lies on the root of this one."""
    return any(
        other.below == record.number != 0 and other.mountpoint == record.mountpoint for other in others
    )


def mount_at(mountpoint: str) -> MountRecord | None:
    """The mount on exactly this (absolute, resolved) path; the uppermost if there are several."""
    return uppermost(mounts_at(mountpoint))


def mounts_at(mountpoint: str) -> list[MountRecord]:
    """The mounts on exactly this (absolute, resolved) path, in order."""
    return [*parse_mountinfo(MOUNTINFO.read_bytes(), mountpoint)]


def uppermost(found: Sequence[MountRecord]) -> MountRecord | None:
    """The mount of several on one path that shows: the last one, unless that was moved beneath another."""
    return next((record for record in reversed(found) if not _is_covered(record, found)), None)


def is_on_another(mountpoint: str) -> bool:
    """Whether the uppermost mount on this path lies on the root of another mount of dieselfs."""
    found = mounts_at(mountpoint)
    top = uppermost(found)
    return top is not None and any(one.number == top.below != 0 and one.is_dieselfs for one in found)


def is_above(upper: str, lower: str, mountpoint: str) -> bool:
    """Whether on this path the mount of the device `upper` covers that of the device `lower`."""
    found = mounts_at(mountpoint)
    return any(
        above.device == upper and below.device == lower and above.below == below.number
        for above in found
        for below in found
    )


def is_stale(mountpoint: str) -> bool:
    """Whether the daemon of a mount is dead.

    Calls `statfs`, the only call that the kernel always passes to the daemon; EROFS answers it, and the disk for a
    mount that can be written, so there the control tree is asked. A daemon that does not answer in time hangs, but is
    not dead.
    """
    record = mount_at(mountpoint)
    place = mountpoint
    if (
        record is not None
        and record.is_dieselfs
        and (VIEWS[record.view].asks_no_daemon or record.write_folder)
    ):
        place = os.path.join(mountpoint, CONTROL_FOLDER)
    verdict: list[bool] = []

    def probe() -> None:
        try:
            os.statvfs(place)
            verdict.append(False)
        except OSError as error:
            # The second is the reply to a request that was in flight when the daemon died.
            verdict.append(error.errno in (errno.ENOTCONN, errno.ECONNABORTED))

    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(MOUNT_PROBE_TIMEOUT_S)
    return verdict == [True]
