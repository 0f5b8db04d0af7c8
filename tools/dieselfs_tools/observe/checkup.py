"""The checks of `dlcmd doctor` on a machine: what is found, and what to change. No I/O."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dieselfs.limits import GIB, KIB, MIB, MOUNT_MEMORY_BYTES_MIN, READ_BYTES_MAX
from dieselfs.rpc.records import FAILURE, OK, WARNING
from dieselfs.rpc.records import CheckRecord as Finding
from dieselfs.settings.table import AUTO, FUSE, IMAGE
from dieselfs.units import format_size
from dieselfs_client.mount.points.mounting import IMAGE_READ_AHEAD_BYTES, ReadAhead
from dieselfs_client.mount.points.view_choice import (
    BENEATH_LINUX,
    EROFS_FILE_LINUX,
    OVERLAY_NAMESPACE_LINUX,
    choices,
)
from dieselfs_client.mount.points.view_choice import Facts as MountFacts

STATES = (OK, WARNING, FAILURE)

DESCRIPTORS_MIN = 4096
"""A job of many nodes, or a dataset of many chunks in shared memory, needs some thousand."""
MAPPINGS_MIN = 65_530
"""The kernel's default; chunks in shared memory take one each."""
MEMORY_MIN_BYTES = 1 * GIB
"""A mount works with less, but reads each chunk again and again."""
FREE_MIN_BYTES = 1 * GIB
KERNELS = (
    ((5, 1), "mounts"),
    (OVERLAY_NAMESPACE_LINUX, "the view overlay without root"),
    (BENEATH_LINUX, "replacing a mount in one step"),
    ((6, 9), "reads that survive the end of a daemon"),
    (EROFS_FILE_LINUX, "the view image"),
)
"""The first Linux that has each, oldest first. Without the first one nothing can be mounted."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What `machine_facts` has read. `folders`: by purpose, the folder, whether it is writable, and free bytes.
    `kernel`: its release.
    """

    mount: MountFacts
    kernel: str
    filesystems: frozenset[str]
    has_fuse_device: bool
    has_fusermount: bool
    allows_other: bool
    descriptors: int
    mappings: int | None
    memory_bytes: int | None
    memory_limit: str
    available_bytes: int | None
    huge_pages: str
    read_aheads: tuple[ReadAhead, ...]
    runtime_fault: str
    folders: Mapping[str, tuple[Path, bool, int]]


def findings(facts: Facts) -> list[Finding]:
    """One for each check, in the order of `CHECKS`; those of folders last."""
    return [*(check(facts) for check in CHECKS), *_folders(facts)]


def _kernel(facts: Facts) -> Finding:
    """What the kernel is new enough for, whatever this user may do with it."""
    has = [what for first, what in KERNELS if facts.mount.linux >= first]
    lacks = [(f"{first[0]}.{first[1]}", what) for first, what in KERNELS if facts.mount.linux < first]
    if not lacks:
        return Finding("kernel", OK, f"Linux {facts.kernel} is new enough for everything")
    fix = "upgrade Linux: " + ", ".join(f"{first} for {what}" for first, what in lacks)
    if not has:
        return Finding("kernel", FAILURE, f"Linux {facts.kernel} is too old: nothing can be mounted", fix)
    return Finding("kernel", WARNING, f"Linux {facts.kernel} is new enough for {', '.join(has)}", fix)


def _fuse(facts: Facts) -> Finding:
    if not facts.has_fuse_device:
        fix = "load the module fuse; in a container, pass --device /dev/fuse"
        return Finding("fuse", FAILURE, "/dev/fuse cannot be opened: nothing can be mounted", fix)
    if not facts.mount.may_mount and not facts.has_fusermount:
        fix = "install the package fuse3"
        return Finding("fuse", FAILURE, "fusermount3 is missing, which ordinary users need to mount", fix)
    return Finding("fuse", OK, "/dev/fuse can be opened")


def _view(facts: Facts) -> Finding:
    """The best view that is possible, as the mount chooses it."""
    best, reason = next(
        (view, reason)
        for view, reason in choices(AUTO, facts.mount)
        if view == FUSE or {"image": "erofs"}.get(view, view) in facts.filesystems
    )
    if best == IMAGE:
        return Finding("view", OK, "mounts use the view image: no call of a reader waits for the daemon")
    if not reason:
        reason = f"the kernel has no {'EROFS' if 'erofs' not in facts.filesystems else 'overlayfs'}"
        fix = "use a kernel with CONFIG_EROFS_FS_BACKED_BY_FILE and CONFIG_OVERLAY_FS"
    else:
        fix = "mount as root, or run the training with 'dlcmd run', on Linux 6.12 or later"
    return Finding("view", WARNING, f"mounts use the view {best}: {reason}", fix)


