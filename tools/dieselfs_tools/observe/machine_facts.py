"""What this machine has, for `dlcmd doctor`. This module reads files of the system."""

import os
import re
import resource
import shutil
from collections.abc import Mapping
from pathlib import Path

from dieselfs.errors import AccessDenied
from dieselfs.process.state_dirs import check_private, runtime_folder
from dieselfs.process.system_limits import available_bytes, room_bytes
from dieselfs_client.mount.points.mounting import facts as mount_facts
from dieselfs_client.mount.points.mounting import read_aheads
from dieselfs_tools.observe.checkup import Facts

_FILESYSTEMS = ("erofs", "overlay", "fuse")
_KNOWN_FILESYSTEMS = Path("/proc/filesystems")
_MODULES = Path("/lib/modules")
_MAPPINGS = Path("/proc/sys/vm/max_map_count")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_FUSE_CONFIG = Path("/etc/fuse.conf")


def machine_facts(folders: Mapping[str, Path]) -> Facts:
    """`folders`: those that must be writable, by what they are for."""
    memory_bytes, memory_limit = room_bytes()
    return Facts(
        mount=mount_facts(),
        kernel=os.uname().release,
        filesystems=frozenset(name for name in _FILESYSTEMS if _has_filesystem(name)),
        has_fuse_device=os.access("/dev/fuse", os.R_OK | os.W_OK),
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
    listed = _text(_KNOWN_FILESYSTEMS).split()
    modules = _MODULES / os.uname().release
    known = _text(modules / "modules.builtin") + _text(modules / "modules.dep")
    return name in listed or bool(re.search(rf"/{name}(fs)?\.ko", known))


def _allows_other() -> bool:
    return any(line.strip() == "user_allow_other" for line in _text(_FUSE_CONFIG).splitlines())


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
    found = re.search(r"\[(\w+)\]", _text(path))
    return found[1] if found else ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
