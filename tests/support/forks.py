"""Python functions as processes of tests, forked from one that has imported everything: imports would take most
of the time.

The warm process (`warm.py`) cannot start them as well: a function comes pickled, with events and semaphores that only a
fork server of `multiprocessing` hands on. It runs programs, which it must give descriptors, a session, and a network.
"""

import multiprocessing

from dieselfs_tools.cli.command_line import MODULE_OF

IMPORTED = (
    *("dieselfs.dataset", "cryptography.hazmat.primitives.asymmetric.ed25519", "numpy.ma"),
    *(f"dieselfs_tools.commands.{module}" for module in sorted(set(MODULE_OF.values()))),
)
"""What forks of both kinds use, besides their programs."""

forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(
    [
        *IMPORTED,
        *("pytest", "dieselfs_client.zygote", "dieselfs_client.mount.drivers.kernel_driver"),
        *("tests.support.dlcmd", "tests.support.mounted"),  # what the processes begin with
    ]
)
