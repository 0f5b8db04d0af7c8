"""What the processes of a real mount may do."""

import os
import re
from pathlib import Path

import pytest

from dieselfs_client.capabilities import DAC_OVERRIDE, DAC_READ_SEARCH, SYS_ADMIN, mask_of
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from lab.mount_processes import processes_of
from tests.support.supervised import wait_for

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")

KEPT = mask_of(SYS_ADMIN, DAC_OVERRIDE, DAC_READ_SEARCH)
"""The capabilities that processes of root may have."""


def test_no_process_writes_core_files_and_those_of_root_gain_no_rights(
    options: MountOptions, dataset: str, mountpoint: Path
) -> None:
    control.mount(dataset, mountpoint, options)
    (mountpoint / ".dieselfs/shuffle/seed=1,epoch=0").read_bytes()  # it is pushed, by the page helper
    processes: dict[str, list[int]] = {}

    def are_complete(_: object) -> bool:
        """While a daemon is forked, a second process has its name for a moment."""
        processes.update(processes_of(mountpoint))
        return all(len(found) == 1 for found in processes.values())

    wait_for(mountpoint, are_complete)
    for name, [process] in processes.items():
        limits = Path(f"/proc/{process}/limits").read_text()
        [core] = [line for line in limits.splitlines() if line.startswith("Max core file size")]
        assert core.split()[4:6] == ["0", "0"], name
        status = Path(f"/proc/{process}/status").read_text()
        if os.geteuid() == 0:
            for kind in ("CapPrm", "CapBnd"):
                [mask] = re.findall(rf"^{kind}:\t(\w+)$", status, re.MULTILINE)
                assert int(mask, 16) & ~KEPT == 0, (name, kind)
        is_limited = "NoNewPrivs:\t1\n" in status
        assert is_limited == (os.geteuid() == 0 and name not in ("supervisor", "keeper")), name
    control.unmount(mountpoint)
