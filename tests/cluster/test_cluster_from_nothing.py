"""`deploy/cluster/`: three servers with Ceph, Redis Cluster and etcd from nothing, on machines with systemd and without
Internet. An administrator's host reaches them by SSH, and installs the wheel of this checkout. Readers notice neither
an upgrade of all servers nor the loss of one: no read fails.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from dieselfs.limits import READ_TIMEOUT_S
from lab.ceph import missing_ceph
from lab.job import DLCMD, JobNode
from lab.load import Verdict, load
from lab.machine import Machine, running_machine
from lab.namespace import wait_for
from lab.network import Host, Network, Unsuitable, clear
from lab.reader import content_of
from lab.ssh import connect
from tests.support.documents import REPOSITORY
from tests.support.network import skipping

FILES, FILE_BYTES = 600, 65_536
MEMORY = "12MiB"
"""A third of the files: readers need the servers all the time."""
READERS, FILES_PER_S = 2, 20.0
UP_TIMEOUT_S = 300.0
PYTHON = "/usr/bin/python3"
"""The one that machines make the environment of dieselfs with."""
INSTALLED = "/opt/dieselfs"
"""The first machine makes it, with `install.sh`. The others get a copy: that is quicker."""
SOURCES = (
    *("LICENSE", "README.md", "pyproject.toml", "completions", "deploy", "man"),
    *("dieselfs", "client", "server", "tools"),
)


@dataclass(frozen=True)
class Site:
    """`admin`: the host where scripts run; `ssh`: how it reaches the machines; `wheels`: what they install."""

    machines: list[Machine]
    admin: Host
    ssh: list[str]
    client: Host
    wheels: Path

    @property
    def addresses(self) -> list[str]:
        return [machine.host.address for machine in self.machines]

    @property
    def secrets(self) -> Path:
        return self.admin.folder / "secrets"

    def script(self, name: str, package: Path | str = "", machine: Machine | None = None) -> None:
        """Run a script of `deploy/cluster` for one machine or all."""
        variables = {"ON": " ".join(self.ssh), "PACKAGE": str(package), "SECRETS": str(self.secrets)}
        addresses = [machine.host.address] if machine else self.addresses
        words = [str(REPOSITORY / "deploy/cluster" / name), *addresses]
        self.admin.run(words, env=self.admin.environment(**variables), timeout=UP_TIMEOUT_S)

    def has_noticed_the_loss(self) -> bool:
        """Ceph has marked a disk as lost. False also without an answer: a monitor is lost, too."""
        ask = "timeout 20 ceph --keyring /etc/ceph/ceph.keyring -f json osd stat || echo {}"
        disks = json.loads(self.machines[1].run("sh", "-c", ask))
        return bool(disks.get("num_up_osds", len(self.machines)) < len(self.machines))

    def has_put_photos(self) -> bool:
        try:
            self.dlcmd("put", "-q", "-r", f"{self.client.folder}/photos/", "dl://written-after-the-loss/")
        except AssertionError as error:
            if "object store" not in str(error) or "timed out" not in str(error):
                raise
            return False
        return True

    def dlcmd(self, *words: str | Path) -> str:
        """As a user who has copied the folder for clients."""
        environment = self.client.environment(XDG_CONFIG_HOME=str(self.client.folder / "home/.config"))
        return self.client.run([*DLCMD, *words, "--key-file", self.secrets / "admin.key"], env=environment)


def pip(*words: str | Path) -> str:
    """What it complains about; empty if it succeeded."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        PYTHON,
        *map(str, words),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=UP_TIMEOUT_S)
    return done.stderr[-1000:] or f"exit {done.returncode}" if done.returncode != 0 else ""


def make_wheels(folder: Path) -> Path:
    """The wheel of this checkout and those that it needs. Raises Unsuitable if some cannot be downloaded."""
    source, wheels = folder / "source", folder / "wheels"
    source.mkdir()
    for name in SOURCES:
        place = REPOSITORY / name
        if place.is_dir():
            shutil.copytree(place, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(place, source)
    fault = pip("wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, source)
    assert not fault, fault
    (wheel,) = wheels.iterdir()
    fault = pip("download", "--quiet", "--only-binary", ":all:", "--dest", wheels, f"{wheel}[etcd]")
    if "No matching distribution" in fault or "ConnectionError" in fault:
        raise Unsuitable(f"not all packages are to be had here: {fault}")
    assert not fault, fault
    return wheels


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with ExitStack() as stack:
        with skipping():
            if (reason := missing_ceph()) is not None:
                raise Unsuitable(reason)
            net = stack.enter_context(Network())
            wheels = make_wheels(net.folder)
            hosts = [net.host(f"storage-{number + 1}") for number in range(3)]
            machines = [stack.enter_context(running_machine(host, is_bare=True)) for host in hosts]
            admin, client = net.host("admin"), net.host("node")
            ssh = connect(admin, machines)
        site = Site(machines, admin, ssh, client, wheels)
        site.script("install.sh", wheels, machines[0])
        for machine in machines[1:]:
            subprocess.run(["cp", "-a", machines[0].path(INSTALLED), machine.path(INSTALLED)], check=True)
        site.script("up.sh")
        site.script("up.sh")  # all is there
        shutil.copytree(site.secrets / "client", client.folder / "home/.config/dieselfs")
        yield site


@pytest.fixture
def node(site: Site) -> Iterator[JobNode]:
    """With a dataset that its memory cannot hold."""
    tree = site.client.folder / "photos"
    tree.mkdir()
    for number in range(FILES):
        (tree / str(number)).write_bytes(content_of(str(number), FILE_BYTES))
    site.dlcmd("put", "-q", "-r", f"{tree}/", "dl://photos/")
    place = site.client.folder / "mount"
    place.mkdir()
    try:
        site.dlcmd("mount", "photos", place, "-o", f"memory={MEMORY}")
        yield JobNode(site.client, 0, place)
    finally:
        clear(place)


@pytest.mark.timeout(1200)  # with the installation of three machines, under other load
def test_readers_notice_neither_an_upgrade_nor_a_lost_server(site: Site, node: JobNode) -> None:
    with load([node], READERS, files_per_s=FILES_PER_S) as readers:

        def seen(since_s: float = 0.0) -> Verdict:
            readers.wait_for_reads([node], 40)
            return readers.verdict([node], since_s)

        assert seen().failures == ()
        site.script("rolling-upgrade.sh", site.wheels)
        upgraded = seen()
        assert upgraded.failures == ()
        for machine in site.machines:
            machine.run("systemctl", "kill", "--signal=KILL", "--kill-whom=main", "dieselfs-server")
        killed = seen()
        assert killed.failures == ()
        site.machines[0].host.kill()  # with its part of Ceph, Redis Cluster and etcd
        lost = seen()
        assert lost.failures == ()
        assert lost.worst_s < READ_TIMEOUT_S
        assert lost.reads > killed.reads > upgraded.reads
    print(upgraded, killed, lost)  # the figures of docs/guide/several-servers.md: pytest -rP
    # A put waits for 10 s at each server. Ceph may need minutes on a loaded machine: to notice the loss, and then until
    # the other disks take writes for its pool. A user repeats the command meanwhile.
    wait_for(site.has_noticed_the_loss, "Ceph has noticed the loss", READ_TIMEOUT_S * 4)
    wait_for(site.has_put_photos, "Ceph takes writes", READ_TIMEOUT_S * 4)
    assert len(site.dlcmd("ls", "written-after-the-loss").splitlines()) == FILES
