"""Starts, finds, upgrades and stops the daemons of mounts, for `dlcmd`. This module starts processes.

It imports neither numpy nor trio, which take 0.3 s that `dlcmd umount` and `dlcmd mounts` do not need.
"""

import contextlib
import errno
import json
import os
import resource
import select
import shlex
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from dieselfs.disk.space import check_usable
from dieselfs.errors import InvalidInput, MountError, MountNotFound, Unavailable
from dieselfs.limits import MOUNT_START_TIMEOUT_S
from dieselfs.names import SCHEME, is_file_path, is_location, parse_location
from dieselfs.process.launch import launch, module_environment, python_command, wait_for_end
from dieselfs.process.service_manager import stored
from dieselfs.process.state_dirs import log_path
from dieselfs.process.system_limits import room_bytes
from dieselfs.settings.table import KERNEL
from dieselfs_client.memory.room import granted
from dieselfs_client.mount.points.layers import remove_bases
from dieselfs_client.mount.points.mount_table import MountRecord, dieselfs_mounts, is_stale, mount_at
from dieselfs_client.mount.points.mounting import facts, prepare_mountpoint, resolved_mountpoint
from dieselfs_client.mount.points.mounting import unmount as unmount_from_kernel
from dieselfs_client.mount.points.options import (
    MountOptions,
    check_following,
    check_writing,
    format_options,
)
from dieselfs_client.supervision.adoption import OWNED, STATUS
from dieselfs_client.supervision.control_channel import DESCRIPTORS_MIN, DEVICE
from dieselfs_client.supervision.status import (
    STATUS_BYTES_MAX,
    MemoryFile,
    SupervisorStatus,
    parse_status,
    supervision_of,
    supervisions,
)

UPGRADE_TIMEOUT_S = 120.0
"""Wait for a new daemon to take over a mount."""
REPLACEMENT_TIMEOUT_S = 5.0
"""Wait for a supervisor to be replaced by the daemon of its mount."""
UNMOUNT_BUSY_TIMEOUT_S = 1.0
"""A mount whose files are open for longer than this is not unmounted, unless lazily."""
UNMOUNT_END_TIMEOUT_S = 60.0
"""Wait for the processes of a mount that is unmounted. They take a second at most, unless the machine is overloaded."""

_STATS, _ERRORS, _INFO = (Path(".dieselfs", name) for name in ("stats", "errors", "info"))
_POLL_S = 0.02
LOG_TAIL_BYTES = 16 << 10
"""The last line of a log is searched in this much of it."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount of dieselfs.

    - `process`: its supervisor, None if it is dead or not visible; then `daemon` is None, and the rest means nothing
    - `view`: how the kernel shows the files; `view_reason`: why no better way is possible, or empty
    - `daemon`: the process that serves it, None while it is replaced
    - `restarts`: daemons started after one died; `upgrades`: on request
    - `resends`: the kernel sends requests again (Linux 6.9), so that readers notice neither
    - `trouble`: the last failure of its processes, or empty; for a dead mount, the reason of its end from its log
    - `last_error`: the newest line of `.dieselfs/errors`: time, path and reason of a failed read; or empty
    - `following`: the generation, and what a mount with `follow_s` does about the next one; else empty
    - `writes`: of a mount that can be written, what is stored and what is not; else empty
    - `generation`: that its files are of; None if the mount does not tell it
    """

    mountpoint: str
    dataset: str
    process: int | None
    options: tuple[str, ...]
    view: str
    view_reason: str
    is_stale: bool
    daemon: int | None
    restarts: int
    upgrades: int
    resends: bool
    trouble: str
    last_error: str
    following: str
    generation: int | None = None
    writes: str = ""


def mount(
    dataset: str,
    mountpoint: str | os.PathLike[str],
    options: MountOptions | None = None,
    timeout_s: float = MOUNT_START_TIMEOUT_S,
    owner: int | None = None,
    destination: str = "",
) -> int:
    """Mount a dataset or a folder of it (`name[@tag][/folder]`, with or without `dl://`), or a saved snapshot: a path
    that begins with a slash, "./" or "../".

    Returns the process ID of its supervisor, once the mount can be used. `owner`: the read end of a pipe; the mount
    ends when the other end is closed. `destination`: the path that the caller will move the mount to.
    Raises MountError (mount point or kernel), what `dieselfs.connect` raises, and Unavailable if it is not ready within
    `timeout_s`. After an error no new mount is left.
    """
    options = options or MountOptions()
    place = resolved_mountpoint(mountpoint)
    log_file = Path(options.log_file).absolute() if options.log_file else _log_of(destination or place)
    name = _checked(dataset, place, options, owner is not None)
    if options.write:
        options = _writing().prepare(name, place, options)
    return launch(
        lambda report: supervisor_command(
            name, place, options, str(report), str(log_file), owner, destination
        ),
        log_file,
        timeout_s,
        f"the mount on {place}",
        MountError,
        () if owner is None else (owner,),
    )


