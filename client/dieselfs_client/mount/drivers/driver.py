"""What the two kernel drivers share: how names and inodes are found, and which errors the kernel gets."""

import errno
import stat
from abc import ABC, abstractmethod
from dataclasses import dataclass

import trio

from dieselfs.limits import NAME_BYTES_MAX
from dieselfs_client.mount.control.tree import ControlTree
from dieselfs_client.mount.kernel.protocol import FOREVER_S
from dieselfs_client.mount.reading.core import (
    CONTROL_FOLDER,
    CONTROL_INODE,
    ROOT_INODE,
    Attributes,
    MountCore,
)
from dieselfs_client.mount.reading.error_log import Refused
from dieselfs_client.mount.reading.read_path import Reads


@dataclass(eq=False)
class Driver(ABC):
    """Serves one connection to the kernel. Used from one trio thread.

    `device` is an open descriptor of `/dev/fuse`, mounted; the caller closes it. All files belong to `user` and
    `group`, and the root to `root_user` (None: to `user`). `agreed` is set after the negotiation with the kernel;
    `refusal` is None if it succeeded. With `is_taken_over`, the previous daemon may have negotiated: then `agreed` is
    set when all requests that it left unanswered are served.
    """

    device: int
    core: MountCore
    reads: Reads
    control: ControlTree
    user: int
    group: int
    is_taken_over: bool = False
    root_user: int | None = None

    def __post_init__(self) -> None:
        self.agreed = trio.Event()
        self.refusal: str | None = None

    @abstractmethod
    async def run(self) -> None:
        """Serve until the filesystem is unmounted. If cancelled, requests in flight stay unanswered."""

    @abstractmethod
    def finish(self) -> None:
        """Take no more requests; `run` returns when those in flight are answered."""

    def _tree(self, inode: int) -> MountCore | ControlTree:
        return self.control if inode >= CONTROL_INODE else self.core

    def _takes_time(self, folder: int, name: bytes) -> bool:
        """Whether a name must be looked up with `ControlTree.lookup_later`."""
        if len(name) > NAME_BYTES_MAX:
            raise Refused(errno.ENAMETOOLONG)
        return self.control.takes_time(folder, name)

    def _found(self, folder: int, name: bytes) -> Attributes | None:
        """The entry of any other name."""
        if folder >= CONTROL_INODE:
            return self.control.lookup(folder, name)
        if name == CONTROL_FOLDER and folder == ROOT_INODE:
            return self.control.attributes(CONTROL_INODE)
        inode = self.core.lookup(folder, name)
        return self.core.attributes(inode) if inode else None

    def _name_valid_s(self, of: Attributes) -> int:
        """How long the kernel may cache a name: each lookup of a file of the control tree makes a new inode."""
        return 0 if of.inode >= CONTROL_INODE and not stat.S_ISDIR(of.mode) else FOREVER_S

    def _code(self, what: str, inode: int, error: Exception) -> int:
        """The errno for a request that failed; see `ErrorLog.code`."""
        return self.control.errors.code(self.core, what, inode, error)
