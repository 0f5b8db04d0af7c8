"""The checks of `dlcmd doctor` on a machine, its servers and peers: what is found, what to change. This module opens
connections.

`machine_facts` reads files of the system; the checks of the machine are functions of what it has read.
"""

import os
import re
import resource
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from dieselfs.errors import AccessDenied, DieselfsError, ProtocolError, Unavailable
from dieselfs.limits import CHUNK_AHEAD_S_MAX, GIB, KIB, MIB, MOUNT_MEMORY_BYTES_MIN, READ_BYTES_MAX
from dieselfs.net.address import Address, TcpAddress
from dieselfs.process.state_dirs import check_private, runtime_folder
from dieselfs.process.system_limits import available_bytes, content_of, room_bytes
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.login import check_provider
from dieselfs.rpc.records import FAILURE, OK, WARNING, CheckRecord
from dieselfs.rpc.server_checks import unreachable, versions
from dieselfs.settings.table import AUTO, FUSE, IMAGE, OFF
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Report
from dieselfs.telemetry.socket import published
from dieselfs.units import count, format_duration, format_size
from dieselfs_client.mount.points import view_choice
from dieselfs_client.mount.points.mounting import DEVICE, IMAGE_READ_AHEAD_BYTES, ReadAhead, read_aheads
from dieselfs_client.mount.points.mounting import facts as mount_facts
from dieselfs_client.mount.points.view_choice import (
    BENEATH_LINUX,
    EROFS_FILE_LINUX,
    OVERLAY_NAMESPACE_LINUX,
    choices,
)
from dieselfs_tools.cli.session import Session

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

MISSING, DENIED = "missing", "denied"
FUSE_FAULTS = {
    MISSING: (
        f"there is no {DEVICE}",
        "load the module fuse: modprobe fuse; in a container, pass --device /dev/fuse",
    ),
    DENIED: (
        f"you may not open {DEVICE}",
        "as root: chmod 0666 /dev/fuse; in a container, also --cap-add SYS_ADMIN",
    ),
}
"""What is wrong with the device, and what to change."""

