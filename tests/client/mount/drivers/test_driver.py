import sys

import pytest
import trio

from dieselfs.errors import MountError
from dieselfs.settings.table import KERNEL, PYFUSE3
from dieselfs_client.memory.chunk_cache import ChunkCache
from dieselfs_client.mount.drivers.choice import driver_class
from dieselfs_client.mount.drivers.kernel_driver import KernelDriver
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.mount.reading.core import MountCore
from tests.support.control import simple_control
from tests.support.dataset import TreeEntry, pack_entries
from tests.support.no_read_ahead import plain_reads


def test_a_package_that_is_missing_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyfuse3", None)
    monkeypatch.delitem(sys.modules, "dieselfs_client.mount.drivers.pyfuse3_driver", raising=False)
    driver_class(KERNEL)
    with pytest.raises(MountError) as caught:
        driver_class(PYFUSE3)
    message = str(caught.value)
    assert "pip install '.[pyfuse3]'" in message and "libfuse3-dev" in message
    assert "\n" not in message


async def test_the_driver_that_is_used_unless_another_is_asked_for(nursery: trio.Nursery) -> None:
    packed = pack_entries([TreeEntry(b"file", 0o100644, 0, b"content")])
    core = MountCore(packed.snapshot)
    reads = plain_reads(core, ChunkCache(packed.snapshot, packed.source(), 1 << 20, nursery))
    driver = driver_class(MountOptions().driver)(-1, core, reads, simple_control(packed.snapshot), 0, 0)
    assert isinstance(driver, KernelDriver)