def _log_of(place: str) -> Path:
    """The log file of a mount that was given no other."""
    return log_path("mount", place.strip("/").replace("/", "-"))


def become_supervisor(dataset: str, mountpoint: str | os.PathLike[str], options: MountOptions) -> NoReturn:
    """As `mount`, but this process becomes the supervisor, and logs to standard error. It continues a mount whose
    descriptors the service manager has kept.

    Raises InvalidInput and MountError. Later errors are written to standard error, and set the exit code.
    """
    place = resolved_mountpoint(mountpoint)
    is_mounted = _is_kept_alive(place)
    name = _checked(dataset, place, options, True, is_mounted)
    if options.write and not is_mounted:
        options = _writing().prepare(name, place, options)
    command = supervisor_command(name, place, options, "-", "-")
    os.execve(command[0], command, module_environment())


def _is_kept_alive(place: str) -> bool:
    """Whether the service manager has kept the descriptors of the mount at `place`, so that it can be served again.
    Others that it has kept are closed: the connection of their mount has ended.

    Asks nothing of the mount, which answers to nobody at the moment.
    """
    held, record = stored(), mount_at(place)
    if held.keys() >= {DEVICE, STATUS} and record is not None and record.is_dieselfs:
        status = parse_status(MemoryFile(STATUS, held[STATUS]).read(STATUS_BYTES_MAX))
        poll = select.poll()
        poll.register(held[DEVICE], 0)  # an error is reported nevertheless
        if status is not None and status.device == record.device and not poll.poll(0):
            return True
    for descriptor in held.values():
        os.close(descriptor)
    os.environ.pop("LISTEN_PID", None)
    return False


def _checked(dataset: str, place: str, options: MountOptions, is_kept: bool, is_mounted: bool = False) -> str:
    """The dataset, with its tag and folder. Raises the errors that are known before a process is started.

    `is_kept`: the caller needs the first supervisor; `is_mounted`: that continues a mount.
    """
    location = None
    if is_file_path(dataset):
        name = os.path.abspath(os.path.expanduser(dataset))
    else:
        location = parse_location(dataset if is_location(dataset) else SCHEME + dataset)
        name = location.part
    options.check()
    check_following(options, location, is_kept, facts())
    check_writing(options, location, facts())
    if options.driver != KERNEL:
        from dieselfs_client.mount.drivers.choice import driver_class

        driver_class(options.driver)
    if options.disk:
        check_usable(options.disk)
    _, descriptors_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors_max < DESCRIPTORS_MIN:
        raise MountError(
            f"{place}: a process may have {descriptors_max} open files here, a mount needs {DESCRIPTORS_MIN} and one "
            "for each chunk in memory: raise the limit (ulimit -n, LimitNOFILE)"
        )
    granted(options.memory_bytes, *room_bytes())  # a daemon in a smaller control group would be killed
    if not is_mounted:
        prepare_mountpoint(place)
    return name


def supervisor_command(
    dataset: str,
    place: str,
    options: MountOptions,
    report: str,
    log_file: str,
    owner: int | None = None,
    destination: str = "",
) -> list[str]:
    """The command line of the supervisor, which ends with that of its zygote."""
    arguments = dataset, place, format_options(options.absolute()), log_file, destination
    zygote = python_command("dieselfs_client.zygote", *arguments)
    owned = () if owner is None else (OWNED, str(owner))
    return python_command("dieselfs_client.supervision.supervisor", *owned, report, log_file, place, *zygote)


def _writing() -> ModuleType:
    """`rounds`, for a mount that can be written: it takes as long to import as all of this."""
    return import_module("dieselfs_client.writing.rounds")


