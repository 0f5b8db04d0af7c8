"""The view `image`: users see EROFS on an image that the daemon serves as a file of the FUSE mount. This module opens
files and calls the kernel.
"""

import ctypes
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import trio

from dieselfs.errors import DieselfsError, MountError
from dieselfs.settings.table import IMAGE
from dieselfs.snapshot.erofs_image import PART_BYTES, ErofsImage, ImageOwner, ImagePlan, Serving
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.stored_image import open_image, stored_image
from dieselfs_client.memory.buffer_pool import BufferPool
from dieselfs_client.mount.points.layers import LINKS, Layers
from dieselfs_client.mount.points.mounting import (
    image_read_aheads,
    limit_image_read_ahead,
    mount_kernel_file_system,
)
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.mount.points.view_choice import VIEWS
from dieselfs_client.mount.reading.core import CONTROL_FOLDER, MountCore
from dieselfs_client.mount.reading.error_log import ErrorLog
from dieselfs_client.mount.reading.read_path import ReadPath, Reads
from dieselfs_client.mount.views.image_layout import IMAGE_NAME, ImageLayout
from dieselfs_client.mount.views.image_pages import ImagePages
from dieselfs_client.mount.views.image_reads import ImageReads
from dieselfs_client.mount.views.view import PRIVATE_MODE, View, owner
from dieselfs_client.prefetch.tripwires import Tripwires

PUSHED_AGAIN_S = 1.0
"""A part is not pushed again within this time: if the kernel reclaims pages at once, pushes have no benefit."""

SHARED_NODES_MAX = PART_BYTES // 64
"""The image of a larger dataset is made by its daemon: the plan for the metadata area is large, and ends with it."""

_CLONE_FS = 0x200
_libc = ctypes.CDLL(None, use_errno=True)


