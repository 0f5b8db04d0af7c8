"""The image that all daemons of a mount serve, and its page cache. This module opens files."""

import os
from dataclasses import dataclass

import numpy as np

from dieselfs.snapshot.erofs_image import ErofsImage, Ownership, Serving
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.stored_image import open_image, stored_image
from dieselfs_client.memory.buffer_pool import BufferPool
from dieselfs_client.mount.points.layers import IMAGE_FILE, Layers
from dieselfs_client.mount.reading.core import CONTROL_FOLDER
from dieselfs_client.mount.views.image_pages import ImagePages
from dieselfs_client.prefetch.tripwires import Tripwires

PRIVATE_MODE = 0o700
"""Access mode of the root of a mount that is for the mounting user only."""


@dataclass(frozen=True, eq=False, slots=True)
class ImageFile:
    """An image, and its descriptor, which the holder closes."""

    image: ErofsImage
    descriptor: int

    def pages(self, device: int, layers: Layers, snapshot: Snapshot, buffer_pool: BufferPool) -> ImagePages:
        """The page cache of the mount with these layers."""
        path = os.path.join(layers.fuse_place, IMAGE_FILE)
        return ImagePages(device, layers.mountpoint, snapshot, buffer_pool, self.image, self.descriptor, path)


def image_file(
    snapshot: Snapshot, user: int, group: int, is_private: bool, inherited: int | None = None
) -> ImageFile:
    """The image of a mount: that of `inherited`, the descriptor of an earlier daemon, or the stored one.

    All entries belong to `user` and `group`. EROFS does not keep other users out, as FUSE does, so with `is_private`
    the mode of the root does, which then belongs to this user. Raises InvalidInput for a dataset that is too large.
    """
    if inherited is not None:
        return ImageFile(open_image(inherited), inherited)
    ownership = Ownership(user, group)
    if is_private:
        ownership = Ownership(user, group, PRIVATE_MODE, os.geteuid())
    is_guarded = Tripwires(snapshot).usual(np.arange(len(snapshot)))
    descriptor = stored_image(snapshot, ownership, Serving(CONTROL_FOLDER, is_guarded))
    return ImageFile(open_image(descriptor), descriptor)