def unmount(mountpoint: str | os.PathLike[str], lazily: bool = False) -> Sequence[str]:
    """Unmount, and wait for its processes to end. Raises MountNotFound, and MountError while files on it are open.

    `lazily`: detach the mount at once; open files are served until they are closed. What was written through the mount
    is stored then; raises DieselfsError if that is not possible, and it is kept. Returns warnings about it, and about
    processes that have not ended within UNMOUNT_END_TIMEOUT_S.
    """
    place = mounted_place(mountpoint)
    record = mount_at(place)
    number = 0 if record is None or not record.is_dieselfs else record.number
    supervision = _supervision_at(place)
    lines: list[str] = []
    deadline_s = time.monotonic() + UNMOUNT_BUSY_TIMEOUT_S
    users: set[str] = set()
    while True:
        try:
            unmount_from_kernel(place, lazily, number=number)
            break
        except MountError as error:
            # The page helper of the mount opens files now and then, to fill the page cache.
            users |= _users_of(place)  # each time: some are there for a moment only
            if time.monotonic() > deadline_s:
                if os.strerror(errno.EBUSY) not in str(error):
                    raise
                nobody = "one that has just ended" if os.geteuid() == 0 else "one of another user"
                raise MountError(
                    f"{place}: in use by {', '.join(sorted(users)) or nobody}; end it, or detach the mount: "
                    f"dlcmd umount --lazy {shlex.quote(str(mountpoint))}"
                ) from None
            time.sleep(_POLL_S)
    if supervision is None:
        remove_bases()  # of a mount whose processes were killed
    elif not lazily and not wait_for_end(supervision.supervisor, UNMOUNT_END_TIMEOUT_S):
        process = supervision.supervisor
        lines.append(
            f"{place} is unmounted, but its process {process} has not ended within {UNMOUNT_END_TIMEOUT_S:g} s: "
            f"before you mount there again, wait for its end, or end it: kill {process}"
        )
    if record is not None and record.write_folder:
        lines += _writing().end(record.write_folder, place, lazily)
    return lines


def _users_of(place: str) -> set[str]:
    """The visible processes, name and ID, with open or mapped files or a working folder on a mount; not its own."""
    found = set()
    for folder in (Path("/proc", process) for process in os.listdir("/proc") if process.isdigit()):
        with contextlib.suppress(OSError):  # it has just ended, or belongs to another user
            links = [
                folder / "cwd",
                folder / "root",
                *(folder / "fd" / name for name in os.listdir(folder / "fd")),
            ]
            is_user = any(map(partial(_leads_below, place), links)) or (
                os.fsencode(f" {place}/") in (folder / "maps").read_bytes()
            )
            if is_user and b"dieselfs_client" not in (folder / "cmdline").read_bytes():
                found.add(f"{(folder / 'comm').read_text().strip()} ({folder.name})")
    return found


def _leads_below(place: str, link: Path) -> bool:
    with contextlib.suppress(OSError):  # it has just been closed
        return f"{os.readlink(link)}/".startswith(f"{place}/")
    return False


def mounted_place(mountpoint: str | os.PathLike[str], verb: str = "umount") -> str:
    """The resolved path of a mount, for a verb of dlcmd. Raises MountNotFound, and InvalidInput for a dataset in place
    of its folder.
    """
    if is_location(named := os.fspath(mountpoint)):
        location = parse_location(named)
        names = ((each.dataset.partition("/")[0].partition("@")[0], each.mountpoint) for each in mounts())
        places = [shlex.quote(place) for name, place in names if name == location.dataset]
        if not places:
            raise InvalidInput(f"{location} is not mounted on this machine; 'dlcmd mounts' lists what is")
        raise InvalidInput(f"{verb} takes the folder of a mount: dlcmd {verb} {' '.join(places)}")
    place = resolved_mountpoint(mountpoint)
    record = mount_at(place)
    if record is None or not record.is_dieselfs:
        raise MountNotFound(f"{place}: no dataset is mounted there; dlcmd mounts lists the mounts")
    return place


def mounts_of(dataset_id: bytes) -> list[str]:
    """The mount points on this machine that show this dataset.

    Another store may have a dataset of the same name, so names are not compared. Mounts that do not tell their dataset
    are left out: dead ones, and those that only another user may read.
    """
    places = [record.mountpoint for record in dieselfs_mounts()]
    return [place for place in places if _info(place).get("dataset_id") == dataset_id.hex()]


def _info(place: str) -> dict[str, Any]:
    """`.dieselfs/info` of a mount (`mounted_place`); empty if it cannot be read."""
    return _control_file(place, _INFO)


def _control_file(place: str, name: Path) -> dict[str, Any]:
    try:
        content = json.loads(Path(place, name).read_bytes())
    except (OSError, ValueError):  # a dataset may have a folder of its own under that name
        return {}
    return content if isinstance(content, dict) else {}


def job_of(place: str) -> Mapping[str, Any] | None:
    """The job in `.dieselfs/stats` of a mount (`mounted_place`); None if it has no job, or the file cannot be read."""
    job: Mapping[str, Any] | None = _control_file(place, _STATS).get("job")
    return job


def generation_of(place: str) -> int | None:
    """The generation in `.dieselfs/info` of a mount (`mounted_place`); None if it cannot be read."""
    generation: int | None = _info(place).get("generation")
    return generation


def memory_advice_of(place: str) -> str:
    """What the memory of a mount is too little for, from `.dieselfs/info`; empty also if that cannot be read."""
    return str(_info(place).get("memory_advice", ""))


def snapshot_of(place: str) -> tuple[str, bytes] | None:
    """The file of the snapshot of a mount, and the folder of the dataset that it shows; None as in `generation_of`."""
    info = _info(place)
    return (
        (str(info["snapshot"]), str(info["folder"]).encode())
        if info.keys() >= {"snapshot", "folder"}
        else None
    )


