"""The layers of a mount whose files another file system of the kernel shows than FUSE. This module calls the kernel.

    /run/dieselfs-mounts/ID/fuse    the FUSE mount, in a folder that only the mounting user can enter: the base
    /mnt/imagenet                   overlayfs over it, or EROFS on an image in it: what users see
    /mnt/imagenet/.dieselfs         the control tree of the FUSE mount (a bind mount, so no listing shows it)

Each mount has a base of its own, because its daemon may serve open files long after another mount has taken its path.
The processes of a mount hold a lock on the base; a base without that lock is removed at the next mount.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from dieselfs.errors import MountError
from dieselfs.names import CONTROL_FOLDER, SCHEME
from dieselfs.process.state_dirs import locked, make_private, runtime_folder, try_lock
from dieselfs.settings.table import FUSE
from dieselfs_client.mount.points import utab
from dieselfs_client.mount.points.mount_table import (
    MOUNTINFO,
    STAGED,
    is_staged,
    mount_at,
    mounts_at,
    parse_mountinfo,
)
from dieselfs_client.mount.points.mounting import (
    facts,
    has_dead_mount,
    mount_kernel_file_system,
    replace_dead,
    unmount,
    unmount_dead,
)

SYSTEM_BASES = Path("/run/dieselfs-mounts")
"""The bases of mounts by root. Those of other users are in `mounts` in their runtime folder."""
LAYERS, BASE = "layers", "base"
"""The names of the descriptors of `Layers` and of the base at the supervisor."""

EMPTY, LINKS = "empty", "dl:"
"""Folders of a base: an empty one, and one for links with which the sources of mounts get their names."""
_FUSE = "fuse"


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of one mount.

    - `mountpoint`: the path that users see, resolved; `view`: one of `dieselfs.settings.table.VIEWS` without AUTO
    - `reason`: why there is no better view, or empty
    - `base`: the folder of the FUSE mount. The view FUSE needs none; it has one, with `staging`, if the mount follows,
      or has replaced a dead mount; else empty
    - `number`: the `major:minor` of the mount that users see; empty until all layers are mounted
    """

    mountpoint: str
    view: str = FUSE
    reason: str = ""
    base: str = ""
    number: str = ""

    @property
    def has_cover(self) -> bool:
        """Whether users see another file system than FUSE."""
        return self.view != FUSE

    @property
    def fuse_place(self) -> str:
        """Where the FUSE mount is."""
        return os.path.join(self.base, _FUSE) if self.has_cover else self.mountpoint

    @property
    def staging(self) -> str:
        """Where a mount is made that will take the place of another: of a dead one by this one, or of this one by the
        next generation. With a base only.
        """
        return os.path.join(self.base, STAGED)

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """What `encode` made. Raises ValueError."""
        try:
            return cls(**json.loads(content))
        except TypeError as error:
            raise ValueError(str(error)) from None


MountView = Callable[[Layers, str, bool], None]


def bases_folder() -> Path:
    """The folder of the bases of this user's mounts."""
    is_system = os.geteuid() == 0 and not facts().is_in_user_namespace
    return SYSTEM_BASES if is_system else runtime_folder().resolve() / "mounts"


def make_base(*names: str) -> tuple[str, int]:
    """A new base with these folders, and its descriptor: the base is locked while that, or a copy of it, is open.

    Raises MountError.
    """
    folder = bases_folder()
    try:
        make_private(folder)
        while True:
            base = tempfile.mkdtemp("", f"{os.getpid()}-", folder)
            with suppress(FileNotFoundError):  # another process removes it before it is locked
                if (descriptor := try_lock(Path(base), _open_base)) is not None:
                    break
        for name in names or (_FUSE, EMPTY):
            os.mkdir(os.path.join(base, name), 0o700)
    except OSError as error:
        raise MountError(f"{folder}: {error.strerror}; a mount needs a folder there") from None
    return base, descriptor