class MetadataPush:
    """Pushes the metadata area of the image: at the mount, and again where the kernel has reclaimed it.

    EROFS reads metadata page by page, so each page that is not there is a request. The parts of the area that are
    needed again are pushed whole. Used from one trio thread. Its tasks run in `nursery`; `pushing` is held while one
    uses `pages`.
    """

    def __init__(
        self,
        layout: ImageLayout,
        pages: ImagePages,
        nursery: trio.Nursery,
        pushing: trio.CapacityLimiter,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self._layout = layout
        self._pages = pages
        self._nursery = nursery
        self._pushing = pushing
        self._clock = clock
        self._pushed_s: dict[int, float] = {}

    def missed(self, offset: int) -> None:
        """The kernel has read the metadata area at `offset`. While the image is opened, nothing is pushed: the block
        with the root changes.
        """
        part = offset // PART_BYTES
        last_s = self._pushed_s.get(part)
        if self._layout.is_opening or (last_s is not None and self._clock() < last_s + PUSHED_AGAIN_S):
            return
        self._pushed_s[part] = self._clock()
        self._nursery.start_soon(self._push, part)

    async def opened(self) -> None:
        """The control folder of the image was mounted on: push the area, and make the kernel list the root again."""
        self._layout.is_opening = False
        root, parts = self._layout.image.opening_offset // PART_BYTES, self._parts()
        await self._push(root)
        with suppress(MountError):
            await trio.to_thread.run_sync(self._pages.close_root, limiter=self._pushing)
        self._nursery.start_soon(self._push_all, [part for part in range(parts) if part != root])

    def _parts(self) -> int:
        return -(-len(self._layout.image.metadata) // PART_BYTES)

    async def _push_all(self, parts: list[int]) -> None:
        for part in parts:
            await self._push(part)
        await trio.to_thread.run_sync(self._pages.close)

    async def _push(self, part: int) -> None:
        self._pushed_s[part] = self._clock()
        offset = part * PART_BYTES
        with suppress(DieselfsError):  # the mount or the page helper has ended; reads go through the daemon
            await trio.to_thread.run_sync(self._pages.store_metadata, offset, limiter=self._pushing)


@dataclass(eq=False)
class ImageView(View):
    """`kept` is the image: all daemons of a mount serve the same one."""

    reads_ahead = False  # EROFS reads ahead within files, and more would bring parts of others
    shared: ClassVar[tuple[ErofsImage, int] | None] = None
    """The image, with its whole metadata area, and a descriptor of it."""

    @classmethod
    def prepare(cls, snapshot: Snapshot, options: MountOptions) -> None:
        """A daemon that does this itself copies the pages of the code for it."""
        if len(snapshot) <= SHARED_NODES_MAX:
            image, kept = image_file(snapshot, *owner(options), not options.allow_other)
            image.fill(0, len(image.metadata))
            cls.shared = image, kept

    def __post_init__(self) -> None:
        shared, inherited = self.shared, self.inherited
        if shared is None or (inherited is not None and not os.path.sameopenfile(shared[1], inherited)):
            image, self.kept = image_file(self.snapshot, *owner(self.options), self.is_private, inherited)
        else:
            image, self.kept = shared[0], os.dup(shared[1]) if inherited is None else inherited
        self.metadata_bytes = len(image.metadata)
        self._layout = ImageLayout(self.snapshot, image)
        self._pages: ImagePages | None = None
        self._push: MetadataPush | None = None

    def pages(self, device: int, layers: Layers, buffer_pool: BufferPool, workers: int) -> ImagePages:
        assert self.kept is not None
        path = image_path(layers)
        parts = self.snapshot, buffer_pool, self._layout.image, self.kept
        self._pages = ImagePages(device, layers.mountpoint, *parts, path, workers)
        return self._pages

    def core(self) -> MountCore:
        root_mode = PRIVATE_MODE if self.is_private else None
        return MountCore(self.snapshot, root_mode, unlisted={IMAGE_NAME: self._layout.attributes()})

    def reads(
        self, path: ReadPath, errors: ErrorLog, nursery: trio.Nursery, pushing: trio.CapacityLimiter
    ) -> Reads:
        assert self._pages is not None
        self._push = MetadataPush(self._layout, self._pages, nursery, pushing)
        return ImageReads(self._layout, path, errors, self._push.missed)

    def opening(self) -> None:
        """List the control folder until `opened`."""
        self._layout.is_opening = True

    def mount(self, layers: Layers, source: str, noexec: bool) -> None:
        mount_image(image_path(layers), layers.mountpoint, source, layers.base, noexec)

    async def opened(self) -> None:
        assert self._push is not None
        await self._push.opened()

    def close(self) -> None:
        if self.kept is not None:
            os.close(self.kept)
            self.kept = None


def image_path(layers: Layers) -> str:
    """The image, on the FUSE mount of these layers."""
    return os.path.join(layers.fuse_place, os.fsdecode(IMAGE_NAME))


def image_file(
    snapshot: Snapshot, user: int, group: int, is_private: bool, inherited: int | None = None
) -> tuple[ErofsImage, int]:
    """The image of a mount and its descriptor: that of `inherited`, of an earlier daemon, or the stored one.

    All entries belong to `user` and `group`. EROFS does not keep other users out, as FUSE does, so with `is_private`
    the mode of the root does, which then belongs to this user. Raises InvalidInput for a dataset that is too large.
    """
    ownership = ImageOwner(user, group)
    if is_private:
        ownership = ImageOwner(user, group, PRIVATE_MODE, os.geteuid())

    def serving() -> Serving:
        return Serving(CONTROL_FOLDER, Tripwires(snapshot).usual_of_all())

    if inherited is not None:
        return open_image(inherited, lambda: ImagePlan(snapshot, ownership, serving=serving())), inherited
    return stored_image(snapshot, ownership, serving())


def mount_image(image: str, mountpoint: str, source: str, folder: str, noexec: bool = False) -> None:
    """Mount an EROFS image file on `mountpoint`, under the name `source` (`dl://DATASET`). Raises MountError.

    Not with mount(8), which makes a loop device: reads through that are eight times slower. EROFS opens its source as
    a path, so the source is a link, in `folder`, and that is the working folder of a thread of its own.
    """
    link = os.path.join(folder, source.replace("//", "/"))
    os.makedirs(os.path.dirname(link), exist_ok=True)
    with suppress(FileNotFoundError):
        os.unlink(link)
    os.symlink(image, link)
    errors: list[MountError] = []

    def mount() -> None:
        try:
            if _libc.unshare(_CLONE_FS) != 0:
                raise MountError(f"{mountpoint}: cannot be mounted: {os.strerror(ctypes.get_errno())}")
            os.chdir(folder)
            others = image_read_aheads()
            mount_kernel_file_system(source, mountpoint, VIEWS[IMAGE].filesystem, noexec)
            limit_image_read_ahead(others)
        except MountError as error:
            errors.append(error)

    thread = threading.Thread(target=mount)
    thread.start()
    thread.join()
    shutil.rmtree(os.path.join(folder, LINKS))
    if errors:
        raise errors[0]
