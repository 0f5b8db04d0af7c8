"""Which of the kernel's file systems shows a mount: the views. No I/O.

image      EROFS on a virtual image that the daemon serves      no request for anything that is cached
overlay    read-only overlayfs over the FUSE mount              no `ioctl` to the daemon
fuse       the FUSE mount itself                                needs only fusermount3
"""

from dataclasses import dataclass
from typing import NamedTuple

from dieselfs.errors import MountError
from dieselfs.settings.table import AUTO, FUSE, IMAGE, OVERLAY

EROFS_FILE_LINUX = 6, 12
"""The first Linux that mounts EROFS on a file (CONFIG_EROFS_FS_BACKED_BY_FILE)."""
OVERLAY_NAMESPACE_LINUX = 5, 11
"""The first Linux that mounts overlayfs in a user namespace."""
BENEATH_LINUX = 6, 5
"""The first Linux that mounts beneath another mount, which can then be replaced in one step."""


class ViewRow(NamedTuple):
    """What is known of a view without its module.

    - `filesystem`: the type of the mount on the visible path, as the kernel lists it
    - `module`, `class_name`: its class, in `mount/views/`
    - `linux`: the first Linux on which root can mount it; None if everybody can, with fusermount3
    - `namespace_linux`: the first Linux that mounts it in a user namespace; None if none does
    - `asks_no_daemon`: the kernel answers `statfs` of it without the daemon
    """

    filesystem: str
    module: str
    class_name: str
    linux: tuple[int, int] | None = None
    namespace_linux: tuple[int, int] | None = None
    asks_no_daemon: bool = False


VIEWS = {
    IMAGE: ViewRow("erofs", "image", "ImageView", linux=EROFS_FILE_LINUX, asks_no_daemon=True),
    OVERLAY: ViewRow("overlay", "view", "OverlayView", linux=(0, 0), namespace_linux=OVERLAY_NAMESPACE_LINUX),
    FUSE: ViewRow("fuse.dieselfs", "view", "FuseView"),
}
"""The views, best first."""
BY_FILESYSTEM = {row.filesystem: view for view, row in VIEWS.items()}


@dataclass(frozen=True, slots=True)
class Facts:
    """What this process may do here.

    - `may_mount`: it has CAP_SYS_ADMIN; `is_in_user_namespace`: only in a user namespace of its own
    - `linux`: major and minor number of the kernel
    """

    may_mount: bool
    is_in_user_namespace: bool
    linux: tuple[int, int]

    @property
    def may_mount_beneath(self) -> bool:
        """Whether it can put one mount in the place of another, without a moment between them."""
        return self.may_mount and self.linux >= BENEATH_LINUX


class Choice(NamedTuple):
    """A view, and why there is no better one; the reason is empty for the best one, and for one that was asked for."""

    view: str
    reason: str

    def fields(self) -> dict[str, str]:
        """For JSON."""
        return {"view": self.view, "view_reason": self.reason}


def obstacle(view: str, facts: Facts) -> str | None:
    """Why a view is not possible; None if it is, as far as can be known before the kernel is asked."""
    row = VIEWS[view]
    if row.linux is None:
        return None
    if not facts.may_mount:
        return f"the view {view} needs root, or a user namespace of its own (dlcmd run)"
    needed = row.namespace_linux if facts.is_in_user_namespace else row.linux
    if needed is None:
        return (
            f"the view {view} needs root: the kernel mounts no {row.filesystem.upper()} in a user namespace"
        )
    if facts.linux < needed:
        return f"the view {view} needs Linux {_version(needed)}, and this is {_version(facts.linux)}"
    return None


def choices(asked: str, facts: Facts) -> list[Choice]:
    """The views to try, best first. `asked`: the setting. Raises MountError if that view is not possible."""
    if asked != AUTO:
        reason = obstacle(asked, facts)
        if reason is not None:
            raise MountError(f"{reason}; mount without --view, or with --view {FUSE}")
        return [Choice(asked, "")]
    found: list[Choice] = []
    reasons: list[str] = []
    for view in VIEWS:
        reason = obstacle(view, facts)
        if reason is None:
            found.append(Choice(view, "; ".join(reasons)))
        else:
            reasons.append(reason)
    return found


def after_refusal(left: list[Choice], refused: str) -> list[Choice]:
    """The views that are left when the kernel has refused one for the reason `refused`."""
    return [Choice(view, "; ".join(filter(None, (reason, refused)))) for view, reason in left]


def _version(number: tuple[int, int]) -> str:
    return ".".join(map(str, number))
