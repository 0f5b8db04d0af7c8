"""What the daemon of a mount asks of a view, and the views `overlay` and `fuse`. This module calls the kernel."""

import os
from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar

import trio

from dieselfs.errors import MountError
from dieselfs.settings.table import OVERLAY
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.memory.buffer_pool import BufferPool
from dieselfs_client.mount.kernel.page_cache import PageCache
from dieselfs_client.mount.points.layers import EMPTY, Layers
from dieselfs_client.mount.points.mounting import facts, mount_kernel_file_system
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.mount.points.view_choice import VIEWS, Choice, choices
from dieselfs_client.mount.reading.core import MountCore
from dieselfs_client.mount.reading.error_log import ErrorLog
from dieselfs_client.mount.reading.read_path import ReadPath, Reads

PRIVATE_MODE = 0o700
"""Access mode of the root of a mount that is for the mounting user only."""


@dataclass(eq=False)
class View:
    """How one mount shows its files. Each view is a class, which `view_choice.VIEWS` names, with what it does
    differently. Methods are called in the order in which they stand here.

    - `inherited`: the descriptor that an earlier daemon of the mount has kept; its holder is the view
    - `kept`: the descriptor that the next daemon must have, or None
    - `metadata_bytes`: memory that the view takes for metadata, of that of the mount
    - `reads_ahead`: whether the kernel's read-ahead of the FUSE mount is raised
    """

    choice: Choice
    snapshot: Snapshot
    options: MountOptions
    inherited: int | None = None

    kept: int | None = None
    metadata_bytes: int = 0
    reads_ahead: ClassVar[bool] = True

    @property
    def is_private(self) -> bool:
        """Whether the mode of the root must keep other users out: FUSE does that, other file systems do not."""
        return not self.options.allow_other

    @classmethod
    def prepare(cls, snapshot: Snapshot, options: MountOptions) -> None:
        """Make what the daemons of a mount share, in the process that forks them. Raises as `open_view`."""

    def pages(self, device: int, layers: Layers, buffer_pool: BufferPool, workers: int) -> PageCache:
        """The page cache of the mount; `device`, `workers`: see `PageCache`."""
        return PageCache(device, layers.fuse_place, self.snapshot, buffer_pool, workers=workers)

    def core(self) -> MountCore:
        """The files, as the FUSE mount shows them."""
        return MountCore(self.snapshot, PRIVATE_MODE if self.is_private else None)

    def reads(
        self, path: ReadPath, errors: ErrorLog, nursery: trio.Nursery, pushing: trio.CapacityLimiter
    ) -> Reads:
        """What answers reads; `path` has the files. Its tasks run in `nursery`; `pushing` is held while the page cache
        is used.
        """
        return path

    def opening(self) -> None:
        """What users see is about to be mounted."""

    def mount(self, layers: Layers, source: str, noexec: bool) -> None:
        """Mount what users see, under the name `source` (`dl://DATASET`). Called in a worker thread.

        Raises MountError if the kernel refuses.
        """

    async def opened(self) -> None:
        """What users see is mounted, with the control tree."""

    def close(self) -> None:
        """The view is not used: the kernel, or the memory of the mount, does not allow it."""


class FuseView(View):
    """Users see the FUSE mount itself."""

    is_private = False

    def core(self) -> MountCore:
        # Programs may open a file with write modes to write, as the kernel asks nobody: it must not reach the page
        # cache. The mount takes writes with `scores` only, for the control tree.
        return MountCore(self.snapshot, hides_write_modes=self.options.scores)


class OverlayView(View):
    """Users see overlayfs over the FUSE mount; read-only, or with what programs write in the write folder."""

    def opening(self) -> None:
        if self.options.write_folder:
            from dieselfs_client.writing.upper import WriteFolder  # for a mount that is written alone

            WriteFolder(self.options.write_folder).begin(self.snapshot.generation)

    def mount(self, layers: Layers, source: str, noexec: bool) -> None:
        # Overlayfs without a writable layer needs two others. With `xino`, all files have the device number of the
        # mount.
        lowers = layers.fuse_place, os.path.join(layers.base, EMPTY)
        escaped = [place.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,") for place in lowers]
        # Overlayfs copies the mode of the root, which FUSE does not know before someone asks for it.
        os.stat(layers.fuse_place)
        filesystem = VIEWS[OVERLAY].filesystem
        if not self.options.write_folder:
            data = f"lowerdir={':'.join(escaped)},xino=on"
            mount_kernel_file_system(source, layers.mountpoint, filesystem, noexec, data)
            return
        from dieselfs_client.writing.upper import WriteFolder

        folder = WriteFolder(self.options.write_folder)
        # A renamed folder refers to what the base has of it, and rounds read that; in a user namespace no folder does.
        # The bytes of each file are in the upper folder.
        links = "userxattr" if facts().is_in_user_namespace else "redirect_dir=on,metacopy=off"
        how = f"xino=on,index=off,{links}"
        data = f"lowerdir={escaped[0]},upperdir={folder.upper},workdir={folder.work},{how}"
        try:
            mount_kernel_file_system(source, layers.mountpoint, filesystem, noexec, data, is_writable=True)
        except MountError as error:
            where = "give --write-folder on a local file system, as ext4, XFS or tmpfs"
            raise MountError(f"{error}; {folder.folder}: {where}") from None


def owner(options: MountOptions) -> tuple[int, int]:
    """User and group of all files of a mount."""
    user = os.getuid() if options.uid is None else options.uid
    return user, os.getgid() if options.gid is None else options.gid


def view_choices(options: MountOptions) -> list[Choice]:
    """The views to try here, best first. Raises MountError if the one that was asked for is not possible."""
    return choices(OVERLAY if options.write else options.view, facts())


def view_class(choice: Choice) -> type[View]:
    """Imports its module."""
    row = VIEWS[choice.view]
    found: type[View] = getattr(import_module(f"dieselfs_client.mount.views.{row.module}"), row.class_name)
    return found


def open_view(choice: Choice, snapshot: Snapshot, options: MountOptions, inherited: int | None) -> View:
    """The view of a mount. Raises InvalidInput for a dataset that it cannot show."""
    return view_class(choice)(choice, snapshot, options, inherited)
