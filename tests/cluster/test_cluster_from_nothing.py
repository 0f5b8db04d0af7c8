"""`deploy/cluster/`: three servers with Ceph, Redis Cluster and etcd from nothing, on machines with systemd. Readers
notice neither an upgrade of all servers nor the loss of one: no read fails.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import pytest

from dieselfs.limits import READ_TIMEOUT_S
from lab.job import DLCMD, JobNode
from lab.load import Verdict, load
from lab.machine import Machine, running_machine
from lab.network import Host, Network, Unsuitable, clear
from lab.reader import content_of
from tests.support.ceph import missing_ceph
from tests.support.documents import REPOSITORY
from tests.support.network import skipping

FILES, FILE_BYTES = 600, 65_536
MEMORY = "12MiB"
"""A third of the files: readers need the servers all the time."""
READERS, FILES_PER_S = 2, 20.0
UP_TIMEOUT_S = 300.0
NEEDED = ("redis-server", "redis-cli", "etcd", "ceph-mon", "ceph-osd", "ceph")


@dataclass(frozen=True)
class Site:
    machines: list[Machine]
    client: Host
    folder: Path

    @property
    def addresses(self) -> list[str]:
        return [machine.host.address for machine in self.machines]

    def script(self, name: str) -> None:
        """Run a script of `deploy/cluster`, with `on` in place of SSH."""
        variables = {
            "ON": str(self.folder / "on"),
            "SECRETS": str(self.folder / "secrets"),
            "PATH": os.environ["PATH"],
        }
        words = [str(REPOSITORY / "deploy/cluster" / name), *self.addresses]
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=UP_TIMEOUT_S, env=variables
        )
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"

    def dlcmd(self, *words: str | Path) -> str:
        servers = ",".join(f"{address}:2379" for address in self.addresses)
        key_file = self.folder / "secrets/admin.key"
        return self.client.run([*DLCMD, "--server", f"etcd://{servers}", "--key-file", key_file, *words])


def write_ssh(path: Path, machines: list[Machine]) -> None:
    """A program that is called as `ssh ADDRESS WORD...`, and gives the words to a shell there, as SSH does."""
    cases = [
        f'{machine.host.address}) shift; exec {" ".join(map(quote, machine.words(["sh", "-c"])))} "$*" ;;'
        for machine in machines
    ]
    path.write_text("#!/bin/sh\ncase $1 in\n" + "\n".join(cases) + "\nesac\nexit 255\n")
    path.chmod(0o755)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with ExitStack() as stack:
        with skipping():
            if (reason := missing_ceph()) is not None:
                raise Unsuitable(reason)
            net = stack.enter_context(Network())
            hosts = [net.host(f"storage-{number + 1}") for number in range(3)]
            machines = [stack.enter_context(running_machine(host)) for host in hosts]
        site = Site(machines, net.host("node"), net.folder)
        write_ssh(net.folder / "on", machines)
        for _ in range(2):  # the second time, all is there
            site.script("up.sh")
        yield site


@pytest.fixture
def node(site: Site) -> Iterator[JobNode]:
    """With a dataset that its memory cannot hold."""
    tree = site.folder / "photos"
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


def test_readers_notice_neither_an_upgrade_nor_a_lost_server(site: Site, node: JobNode) -> None:
    with load([node], READERS, files_per_s=FILES_PER_S) as readers:

        def seen(since_s: float = 0.0) -> Verdict:
            readers.wait_for_reads([node], 40)
            return readers.verdict([node], since_s)

        assert seen().failures == ()
        site.script("rolling-upgrade.sh")
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
    print(upgraded, killed, lost)  # the figures of docs/guide/operations.md: pytest -rP
    site.dlcmd("put", "-q", "-r", f"{site.folder}/photos/", "dl://written-after-the-loss/")
    assert len(site.dlcmd("ls", "written-after-the-loss").splitlines()) == FILES
