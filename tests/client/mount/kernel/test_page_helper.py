"""The page helper of a mount whose kernel is answered by hand. `test_page_cache.py` gives it its usual orders."""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dieselfs.errors import MountError
from dieselfs_client.mount.kernel import page_helper, protocol
from dieselfs_client.mount.kernel.page_helper import LENGTH
from dieselfs_client.mount.kernel.protocol import KernelRequest, Opcode
from dieselfs_client.mount.points.mounting import mount_device, unmount
from lab.network import clear

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can end the connection of a mount")

REQUEST_BYTES_MAX = 1 << 17
TIMEOUT_S = 60


def next_request(device: int) -> KernelRequest:
    poll = select.poll()
    poll.register(device, select.POLLIN)
    assert poll.poll(TIMEOUT_S * 1000), "the kernel asks for nothing"
    return protocol.decode_request(memoryview(os.read(device, REQUEST_BYTES_MAX)))


@pytest.fixture
def mountpoint(tmp_path: Path) -> Iterator[Path]:
    """Afterwards its connection has ended, so that no process waits for it for ever."""
    place = tmp_path / "mount"
    place.mkdir()
    yield place
    with suppress(MountError):  # it is not mounted
        unmount(str(place), lazily=True, is_cut_off=True)
    clear(place)


def test_one_that_waits_for_the_kernel_ends_with_daemon_and_supervisor(mountpoint: Path) -> None:
    """Otherwise it would hold the last descriptor of the device, and the mount would hang."""
    device = mount_device(str(mountpoint), "test")
    ours, theirs = socket.socketpair()
    memory = os.memfd_create("test")
    os.ftruncate(memory, 4096)
    with theirs:
        descriptors = [theirs.fileno(), device, memory]
        command = [sys.executable, "-S", "-E", page_helper.__file__, *map(str, descriptors), "4096"]
        helper = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=descriptors)
    os.close(memory)
    try:
        request = next_request(device)
        assert request.opcode == Opcode.INIT
        answer = protocol.encode_init(protocol.decode_init(request.body))
        os.writev(device, (protocol.encode_header(request.unique, len(answer)), answer))
        order = b"L" + os.fsencode(mountpoint) + b"/unknown\0"
        ours.sendall(LENGTH.pack(len(order)) + order)
        assert next_request(device).opcode in (Opcode.GETATTR, Opcode.LOOKUP), "taken, and never answered"
        os.close(device)
        ours.close()
        assert helper.wait(TIMEOUT_S) == page_helper.EXIT_GONE
    finally:
        helper.kill()
        with suppress(MountError):
            unmount(str(mountpoint), lazily=True, is_cut_off=True)
        helper.wait()
