"""A real Ceph cluster of one monitor and some OSDs in memory, which starts in a few seconds, and always ends. With a
metadata server it has a file system (CephFS) too.

Its content is lost when it ends. Needs Debian's packages ceph-mon, ceph-osd and python3-rados, for files also ceph-mds.
"""

import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dieselfs.errors import InvalidInput
from dieselfs_server.store.rados_pool import load_librados
from lab.namespace import wait_for
from lab.ports import HOST, free_port

COMMAND_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
USER = "client.dieselfs"
FILES = "files"
"""The name of the file system."""
NONE, CEPHX = "none", "cephx"

_PROGRAMS = (
    ("ceph-mon", "ceph-mon"),
    ("ceph-osd", "ceph-osd"),
    ("ceph", "ceph-common"),
    ("setpriv", "util-linux"),
)
"""Required programs, each with its Debian package."""

_SETTINGS = """\
[global]
fsid = {fsid}
mon_host = [v2:{address}:{port}/0]
public_addr = {address}
auth_cluster_required = {authentication}
auth_service_required = {authentication}
auth_client_required = {authentication}
auth_allow_insecure_global_id_reclaim = false
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_allow_pool_delete = true
mon_data_avail_crit = 1
paxos_propose_interval = 0.1
osd_heartbeat_interval = 1
osd_heartbeat_grace = 60
run_dir = {folder}
log_file = {folder}/$name.log
log_to_stderr = false
admin_socket = {folder}/$name.asok
mon_data = {folder}/mon
osd_data = {folder}/osd.$id
osd_objectstore = memstore
memstore_device_bytes = {capacity_bytes}
keyring = {folder}/keyring
"""


@dataclass(frozen=True)
class RunningCeph:
    folder: Path
    mon: subprocess.Popen[bytes]
    osd: subprocess.Popen[bytes]

    @property
    def conf(self) -> str:
        return f"{self.folder}/ceph.conf"

    def url(self, pool: str, user: str = USER) -> str:
        return f"rados://{pool}?conf={self.conf}&user={user}"

    def command(self, *arguments: str) -> str:
        """Run `ceph` as the administrator."""
        return run_command(["ceph", "-c", self.conf, "--connect-timeout", "20", *arguments])

    def make_pool(self, name: str) -> None:
        self.command("osd", "pool", "create", name, "8", "8")

    def make_erasure_coded_pool(self, name: str) -> None:
        """Of two parts of data and one of parity: for three OSDs."""
        self.command("osd", "erasure-code-profile", "set", "sites", "k=2", "m=1", "crush-failure-domain=osd")
        self.command("osd", "pool", "create", name, "8", "8", "erasure", "sites")

    def object_names(self, pool: str, namespace: str = "") -> list[str]:
        return sorted(run_command(["rados", "-c", self.conf, "-p", pool, "-N", namespace, "ls"]).splitlines())

    @contextmanager
    def hung(self) -> Iterator[None]:
        """In this block the OSD does not answer; its connections stay open."""
        self.osd.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.osd.pid, os.WSTOPPED | os.WNOWAIT)  # until then, some threads still answer
        try:
            yield
        finally:
            self.osd.send_signal(signal.SIGCONT)


def missing_ceph() -> str | None:
    """The reason why no cluster can run here; None if one can."""
    for program, package in _PROGRAMS:
        if shutil.which(program) is None:
            return f"{program} is not installed (package {package})"
    try:
        load_librados()
    except InvalidInput as error:
        return str(error)
    return None


