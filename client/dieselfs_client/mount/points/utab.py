"""Entries in the table in which umount(8) looks for helper programs. This module reads and writes `/run/mount/utab`.

umount(8) refuses a path on which another mount is: the control tree of a view. With an entry of ours it calls
`umount.dieselfs` instead, if that is in `/sbin`.
"""

import os
import tempfile
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from dieselfs.process.state_dirs import locked

UTAB = Path("/run/mount/utab")
HELPER = Path("/sbin/umount.dieselfs")
LOCK_TIMEOUT_S = 2.0


def with_entry(table: str, source: str, mountpoint: str) -> str:
    """The table with an entry for a mount, in place of an older one for its path."""
    entry = f"SRC={_escaped(source)} TARGET={_escaped(mountpoint)} ROOT=/ OPTS=helper=dieselfs\n"
    return without_entry(table, mountpoint) + entry


def without_entry(table: str, mountpoint: str) -> str:
    """The table without the entries of dieselfs for a path."""
    ours = f" TARGET={_escaped(mountpoint)} "
    lines = table.splitlines(keepends=True)
    return "".join(line for line in lines if ours not in line or "helper=dieselfs" not in line)


def _escaped(text: str) -> str:
    return "".join(f"\\{ord(character):03o}" if character in " \t\n\\" else character for character in text)


def enter(source: str, mountpoint: str) -> None:
    """Add an entry, if the helper is installed and this process sees the mounts of the system. Raises OSError."""
    if HELPER.exists() and _mounts_of("self") & _mounts_of("1"):
        UTAB.parent.mkdir(mode=0o755, exist_ok=True)
        with _locked():
            _replace(with_entry(_read(), source, mountpoint))


def remove(mountpoint: str) -> None:
    """Remove the entry of a path, if there is one. Raises OSError."""
    if without_entry(_read(), mountpoint) != _read():
        with _locked():
            _replace(without_entry(_read(), mountpoint))


def _mounts_of(process: str) -> set[bytes]:
    """The numbers of the mounts that a process sees: no two namespaces have one in common. To compare the namespaces
    themselves would take the right to trace the first process of the system.
    """
    return {line.split(b" ", 1)[0] for line in Path(f"/proc/{process}/mountinfo").read_bytes().splitlines()}


def _read() -> str:
    try:
        return os.fsdecode(UTAB.read_bytes())
    except FileNotFoundError:
        return ""


def _replace(table: str) -> None:
    descriptor, new = tempfile.mkstemp(dir=UTAB.parent, prefix="utab.")
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o644)
            file.write(os.fsencode(table))
        os.replace(new, UTAB)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(new)
        raise


def _locked() -> AbstractContextManager[int]:
    """Hold the lock that mount(8) and umount(8) hold while they change the table."""
    return locked(UTAB.with_name(f"{UTAB.name}.lock"), LOCK_TIMEOUT_S, _open_lock)


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
