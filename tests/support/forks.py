"""Python processes for tests, forked from one that has imported everything: imports would take most of the time."""

import multiprocessing

from dieselfs_tools.cli.command_line import MODULE_OF

forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(
    [
        *("dieselfs.dataset", "cryptography.hazmat.primitives.asymmetric.ed25519"),
        *(f"dieselfs_tools.commands.{module}" for module in set(MODULE_OF.values())),
        *("numpy.ma", "pytest", "dieselfs_client.zygote", "dieselfs_client.mount.drivers.kernel_driver"),
        *("tests.support.dlcmd", "tests.support.mounted"),  # what the processes begin with
    ]
)
