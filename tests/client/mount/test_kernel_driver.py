"""What the kernel asks this driver, and what it need not ask. What programs see is in `test_mounted_*.py`."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dieselfs.settings import FUSE
from dieselfs_client.mount.options import MountOptions
from tests.support.dataset import pack_tree
from tests.support.mounted import RunningMount, mounted

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")


def count_requests() -> None:
    """Log the opcode of every request."""
    import logging

    from dieselfs_client.mount import kernel_protocol

    decode = kernel_protocol.decode_request
    log = logging.getLogger("requests")

    def counted(packet: memoryview) -> kernel_protocol.KernelRequest:
        request = decode(packet)
        log.info("request %d for inode %d", request.opcode, request.inode)
        return request

    kernel_protocol.decode_request = counted


def requests_of(running: RunningMount, act: Callable[[], object]) -> dict[str, int]:
    """How often the kernel asked what while `act` ran."""
    from dieselfs_client.mount.kernel_protocol import Opcode

    os.statvfs(running.path)
    before = len(running.log())
    act()
    os.statvfs(running.path)  # answered last
    counts: dict[str, int] = {}
    for line in running.log()[before:].splitlines():
        if " request " in line:
            number = int(line.split(" request ")[1].split()[0])
            name = Opcode(number).name if number in set(Opcode) else str(number)
            counts[name] = counts.get(name, 0) + 1
    counts["STATFS"] -= 1
    return {name: count for name, count in counts.items() if count}


def test_the_kernel_asks_once(tmp_path: Path) -> None:
    """OPEN, OPENDIR and extended attributes once in all, names once each, a folder once, a page once at most."""
    (tmp_path / "tree/folder").mkdir(parents=True)
    for number in range(50):
        (tmp_path / f"tree/folder/{number}").write_bytes(b"x" * 1000)
    with mounted(
        pack_tree(tmp_path / "tree"), tmp_path, None, MountOptions(view=FUSE), count_requests
    ) as running:

        def list_long() -> None:
            subprocess.run(["ls", "-l", str(running.path / "folder")], stdout=subprocess.DEVNULL, check=True)

        def read_all() -> None:
            for number in range(50):
                descriptor = os.open(running.path / f"folder/{number}", os.O_RDONLY)
                assert len(os.read(descriptor, 5000)) == 1000
                os.close(descriptor)

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
        missing = running.path / "missing"
        assert requests_of(running, lambda: os.path.exists(missing)) == {"LOOKUP": 1}
        assert requests_of(running, lambda: os.path.exists(missing)) == {}
