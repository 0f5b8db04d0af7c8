"""What the kernel asks this driver, and what it need not ask. What programs see is in `test_mounted_*.py`."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dieselfs.settings.table import FUSE
from dieselfs_client.mount.points.options import MountOptions
from tests.support.dataset import pack_tree
from tests.support.mounted import RunningMount, mounted

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")


_PROCESS = slice(32, 36)
"""Its ID in the header of a request."""


def count_requests() -> None:
    """Log the opcode of every request, and the process that made it."""
    import logging

    from dieselfs_client.mount.kernel import protocol

    decode = protocol.decode_request
    log = logging.getLogger("requests")

    def counted(packet: memoryview) -> protocol.KernelRequest:
        request = decode(packet)
        process = int.from_bytes(packet[_PROCESS], sys.byteorder)
        log.info("request %d of process %d", request.opcode, process)
        return request

    protocol.decode_request = counted


def requests_of(running: RunningMount, act: Callable[[], int]) -> dict[str, int]:
    """How often the kernel asked what for the process that `act` returns. The daemon's own page helper may look at the
    same files at the same time.
    """
    from dieselfs_client.mount.kernel.protocol import Opcode

    os.statvfs(running.path)
    before = len(running.log())
    process = act()
    os.statvfs(running.path)  # answered last
    counts: dict[str, int] = {}
    for line in running.log()[before:].splitlines():
        if " request " in line:
            number, asking = map(int, line.split(" request ")[1].split(" of process "))
            if asking == process and number != Opcode.STATFS:
                name = Opcode(number).name if number in set(Opcode) else str(number)
                counts[name] = counts.get(name, 0) + 1
    return counts


def test_the_kernel_asks_once(tmp_path: Path) -> None:
    """OPEN, OPENDIR and extended attributes once in all, names once each, a folder once, a page once at most."""
    (tmp_path / "tree/folder").mkdir(parents=True)
    for number in range(50):
        (tmp_path / f"tree/folder/{number}").write_bytes(b"x" * 1000)
    with mounted(
        pack_tree(tmp_path / "tree"), tmp_path, None, MountOptions(view=FUSE), count_requests
    ) as running:

        def list_long() -> int:
            command = ["ls", "-l", str(running.path / "folder")]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as listing:
                assert listing.wait() == 0
            return listing.pid

        def read_all() -> int:
            for number in range(50):
                descriptor = os.open(running.path / f"folder/{number}", os.O_RDONLY)
                assert len(os.read(descriptor, 5000)) == 1000
                os.close(descriptor)
            return os.getpid()

        first = requests_of(running, list_long)
        assert first.pop("LOOKUP") == 1
        assert first.pop("READDIRPLUS") <= 3
        assert first.keys() <= {"GETATTR", "OPENDIR", "GETXATTR", "LISTXATTR"}
        assert all(count == 1 for count in first.values())
        assert requests_of(running, list_long) == {}
        first = requests_of(running, read_all)
        assert 1 <= first.pop("READ") <= 50, (
            "the first brings the chunk; who is faster, the reader or the push?"
        )
        assert first.keys() <= {"OPEN", "25"}, "25 is FLUSH"
        assert all(count == 1 for count in first.values())
        assert requests_of(running, read_all) == {}

        def look_for_missing() -> int:
            assert not (running.path / "missing").exists()
            return os.getpid()

        assert requests_of(running, look_for_missing) == {"LOOKUP": 1}
        assert requests_of(running, look_for_missing) == {}