@contextmanager
def running_ceph(
    folder: Path,
    authentication: str = NONE,
    capacity_bytes: int = 1 << 30,
    address: str = HOST,
    osds: int = 1,
    rights: Mapping[str, str] | None = None,
) -> Iterator[RunningCeph]:
    """A cluster, which is always stopped at the end of the block. `folder` must be new or empty. `address`: of its
    daemons, in the network namespace of this thread. `osds`: their number; erasure coding needs three. `rights`: of
    further users at OSDs.
    """
    identity, port = str(uuid.uuid4()), free_port()
    for place in (folder, folder / "mon", *(folder / f"osd.{number}" for number in range(osds))):
        place.mkdir(parents=True, exist_ok=True)
    conf = folder / "ceph.conf"
    conf.write_text(
        _SETTINGS.format(
            fsid=identity,
            address=address,
            port=port,
            authentication=authentication,
            folder=folder,
            capacity_bytes=capacity_bytes,
        )
    )
    _make_keys(folder / "keyring", osds, {USER: "allow rw pool=data", **(rights or {})})
    monmap = str(folder / "monmap")
    run_command(
        ["monmaptool", "--create", "--fsid", identity, "--addv", "a", f"[v2:{address}:{port}]", monmap]
    )
    mon, osd = ["ceph-mon", "-c", str(conf), "-i", "a"], ["ceph-osd", "-c", str(conf), "-i"]
    run_command([*mon, "--mkfs", "--monmap", monmap, "--keyring", str(folder / "keyring")])
    with ExitStack() as stack:
        mon_process = stack.enter_context(running_daemon([*mon, "-f"], folder / "mon.out"))
        processes = []
        for number in map(str, range(osds)):
            osd_identity = str(uuid.uuid4())
            run_command(["ceph", "-c", str(conf), "--connect-timeout", "20", "osd", "new", osd_identity])
            run_command([*osd, number, "--mkfs", "--osd-uuid", osd_identity])
            daemon = running_daemon([*osd, number, "-f"], folder / f"osd.{number}.out")
            processes.append(stack.enter_context(daemon))
        yield RunningCeph(folder, mon_process, processes[0])


@contextmanager
def running_files(ceph: RunningCeph) -> Iterator[subprocess.Popen[bytes]]:
    """The metadata server of a new file system of the cluster, until the end of the block."""
    for pool in (f"{FILES}.metadata", f"{FILES}.data"):
        ceph.make_pool(pool)
    ceph.command("fs", "new", FILES, f"{FILES}.metadata", f"{FILES}.data")
    server = ["ceph-mds", "-c", ceph.conf, "-i", "a", "-f"]
    with running_daemon(server, ceph.folder / "mds.out") as process:
        wait_for(lambda: "up:active" in ceph.command("mds", "stat"), "ceph-mds is active", COMMAND_TIMEOUT_S)
        yield process


def _make_keys(keyring: Path, osds: int, users: Mapping[str, str]) -> None:
    everything = [
        "--cap",
        "mon",
        "allow *",
        "--cap",
        "osd",
        "allow *",
        "--cap",
        "mgr",
        "allow *",
        "--cap",
        "mds",
        "allow *",
    ]
    rights = {
        "mon.": ["--cap", "mon", "allow *"],
        "client.admin": everything,
        **{
            f"osd.{number}": ["--cap", "mon", "allow profile osd", "--cap", "osd", "allow *"]
            for number in range(osds)
        },
        "mds.a": ["--cap", "mon", "allow profile mds", "--cap", "osd", "allow *", "--cap", "mds", "allow"],
        **{name: ["--cap", "mon", "allow r", "--cap", "osd", caps] for name, caps in users.items()},
    }
    keyring.touch(mode=0o600)
    for name, caps in rights.items():
        run_command(["ceph-authtool", str(keyring), "--gen-key", "-n", name, *caps])
    # The monitor reads the users from here when it makes its store.


@contextmanager
def running_daemon(command: Sequence[str], output: Path) -> Iterator[subprocess.Popen[bytes]]:
    with open(output, "wb") as log:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command],  # also if the test is killed
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run_command(command: Sequence[str]) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, (
        f"{' '.join(command)}: exit code {done.returncode}: {done.stderr}{done.stdout}"
    )
    return done.stdout