def cover(layers: Layers, mount_view: MountView, dataset: str, noexec: bool = False) -> Layers:
    """Mount what users see over the FUSE mount, which must be served; returns the layers with their number.

    `mount_view`: `View.mount` of the view.

    Continues where a killed process has stopped. A dead mount is replaced in one step, from Linux 6.5 on. Raises
    MountError if the kernel refuses the view.
    """
    if layers.has_cover and has_dead_mount(layers.mountpoint):
        if facts().may_mount_beneath:
            _cover_staged(layers, mount_view, dataset, noexec)
        else:
            unmount_dead(layers.mountpoint)
    record = mount_at(layers.mountpoint)
    if record is None or not record.is_dieselfs:
        mount_view(layers, SCHEME + dataset, noexec)
    place = os.path.join(layers.mountpoint, CONTROL_FOLDER)
    if layers.has_cover and mount_at(place) is None:
        try:
            mount_kernel_file_system(os.path.join(layers.fuse_place, CONTROL_FOLDER), place, None)
        except MountError:
            unmount(layers.mountpoint, lazily=True)
            raise
    if layers.has_cover and not is_staged(layers.mountpoint):
        with suppress(OSError):  # then only a plain umount does not work
            utab.enter(SCHEME + dataset, layers.mountpoint)
    record = mount_at(layers.mountpoint)
    return replace(layers, number=record.device if record else "")


def _cover_staged(layers: Layers, mount_view: MountView, dataset: str, noexec: bool) -> None:
    """Mount all layers on the staging folder, then put them in the place of the dead mount."""
    with suppress(FileExistsError):  # of a process that was killed
        os.mkdir(layers.staging, mode=0o700)
    cover(replace(layers, mountpoint=layers.staging), mount_view, dataset, noexec)
    try:
        replace_dead(layers.staging, layers.mountpoint)
    except MountError:
        unmount(layers.staging, lazily=True)
        raise


def detach(layers: Layers) -> None:
    """Detach the mount that users see, and the FUSE mount; whatever is open on them stays open."""
    record = mount_at(layers.mountpoint)
    with suppress(MountError):  # it is unmounted already
        if record is not None and record.is_dieselfs and layers.number in ("", record.device):
            unmount(layers.mountpoint, lazily=True, number=record.number)
    if layers.has_cover:
        with suppress(MountError):
            unmount(layers.fuse_place, lazily=True)


def is_covered(layers: Layers) -> bool:
    """Whether the mount that users see is still there."""
    return any(record.device == layers.number for record in mounts_at(layers.mountpoint))


def remove_base(layers: Layers) -> None:
    """Detach the FUSE mount in the base, which serves whatever is mounted or open on it, and remove the base."""
    if mount_at(layers.mountpoint) is None:  # else the entry is of a later mount
        with suppress(OSError):  # an entry that is left has no effect
            utab.remove(layers.mountpoint)
    _clear_base(layers.base, is_cut_off=False)


def remove_mount(mountpoint: str, device: str, is_stopped: bool = False) -> None:
    """Remove what a mount whose daemon is gone leaves: unmount, if the mount with this `major:minor` still exists, with
    its layers; remove bases that nobody holds.

    `is_stopped`: an operator has stopped the mount before it was ready, so dead mounts whose place it was to take go
    too.
    """
    record = mount_at(mountpoint)
    if record is not None and record.device == device:
        with suppress(MountError):  # another process has unmounted it
            unmount(mountpoint, lazily=True, is_cut_off=True, number=record.number)
    if is_stopped:
        with suppress(MountError):  # a live one is below
            unmount_dead(mountpoint)
    remove_bases()


def remove_bases() -> None:
    """Remove the bases of this user that no process holds: all processes of their mounts were killed."""
    with suppress(OSError):
        for entry in os.scandir(bases_folder()):
            with suppress(OSError), locked(Path(entry.path), opened=_open_base):
                _clear_base(entry.path, is_cut_off=True)


def _open_base(base: Path) -> int:
    return os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _clear_base(base: str, is_cut_off: bool) -> None:
    for record in reversed([*parse_mountinfo(MOUNTINFO.read_bytes())]):
        if record.mountpoint.startswith(base + "/"):
            with suppress(MountError):  # another process has unmounted it
                unmount(record.mountpoint, lazily=True, is_cut_off=is_cut_off)
    shutil.rmtree(os.path.join(base, LINKS), ignore_errors=True)
    with suppress(OSError):  # another process has removed it
        for entry in os.scandir(base):
            if entry.is_dir(follow_symlinks=False):
                os.rmdir(entry.path)
        os.rmdir(base)
