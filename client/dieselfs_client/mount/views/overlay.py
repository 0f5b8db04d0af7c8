"""The view `overlay`: users see read-only overlayfs over the FUSE mount. This module calls the kernel."""

import os

from dieselfs.settings.table import OVERLAY
from dieselfs_client.mount.points.layers import EMPTY, Layers
from dieselfs_client.mount.points.mounting import mount_kernel_file_system
from dieselfs_client.mount.points.view_choice import VIEWS
from dieselfs_client.mount.views.view import View


class OverlayView(View):
    def mount(self, layers: Layers, source: str, noexec: bool) -> None:
        # Overlayfs without a writable layer needs two others. With `xino`, all files have the device number of the
        # mount.
        lowers = layers.fuse_place, os.path.join(layers.base, EMPTY)
        escaped = [place.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,") for place in lowers]
        # Overlayfs copies the mode of the root, which FUSE does not know before someone asks for it.
        os.stat(layers.fuse_place)
        data = f"lowerdir={':'.join(escaped)},xino=on"
        mount_kernel_file_system(source, layers.mountpoint, VIEWS[OVERLAY].filesystem, noexec, data)


VIEW = OverlayView
