"""Which driver serves a mount. Each is imported only where it is chosen: pyfuse3 may be missing."""

from dieselfs.errors import MountError
from dieselfs.settings.table import PYFUSE3
from dieselfs_client.mount.drivers.driver import Driver


def driver_class(name: str) -> type[Driver]:
    """The driver of this name. Raises MountError, with the remedy, if it cannot be used here.

    `pyfuse3` cannot serve a connection that was taken over.
    """
    if name != PYFUSE3:
        from dieselfs_client.mount.drivers.kernel_driver import KernelDriver

        return KernelDriver
    try:
        from dieselfs_client.mount.drivers.pyfuse3_driver import Pyfuse3Driver
    except ImportError as error:
        raise MountError(
            f"the driver pyfuse3 cannot be used ({error}): in a checkout: pip install '.[pyfuse3]', "
            "which needs a C compiler, pkg-config and libfuse3-dev"
        ) from None
    return Pyfuse3Driver