def upgrade(mountpoint: str | os.PathLike[str]) -> Mount:
    """Replace the daemon of a mount by one of the code that is installed now; readers see a pause.

    Returns the mount afterwards. Raises MountError if there is no mount or no supervisor of this user, or if the new
    daemon does not start: then the old one continues. Raises Unavailable after UPGRADE_TIMEOUT_S.
    """
    place = mounted_place(mountpoint)
    before = _living_supervision(place)
    if before is None:
        raise MountError(f"{place}: its supervisor is dead, or belongs to another user")
    deadline_s = time.monotonic() + UPGRADE_TIMEOUT_S
    asked = 0
    while True:
        now = _supervision_at(place)
        if now is None and mount_at(place) is None:
            raise MountError(f"{place}: it was unmounted during the upgrade")
        if now is not None and now.refusals > before.refusals:
            raise MountError(f"{place}: {now.trouble}")
        if now is not None and now.upgrades > before.upgrades and now.is_served:
            return next(found for found in mounts() if found.mountpoint == place)
        if now is not None and now.supervisor != asked:  # also one that has replaced the first
            asked = now.supervisor
            os.kill(asked, signal.SIGUSR2)
        if time.monotonic() > deadline_s:
            raise Unavailable(
                f"{place}: no new daemon serves it after {UPGRADE_TIMEOUT_S:g} s; see dlcmd mounts"
            )
        time.sleep(_POLL_S)


def _living_supervision(place: str) -> SupervisorStatus | None:
    """The supervisor of a mount; waits for one that is being replaced, for REPLACEMENT_TIMEOUT_S at most."""
    deadline_s = time.monotonic() + REPLACEMENT_TIMEOUT_S
    while (found := _supervision_at(place)) is None and time.monotonic() < deadline_s and not is_stale(place):
        time.sleep(_POLL_S)
    return found


def mounts() -> list[Mount]:
    """The mounts of dieselfs on this machine, oldest first."""
    known = {(one.mountpoint, one.device): one for one in supervisions()}
    return [_described(record, known.get((record.mountpoint, record.device))) for record in dieselfs_mounts()]


def daemon_at(mountpoint: str) -> int | None:
    """The process that serves the mount on this (resolved) path; None as in `Mount`."""
    record, supervision = mount_at(mountpoint), _supervision_at(mountpoint)
    if record is None or supervision is None or supervision.device != record.device:
        return None
    return supervision.daemon or None


def _supervision_at(place: str) -> SupervisorStatus | None:
    record = mount_at(place)
    return supervision_of(place, record.device if record is not None else "")


def _described(record: MountRecord, supervision: SupervisorStatus | None) -> Mount:
    stale = is_stale(record.mountpoint)
    if supervision is None:
        supervision = SupervisorStatus(record.mountpoint, resends=True)
    info = _info(record.mountpoint) if supervision.is_served and not stale else {}
    return Mount(
        record.mountpoint,
        record.dataset,
        supervision.supervisor or None,
        record.options,
        record.view,
        supervision.view_reason,
        stale,
        supervision.daemon or None,
        supervision.restarts,
        supervision.upgrades,
        supervision.resends,
        _reason_of_end(record.mountpoint) if stale else supervision.trouble,
        _last_error(record.mountpoint) if supervision.is_served and not stale else "",
        _following(info),
        info.get("generation"),
        _writing().described(record.write_folder) if record.write_folder else "",
    )


def _following(info: Mapping[str, Any]) -> str:
    follow = info.get("follow")
    if not isinstance(follow, dict):
        return ""
    text = f"generation {info['generation']}, looks for the next every {follow['interval_s']:g} s"
    if follow["next_generation"] is not None:
        text += f"; generation {follow['next_generation']}: {follow['state']}"
    return f"{text} {follow['reason']}".rstrip()


def _last_error(place: str) -> str:
    lines: list[str] = []
    with contextlib.suppress(OSError):  # the mount of another user, without --allow-other
        lines = Path(place, _ERRORS).read_text(errors="replace").splitlines()
    return " ".join(lines[-1].split("\t")) if lines else ""


def _reason_of_end(place: str) -> str:
    """What the supervisor of a dead mount wrote last into the usual log file; empty if it was killed."""
    with contextlib.suppress(OSError):  # another user's, or elsewhere
        with open(_log_of(place), "rb") as log:
            log.seek(max(os.fstat(log.fileno()).st_size - LOG_TAIL_BYTES, 0))
            last = log.read().decode("utf-8", "replace").splitlines()[-1:]
        _, found, reason = "".join(last).partition(f" WARNING {place}: ")
        return reason if found else ""
    return ""