def _allow_other(facts: Facts) -> Finding:
    if facts.mount.may_mount or facts.allows_other:
        return Finding("allow_other", OK, "mounts can be shared with other users (-o allow_other)")
    fix = "add the line user_allow_other to /etc/fuse.conf, if other users shall read your mounts"
    return Finding("allow_other", WARNING, "only you can read your mounts", fix)


def _descriptors(facts: Facts) -> Finding:
    text = (
        f"a process may open {facts.descriptors:,} files"
        if facts.descriptors > 0
        else "no limit of open files"
    )
    if 0 <= facts.descriptors < DESCRIPTORS_MIN:
        fix = "raise the hard limit: ulimit -Hn, LimitNOFILE= of a unit, or /etc/security/limits.conf"
        return Finding("open files", WARNING, f"{text}, {DESCRIPTORS_MIN:,} are better", fix)
    return Finding("open files", OK, text)


def _mappings(facts: Facts) -> Finding:
    if facts.mappings is not None and facts.mappings < MAPPINGS_MIN:
        fix = f"sysctl vm.max_map_count={MAPPINGS_MIN}"
        return Finding("mappings", WARNING, f"a process may map {facts.mappings:,} pieces of memory", fix)
    return Finding("mappings", OK, f"a process may map {facts.mappings or MAPPINGS_MIN:,} pieces of memory")


def _memory(facts: Facts) -> Finding:
    if facts.memory_bytes is None:
        return Finding("memory", OK, "no limit is known")
    text = f"{format_size(facts.memory_bytes)} by {facts.memory_limit}"
    if facts.memory_bytes < 2 * MOUNT_MEMORY_BYTES_MIN:
        fix = f"raise the limit: a mount needs at least {MOUNT_MEMORY_BYTES_MIN // MIB} MiB and room for its processes"
        return Finding("memory", FAILURE, text, fix)
    if facts.memory_bytes < MEMORY_MIN_BYTES:
        return Finding(
            "memory", WARNING, text, "raise the limit (memory.max of the control group, ulimit -v)"
        )
    if facts.available_bytes is not None and facts.available_bytes < MEMORY_MIN_BYTES:
        text += f", of which {format_size(facts.available_bytes)} are free"
        return Finding("memory", WARNING, text, "end other programs, or mount with a smaller --memory")
    return Finding("memory", OK, text)


def _huge_pages(facts: Facts) -> Finding:
    text = f"transparent huge pages: {facts.huge_pages or 'none'}"
    if facts.huge_pages == "always":
        fix = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, if memory is scarce"
        return Finding("huge pages", WARNING, f"{text}: small buffers may take 2 MiB each", fix)
    return Finding("huge pages", OK, text)


def _read_ahead(facts: Facts) -> Finding:
    """The first mount whose read-ahead is not the one that a mount by root sets."""
    for place, view, name, length_bytes in facts.read_aheads:
        setting = f"/sys/class/bdi/{name}/read_ahead_kb"
        if view == FUSE and length_bytes < READ_BYTES_MAX:
            text = f"{place}: the kernel reads large files in steps of {format_size(length_bytes)}"
            return Finding("read-ahead", WARNING, text, f"as root: echo {READ_BYTES_MAX // KIB} > {setting}")
        if view == IMAGE and length_bytes > IMAGE_READ_AHEAD_BYTES:
            text = f"a mount in the view image: {format_size(length_bytes)} around each page of a mapped file"
            fix = f"as root: echo {IMAGE_READ_AHEAD_BYTES // KIB} > {setting}"
            return Finding("read-ahead", WARNING, text, fix)
    return Finding("read-ahead", OK, "no mount needs another one")


def _runtime(facts: Facts) -> Finding:
    if facts.runtime_fault:
        fix = "remove it, or set XDG_RUNTIME_DIR to a folder of your own with mode 0700"
        return Finding("sockets", FAILURE, facts.runtime_fault, fix)
    return Finding("sockets", OK, "the folder of sockets is yours alone")


def _folders(facts: Facts) -> list[Finding]:
    found = []
    for what, (folder, is_writable, free_bytes) in facts.folders.items():
        text = f"{folder}: {format_size(free_bytes)} free"
        if not is_writable:
            found.append(Finding(what, FAILURE, f"{folder} cannot be written to", f"chown or chmod {folder}"))
        elif free_bytes < FREE_MIN_BYTES:
            found.append(Finding(what, WARNING, text, "free some space, or move the folder to a larger disk"))
        else:
            found.append(Finding(what, OK, text))
    return found


CHECKS: tuple[Callable[[Facts], Finding], ...] = (
    _kernel,
    _fuse,
    _view,
    _allow_other,
    _descriptors,
    _mappings,
    _memory,
    _huge_pages,
    _read_ahead,
    _runtime,
)
