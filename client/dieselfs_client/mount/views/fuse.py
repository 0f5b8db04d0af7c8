"""The view `fuse`: users see the FUSE mount itself."""

from dieselfs_client.mount.reading.core import MountCore
from dieselfs_client.mount.views.view import View


class FuseView(View):
    is_private = False

    def core(self) -> MountCore:
        # Programs may open a file with write modes to write, as the kernel asks nobody: it must not reach the page
        # cache. The mount takes writes with `scores` only, for the control tree.
        return MountCore(self.snapshot, hides_write_modes=self.options.scores)


VIEW = FuseView