_FILESYSTEMS = ("erofs", "overlay", "fuse")
_KNOWN_FILESYSTEMS = Path("/proc/filesystems")
_MODULES = Path("/lib/modules")
_MAPPINGS = Path("/proc/sys/vm/max_map_count")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_FUSE_CONFIG = Path("/etc/fuse.conf")


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What the checks need to know. `kernel`: its release. `fuse_device`: OK, or a key of `FUSE_FAULTS`. `folders`: by
    purpose, the folder, whether it is writable, and free bytes.
    """

    mount: view_choice.Facts
    kernel: str
    filesystems: frozenset[str]
    fuse_device: str
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


def machine_checks(facts: MachineFacts) -> list[CheckRecord]:
    """One for each check, in the order of `CHECKS`; those of folders last."""
    return [*(check(facts) for check in CHECKS), *_folders(facts)]


def _kernel(facts: MachineFacts) -> CheckRecord:
    """What the kernel is new enough for, whatever this user may do with it."""
    has = [what for first, what in KERNELS if facts.mount.linux >= first]
    lacks = [(f"{first[0]}.{first[1]}", what) for first, what in KERNELS if facts.mount.linux < first]
    if not lacks:
        return CheckRecord("kernel", OK, f"Linux {facts.kernel} is new enough for everything")
    fix = "upgrade Linux: " + ", ".join(f"{first} for {what}" for first, what in lacks)
    if not has:
        return CheckRecord("kernel", FAILURE, f"Linux {facts.kernel} is too old: nothing can be mounted", fix)
    return CheckRecord("kernel", WARNING, f"Linux {facts.kernel} is new enough for {', '.join(has)}", fix)


def _fuse(facts: MachineFacts) -> CheckRecord:
    if facts.fuse_device != OK:
        text, fix = FUSE_FAULTS[facts.fuse_device]
        return CheckRecord("fuse", FAILURE, f"{text}: nothing can be mounted", fix)
    if not facts.mount.may_mount and not facts.has_fusermount:
        fix = "install the package fuse3; 'dlcmd run DATASET -- COMMAND' works without it"
        return CheckRecord("fuse", FAILURE, "fusermount3 is missing, which ordinary users need to mount", fix)
    return CheckRecord("fuse", OK, "/dev/fuse can be opened")


def _view(facts: MachineFacts) -> CheckRecord:
    """The best view that is possible, as the mount chooses it."""
    best, reason = next(
        (view, reason)
        for view, reason in choices(AUTO, facts.mount)
        if view == FUSE or {"image": "erofs"}.get(view, view) in facts.filesystems
    )
    if best == IMAGE:
        return CheckRecord("view", OK, "mounts use the view image: no call of a reader waits for the daemon")
    if not reason:
        reason = f"the kernel has no {'EROFS' if 'erofs' not in facts.filesystems else 'overlayfs'}"
        fix = "use a kernel with CONFIG_EROFS_FS_BACKED_BY_FILE and CONFIG_OVERLAY_FS"
    else:
        fix = "mount as root, or run the training with 'dlcmd run', on Linux 6.12 or later"
    return CheckRecord("view", WARNING, f"mounts use the view {best}: {reason}", fix)


def _allow_other(facts: MachineFacts) -> CheckRecord:
    if facts.mount.may_mount or facts.allows_other:
        return CheckRecord("allow_other", OK, "mounts can be shared with other users (-o allow_other)")
    fix = "add the line user_allow_other to /etc/fuse.conf, if other users shall read your mounts"
    return CheckRecord("allow_other", WARNING, "only you can read your mounts", fix)


def _descriptors(facts: MachineFacts) -> CheckRecord:
    text = (
        f"a process may open {facts.descriptors:,} files"
        if facts.descriptors > 0
        else "no limit of open files"
    )
    if 0 <= facts.descriptors < DESCRIPTORS_MIN:
        fix = "raise the hard limit: ulimit -Hn, LimitNOFILE= of a unit, or /etc/security/limits.conf"
        return CheckRecord("open files", WARNING, f"{text}, {DESCRIPTORS_MIN:,} are better", fix)
    return CheckRecord("open files", OK, text)


def _mappings(facts: MachineFacts) -> CheckRecord:
    if facts.mappings is not None and facts.mappings < MAPPINGS_MIN:
        fix = f"sysctl vm.max_map_count={MAPPINGS_MIN}"
        return CheckRecord("mappings", WARNING, f"a process may map {facts.mappings:,} pieces of memory", fix)
    return CheckRecord(
        "mappings", OK, f"a process may map {facts.mappings or MAPPINGS_MIN:,} pieces of memory"
    )


def _memory(facts: MachineFacts) -> CheckRecord:
    if facts.memory_bytes is None:
        return CheckRecord("memory", OK, "no limit is known")
    text = f"{format_size(facts.memory_bytes)} by {facts.memory_limit}"
    if facts.memory_bytes < 2 * MOUNT_MEMORY_BYTES_MIN:
        fix = f"raise the limit: a mount needs at least {MOUNT_MEMORY_BYTES_MIN // MIB} MiB and room for its processes"
        return CheckRecord("memory", FAILURE, text, fix)
    if facts.memory_bytes < MEMORY_MIN_BYTES:
        return CheckRecord(
            "memory", WARNING, text, "raise the limit (memory.max of the control group, ulimit -v)"
        )
    if facts.available_bytes is not None and facts.available_bytes < MEMORY_MIN_BYTES:
        text += f", of which {format_size(facts.available_bytes)} are free"
        return CheckRecord("memory", WARNING, text, "end other programs, or mount with a smaller --memory")
    return CheckRecord("memory", OK, text)


def _huge_pages(facts: MachineFacts) -> CheckRecord:
    text = f"transparent huge pages: {facts.huge_pages or 'none'}"
    if facts.huge_pages == "always":
        fix = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, if memory is scarce"
        return CheckRecord("huge pages", WARNING, f"{text}: small buffers may take 2 MiB each", fix)
    return CheckRecord("huge pages", OK, text)


def _read_ahead(facts: MachineFacts) -> CheckRecord:
    """The first mount whose read-ahead is not the one that a mount by root sets."""
    for place, view, name, length_bytes in facts.read_aheads:
        setting = f"/sys/class/bdi/{name}/read_ahead_kb"
        if view == FUSE and length_bytes < READ_BYTES_MAX:
            text = f"{place}: the kernel reads large files in steps of {format_size(length_bytes)}"
            return CheckRecord(
                "read-ahead", WARNING, text, f"as root: echo {READ_BYTES_MAX // KIB} > {setting}"
            )
        if view == IMAGE and length_bytes > IMAGE_READ_AHEAD_BYTES:
            text = f"a mount in the view image: {format_size(length_bytes)} around each page of a mapped file"
            fix = f"as root: echo {IMAGE_READ_AHEAD_BYTES // KIB} > {setting}"
            return CheckRecord("read-ahead", WARNING, text, fix)
    return CheckRecord("read-ahead", OK, "no mount needs another one")


def _runtime(facts: MachineFacts) -> CheckRecord:
    if facts.runtime_fault:
        fix = "remove it, or set XDG_RUNTIME_DIR to a folder of your own with mode 0700"
        return CheckRecord("sockets", FAILURE, facts.runtime_fault, fix)
    return CheckRecord("sockets", OK, "the folder of sockets is yours alone")


def _folders(facts: MachineFacts) -> list[CheckRecord]:
    found = []
    for what, (folder, is_writable, free_bytes) in facts.folders.items():
        text = f"{folder}: {format_size(free_bytes)} free"
        if not is_writable:
            found.append(
                CheckRecord(what, FAILURE, f"{folder} cannot be written to", f"chown or chmod {folder}")
            )
        elif free_bytes < FREE_MIN_BYTES:
            found.append(
                CheckRecord(what, WARNING, text, "free some space, or move the folder to a larger disk")
            )
        else:
            found.append(CheckRecord(what, OK, text))
    return found


CHECKS: tuple[Callable[[MachineFacts], CheckRecord], ...] = (
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


def machine_facts(folders: Mapping[str, Path]) -> MachineFacts:
    """Read what this machine has. `folders`: those that must be writable, by what they are for."""
    memory_bytes, memory_limit = room_bytes()
    return MachineFacts(
        mount=mount_facts(),
        kernel=os.uname().release,
        filesystems=frozenset(name for name in _FILESYSTEMS if _has_filesystem(name)),
        fuse_device=_fuse_device(),
        has_fusermount=shutil.which("fusermount3") is not None,
        allows_other=_allows_other(),
        descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        mappings=_number(_MAPPINGS),
        memory_bytes=memory_bytes,
        memory_limit=memory_limit,
        available_bytes=available_bytes(),
        huge_pages=_chosen(_HUGE_PAGES),
        read_aheads=tuple(read_aheads()),
        runtime_fault=_runtime_fault(),
        folders={what: (folder, *_room(folder)) for what, folder in folders.items()},
    )


def _has_filesystem(name: str) -> bool:
    """Whether the kernel has it, or a module that it loads when it is mounted."""
    listed = content_of(_KNOWN_FILESYSTEMS).split()
    modules = _MODULES / os.uname().release
    known = content_of(modules / "modules.builtin") + content_of(modules / "modules.dep")
    return name in listed or bool(re.search(rf"/{name}(fs)?\.ko", known))


def _fuse_device() -> str:
    if not os.path.exists(DEVICE):
        return MISSING
    return OK if os.access(DEVICE, os.R_OK | os.W_OK) else DENIED


def _allows_other() -> bool:
    return any(line.strip() == "user_allow_other" for line in content_of(_FUSE_CONFIG).splitlines())


def _runtime_fault() -> str:
    """Why the folder of sockets cannot be used; empty if it can, or is not there yet."""
    folder = runtime_folder()
    try:
        check_private(folder)
    except FileNotFoundError:
        return ""
    except (AccessDenied, OSError) as error:
        return str(error)
    return ""


def _room(folder: Path) -> tuple[bool, int]:
    """Whether a folder, or the first of its parents that is there, can be written to, and the free bytes there."""
    place = next(each for each in (folder, *folder.parents) if each.exists())
    return os.access(place, os.W_OK | os.X_OK), shutil.disk_usage(place).free


def _chosen(path: Path) -> str:
    """The word in brackets, of files such as `always [madvise] never`; empty if there is none."""
    found = re.search(r"\[(\w+)\]", content_of(path))
    return found[1] if found else ""


def _number(path: Path) -> int | None:
    text = content_of(path)
    return int(text) if text.isdigit() else None


CLOCK_OFF_S = 5.0
"""A larger difference makes times in logs, and the ends of keys, hard to compare."""


def clock(server_s: float, asked_s: float, answered_s: float) -> CheckRecord:
    """The clock of this machine when it asked and when it had the answer, and that of the server between."""
    if asked_s <= server_s <= answered_s:
        off_s = 0.0
    elif asked_s > server_s:
        off_s = asked_s - server_s
    else:
        off_s = answered_s - server_s
    text = f"this clock is {format_duration(abs(off_s))} {'ahead of' if off_s > 0 else 'behind'} that of the server"
    fix = "synchronise the clocks, for example with chrony or systemd-timesyncd"
    if off_s > CHUNK_AHEAD_S_MAX:
        return CheckRecord("clock", FAILURE, f"{text}: it refuses what is written here", fix)
    if abs(off_s) > CLOCK_OFF_S:
        return CheckRecord("clock", WARNING, text, fix)
    return CheckRecord("clock", OK, "agrees with that of the server")


def transport(server: Address, setting: str) -> CheckRecord:
    """How requests travel to a server. `setting`: `tls` of this client."""
    if not isinstance(server, TcpAddress):
        return CheckRecord("transport", OK, "a Unix socket")
    if setting != OFF:
        return CheckRecord("transport", OK, f"TLS 1.3 to {server}")
    if server.is_loopback:
        return CheckRecord("transport", OK, f"{server} without TLS, which stays on this machine")
    text = f"{server} without TLS: anyone on the network path can read and change everything"
    return CheckRecord("transport", WARNING, text, "set tls = on here and for the server")


def peers(reports: Iterable[Report]) -> Iterator[CheckRecord]:
    """The other nodes of each job that a daemon of this machine is in, as its failure detector sees them."""
    for report in reports:
        members, suspected = report.info(catalogue.JOB_MEMBERS), report.info(catalogue.JOB_SUSPECTED)
        if not members:
            continue
        name = f"job {report.info(catalogue.JOB_NAME)}"
        if out := report.info(catalogue.MEMBERSHIP_OUT):
            yield CheckRecord("peers", FAILURE, f"{name}: this node is out: {out}", "mount it again")
        elif suspected:
            text = f"{name}: {len(suspected)} of {count(len(members), 'node')} do not answer: {', '.join(suspected)}"
            fix = "look at the network and at firewalls between the nodes, and whether they run"
            yield CheckRecord("peers", WARNING, text, fix)
        else:
            yield CheckRecord("peers", OK, f"{name}: {count(len(members), 'node')}, none is suspected")


def server_checks(session: Session, now: Callable[[], float] = time.time) -> Iterator[CheckRecord]:
    """The checks of each server that this client may use, for administrators also those that servers make; of the
    identity provider from here; and of the nodes of the jobs of this machine. `now`: the clock of this machine, in
    seconds since 1970.
    """
    settings = session.settings()
    addresses = session.client.servers()
    by_server: dict[str, str] = {}
    for address in addresses:
        prefix = f"{address}: " if len(addresses) > 1 else ""
        try:
            if len(addresses) == 1:
                checks = [*_checks_of(session.client, now, by_server)]
            else:
                with closing(ServerClient(replace(settings, server=str(address)))) as client:
                    checks = [*_checks_of(client, now, by_server)]
        except DieselfsError as error:
            yield unreachable(f"{address}: {error}")
            continue
        for check in checks:
            yield check._replace(text=f"{prefix}{check.text}")
        yield transport(address, settings.tls)
    if by_server:
        yield versions(by_server)
    if settings.oidc_issuer:
        yield check_provider(settings.oidc_issuer, settings.oidc_ca)
    yield from peers(report for _, report in published())


def _checks_of(
    client: ServerClient, now: Callable[[], float], by_server: dict[str, str]
) -> Iterator[CheckRecord]:
    client.datasets()  # connects, which may take longer than the request below
    asked_s = now()
    try:
        server_s = client.check_server(is_whole=False).time_ns / 1e9
    except (Unavailable, ProtocolError):  # how a server answers a method that it does not know
        yield CheckRecord("clock", WARNING, "the server answers no checks", "upgrade it, or look at its log")
        return
    except AccessDenied as error:  # without a right on any dataset
        yield CheckRecord("server", WARNING, str(error), "ask an administrator for a right")
        return
    yield clock(server_s, asked_s, now())
    try:
        by_server[str(client.address)] = client.status().version
        yield from client.check_server(is_whole=True).checks
    except AccessDenied:  # only administrators may ask
        return
