"""The units of `deploy/systemd/` under a real systemd, on machines of their own: a server, and a node that mounts.

Installed as `deploy/README.md` says. What ends by itself starts again, timers do their work, and nothing is left.
"""

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.machine import Machine, running_machine
from lab.namespace import wait_for
from lab.network import Network
from tests.support.documents import REPOSITORY
from tests.support.network import skipping

UNITS = REPOSITORY / "deploy/systemd"
SERVER, MOUNT = "dieselfs-server", "dieselfs-mount@letters"
DLCMD = "dlcmd --server unix:/run/dieselfs/server.sock"
START_TIMEOUT_S = 60.0
CONTENT = b"content\n" * 1000


@dataclass(frozen=True)
class Site:
    storage: Machine
    node: Machine

    def mounted(self) -> Path:
        return self.node.path("/data/letters")

    def reads(self) -> bool:
        try:
            return (self.mounted() / "a").read_bytes() == CONTENT
        except OSError:
            return False


def install(machine: Machine, *units: str) -> None:
    for unit in units:
        machine.write(f"/etc/systemd/system/{unit}", (UNITS / unit).read_text())
    machine.run("systemctl", "daemon-reload")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A server with a dataset, and a node that has it mounted."""
    with ExitStack() as stack:
        with skipping():
            net = stack.enter_context(Network())
            lustre = net.folder / "lustre"
            lustre.mkdir()
            storage_host, node_host = net.host("storage-1"), net.host("node-1")
            storage = stack.enter_context(running_machine(storage_host, {lustre: "/lustre"}))
            node = stack.enter_context(running_machine(node_host))
        config = (REPOSITORY / "deploy/server.toml").read_text()
        storage.write("/etc/dieselfs/server.toml", config.replace("127.0.0.1", storage_host.address))
        storage.shell("useradd --system dieselfs; install -d -o dieselfs -m 700 /lustre/dieselfs")
        storage.shell(
            "install -d -o dieselfs -m 700 /var/lib/dieselfs /etc/dieselfs/keys /run/dieselfs\n"
            "runuser -u dieselfs -- dieselfs-server --config /etc/dieselfs/server.toml --init 2> /tmp/log &\n"
            "until grep 'listening on unix' /tmp/log; do sleep 0.1; done; kill %1; wait"
        )
        install(storage, *(unit.name for unit in UNITS.iterdir()))
        storage.run("systemctl", "enable", "--now", f"{SERVER}.service")
        storage.write("/root/letters/a", CONTENT.decode())
        storage.shell(f"{DLCMD} put -q -r /root/letters/ dl://letters/")
        key = storage.path("/etc/dieselfs/keys/admin.key").read_text()
        node.write("/etc/dieselfs/node.key", key, 0o600)
        node.write("/etc/dieselfs/config.toml", f'server = "tcp://{storage_host.address}:7070"\n')
        install(node, "dieselfs-mount@.service")
        node.shell(f"mkdir -p /data/letters; systemctl enable --now {MOUNT}")
        yield Site(storage, node)


def main_process(machine: Machine, unit: str) -> int:
    return int(machine.property_of(unit, "MainPID"))


def wait_until_active(machine: Machine, unit: str) -> None:
    wait_for(
        lambda: machine.property_of(unit, "ActiveState") == "active", f"{unit} is active", START_TIMEOUT_S
    )


def test_a_service_that_has_started_can_be_used(site: Site) -> None:
    """`Type=notify`: the mount is there when `systemctl start` returns."""
    assert site.reads()
    for _ in range(2):
        site.storage.run("systemctl", "restart", SERVER)
        site.storage.shell(f"{DLCMD} server status > /dev/null")


@pytest.mark.parametrize("runtime", [(), ("env", "XDG_RUNTIME_DIR=/run/user/0")], ids=["service", "login"])
def test_root_sees_the_daemons_of_the_units(site: Site, runtime: tuple[str, ...]) -> None:
    assert site.reads()
    assert 'mountpoint="/data/letters"' in site.node.run(*runtime, "dlcmd", "metrics")
    assert '"limit"' in site.node.run(*runtime, "dlcmd", "why", "/data/letters", "--since-start", "--json")
    assert 'component="server"' in site.storage.run(*runtime, "dlcmd", "metrics")


def test_another_user_is_told_who_sees_a_mount(site: Site) -> None:
    said = site.node.shell("runuser -u nobody -- dlcmd why /data/letters --since-start 2>&1 || true")
    assert "sudo dlcmd why /data/letters" in said


def test_the_server_has_an_address_for_prometheus(site: Site) -> None:
    url = f"http://{site.storage.host.address}:9568/metrics"
    assert "dieselfs_uptime_seconds" in site.node.run("curl", "--silent", "--fail", url)


def test_a_killed_server_starts_again(site: Site) -> None:
    before = main_process(site.storage, SERVER)
    site.storage.run("systemctl", "kill", "--signal=KILL", "--kill-whom=main", SERVER)
    wait_for(lambda: main_process(site.storage, SERVER) not in (0, before), "another server", START_TIMEOUT_S)
    wait_until_active(site.storage, SERVER)
    site.storage.shell(f"{DLCMD} server status > /dev/null")


def supervision(site: Site) -> dict[str, object]:
    [mount] = [
        line
        for line in map(json.loads, site.node.run("dlcmd", "mounts", "--json").splitlines())
        if "mountpoint" in line
    ]
    return dict(mount)


@pytest.mark.parametrize("which", ["daemon", "process"])
def test_a_killed_process_of_a_mount_is_replaced_without_systemd(site: Site, which: str) -> None:
    """`process`: the supervisor, which systemd started."""
    before = supervision(site)
    site.node.run("kill", "-KILL", str(before[which]))
    wait_for(
        lambda: supervision(site)[which] not in (None, before[which]), f"another {which}", START_TIMEOUT_S
    )
    wait_for(site.reads, "the file is read")
    assert site.node.property_of(MOUNT, "ActiveState") == "active"
    assert site.node.property_of(MOUNT, "NRestarts") == "0"


def test_an_upgrade_keeps_files_open(site: Site) -> None:
    before = supervision(site)
    with open(site.mounted() / "a", "rb") as file:
        site.node.run("dlcmd", "upgrade", "-q", "/data/letters")
        assert file.read() == CONTENT
    after = supervision(site)
    assert after["daemon"] != before["daemon"] and after["upgrades"] == 1


@pytest.mark.parametrize("time", ["first", "second"])
def test_a_mount_without_processes_continues_with_its_open_files(site: Site, time: str) -> None:
    """systemd has kept what the next processes need; the second time, from those that it has given it to before."""
    before, device = main_process(site.node, MOUNT), os.stat(site.mounted()).st_dev
    folder = os.open(site.mounted(), os.O_RDONLY | os.O_DIRECTORY)
    with open(site.mounted() / "a", "rb") as file:
        site.node.run("systemctl", "kill", "--signal=KILL", "--kill-whom=all", MOUNT)
        info = json.loads((site.mounted() / ".dieselfs/info").read_bytes())  # waits for the next daemon
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert file.read() == CONTENT
    assert info["dataset"] == "letters" and os.listdir(folder) == ["a"]
    os.close(folder)
    wait_for(lambda: main_process(site.node, MOUNT) not in (0, before), "another process", START_TIMEOUT_S)
    wait_until_active(site.node, MOUNT)
    assert os.stat(site.mounted()).st_dev == device and site.reads()


def test_a_stopped_mount_leaves_nothing(site: Site) -> None:
    site.node.run("systemctl", "stop", MOUNT)
    assert os.listdir(site.mounted()) == []
    assert site.node.property_of(MOUNT, "Result") == "success"
    assert "dieselfs" not in site.node.run("ps", "-eo", "args")
    site.node.run("systemctl", "start", MOUNT)
    assert site.reads()


@pytest.mark.parametrize("name", ["purge", "fsck", "backup"])
def test_timers_do_their_work(site: Site, name: str) -> None:
    """The timer is due now."""
    unit = f"dieselfs-{name}"
    due = "[Timer]\nOnCalendar=\nOnActiveSec=0\nRandomizedDelaySec=0\nAccuracySec=1ms\n"
    site.storage.write(f"/etc/systemd/system/{unit}.timer.d/now.conf", due)
    site.storage.shell(f"systemctl daemon-reload; systemctl enable --now {unit}.timer")
    ended = "ExecMainExitTimestampMonotonic"
    wait_for(lambda: site.storage.property_of(unit, ended) not in ("", "0"), f"{unit} ran", START_TIMEOUT_S)
    assert site.storage.property_of(unit, "Result") == "success", site.storage.journal(unit)
    if name == "backup":
        [copy] = site.storage.path("/var/lib/dieselfs/backups").iterdir()
        assert {path.name for path in copy.iterdir()} == {"records", "metadata.db"}


def test_fsck_that_finds_damage_is_a_failed_unit(site: Site) -> None:
    [chunk] = [path for path in site.storage.path("/lustre/dieselfs").rglob("*") if is_chunk(path)]
    content = chunk.read_bytes()
    os.truncate(chunk, len(content) - 1)
    try:
        site.storage.run("systemctl", "start", "dieselfs-fsck", exit_code=1)
        assert "not repaired" in site.storage.journal("dieselfs-fsck")
    finally:
        chunk.write_bytes(content)
    site.storage.run("systemctl", "start", "dieselfs-fsck")


def is_chunk(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > len(CONTENT) and "records" not in path.parts


def test_the_server_is_confined(site: Site) -> None:
    """Of the kernel's view: no capability, a filter of system calls, and its own /tmp."""
    status = site.storage.path(f"/proc/{main_process(site.storage, SERVER)}/status").read_text()
    assert re.search(r"^CapBnd:\s+0+$", status, re.MULTILINE)
    assert re.search(r"^Seccomp:\s+2$", status, re.MULTILINE) and re.search(
        r"^NoNewPrivs:\s+1$", status, re.MULTILINE
    )
    assert "systemd-private" in site.storage.run("ls", "/tmp")


def test_a_stop_is_clean(site: Site) -> None:
    site.storage.run("systemctl", "stop", SERVER)
    assert site.storage.property_of(SERVER, "Result") == "success"
    assert "stopping: " + signal.SIGTERM.name in site.storage.journal(SERVER)
