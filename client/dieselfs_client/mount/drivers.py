"""The two ways to speak to the kernel. They give the same answers; docs/guide/mount.md says in what they differ."""

from typing import TYPE_CHECKING, Protocol

import trio

from dieselfs.errors import MountError
from dieselfs.settings import PYFUSE3
from dieselfs_client.mount.control_tree import ControlTree
from dieselfs_client.mount.core import MountCore
from dieselfs_client.mount.kernel_driver import KernelDriver
from dieselfs_client.mount.read_path import ReadPath

if TYPE_CHECKING:
    from dieselfs_client.mount.pyfuse3_driver import Pyfuse3Driver  # needs libfuse


class Driver(Protocol):
    """Serves one connection to the kernel. Used from one trio thread.

    `agreed` is set once both sides have agreed (then `refusal` is None) or found that they cannot.
    """

    agreed: trio.Event
    refusal: str | None

    async def run(self) -> None:
        """Serve until the filesystem is unmounted. If cancelled, requests under way stay unanswered."""
        ...

    def finish(self) -> None:
        """Take no more requests; `run` returns when those under way are answered."""
        ...


def check_driver(name: str) -> None:
    """Raises MountError, with what to do, if a driver cannot be used here."""
    if name == PYFUSE3:
        _pyfuse3()


def _pyfuse3() -> "type[Pyfuse3Driver]":
    try:
        from dieselfs_client.mount.pyfuse3_driver import Pyfuse3Driver
    except ImportError as error:
        raise MountError(
            f"the driver pyfuse3 cannot be used ({error}): pip install 'dieselfs[pyfuse3]', "
            "which needs a C compiler, pkg-config and libfuse3-dev"
        ) from None
    return Pyfuse3Driver


def open_driver(
    name: str,
    device: int,
    core: MountCore,
    reads: ReadPath,
    control: ControlTree,
    user: int,
    group: int,
    is_taken_over: bool = False,
) -> Driver:
    """A driver for a connection; the arguments are those of `KernelDriver`. Raises MountError as `check_driver` does.

    `pyfuse3` cannot serve what is taken over.
    """
    if name == PYFUSE3:
        return _pyfuse3()(device, core, reads, control, user, group)
    return KernelDriver(device, core, reads, control, user, group, is_taken_over)
