"""The service manager hears when a process that it started can be used."""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dieselfs.process import service_manager
from dieselfs.process.launch import LaunchReport
from dieselfs.process.service_manager import SERVICE_READY, SERVICE_STOPPING, notify, store, stored
from dieselfs_client.supervision.keeper import Copies
from dieselfs_client.supervision.startup_report import StartupReport


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"{tmp_path}/notify")
        listener.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", f"{tmp_path}/notify")
        yield listener


def test_a_socket_of_a_file_and_an_abstract_one() -> None:
    name = f"\0dieselfs-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name)
        assert notify(SERVICE_STOPPING, {"NOTIFY_SOCKET": f"@{name[1:]}"})
        assert listener.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("address", ["", "relative", "/nowhere/notify", "vsock:2:1234"])
def test_without_a_manager_nothing_fails(address: str) -> None:
    assert not notify(SERVICE_READY, {"NOTIFY_SOCKET": address} if address else {})


def test_a_process_without_a_launcher_tells_the_manager(manager: socket.socket) -> None:
    LaunchReport(None).ready()
    assert manager.recv(100) == b"READY=1"
    StartupReport(None, None).ready()
    assert manager.recv(100) == b"READY=1"


def test_a_process_with_a_launcher_is_not_the_service(manager: socket.socket) -> None:
    ready, report = os.pipe()
    LaunchReport(report).ready()
    with open(ready) as answer:
        assert answer.read() == "ready\n"
    ready, report = os.pipe()
    startup = StartupReport(report, None)
    startup.ready()
    startup.ready()
    with open(ready) as answer:
        assert answer.read() == "ready\n"
    with pytest.raises(BlockingIOError):
        manager.recv(100)


def test_the_manager_keeps_descriptors_by_name_and_hands_them_back_once(manager: socket.socket) -> None:
    memory = os.memfd_create("test")
    store("keep", "device", memory)
    content, [copy], _, _ = socket.recv_fds(manager, 100, 1)
    assert content == b"FDSTORE=1\nFDNAME=device"
    assert os.path.sameopenfile(copy, memory)
    store("drop", "device")
    assert manager.recv(100) == b"FDSTOREREMOVE=1\nFDNAME=device"
    os.close(memory)
    os.close(copy)
    given = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "device:status"}
    assert stored(given) == {"device": 3, "status": 4}
    assert stored({**given, "LISTEN_PID": "1"}) == stored({}) == {}


def test_a_busy_manager_gets_each_descriptor_later(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it has too little for the next processes of a mount, once all have ended."""
    monkeypatch.setattr(service_manager, "SEND_TIMEOUT_S", 0.01)
    fitting = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())
    memory, copies, received, refusals = os.memfd_create("test"), Copies(), list[bytes](), 0
    wanted = {f"page-{number}": (memory, 0.0) for number in range(fitting + 20)}
    for _ in range(len(wanted)):
        try:
            copies.update(store, wanted)
        except TimeoutError:
            refusals += 1
        with suppress(BlockingIOError):
            while True:
                content, [copy], _, _ = socket.recv_fds(manager, 100, 1)
                received.append(content)
                os.close(copy)
    os.close(memory)
    assert refusals and sorted(received) == sorted(b"FDSTORE=1\nFDNAME=%s" % name.encode() for name in wanted)
