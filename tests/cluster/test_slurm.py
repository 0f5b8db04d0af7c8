"""`deploy/slurm/` on a real Slurm of two nodes: a training job under torchrun, and nothing left after any end."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.cluster import Cluster, running_cluster
from lab.job import Stored, store
from lab.machine import Machine
from lab.namespace import wait_for
from lab.network import Network
from lab.slurm import SHARED, USER, USER_ID, Slurm, running_slurm
from tests.support.documents import REPOSITORY
from tests.support.network import skipping

NODES, RANKS = 2, 2
FILES, FILE_BYTES, FILES_PER_CHUNK = 96, 16_384, 8
JOB_TIMEOUT_S = 180.0
SOURCE = "/opt/dieselfs/source"

TRAINING = f"""\
import os, sys
sys.path[:0] = ["{SOURCE}", "{SOURCE}/client", "{SOURCE}/server", "{SOURCE}/tools"]
from lab.reader import content_of
import torch
import torch.distributed as group

group.init_process_group("gloo")
folder, rank, world = sys.argv[-1], group.get_rank(), group.get_world_size()
read = 0
for number in range(rank, {FILES}, world):
    with open(f"{{folder}}/{{number}}", "rb", 65536) as file:
        read += file.read() == content_of(str(number), {FILE_BYTES})
total = torch.tensor(read)
group.all_reduce(total)
if rank == 0:
    print(f"world {{world}} read {{total}}", flush=True)
    with open(f"{{folder}}/.dieselfs/stats") as file:
        print(file.read(), flush=True)
group.destroy_process_group()
"""

READING = """\
#!/bin/bash
# A job that mounts as job.sbatch does, and reads until it is ended.
srun bash -eu <<'NODE'
private=/run/dieselfs-jobs/$SLURM_JOB_ID
export XDG_RUNTIME_DIR=$private
mkdir "$private/photos"
dlcmd mount --job auto photos "$private/photos"
touch "$SLURM_JOB_ID.$SLURMD_NODENAME"
while sleep 0.1; do cat "$private"/photos/* > /dev/null; done
NODE
"""


@dataclass(frozen=True)
class Site:
    cluster: Cluster
    slurm: Slurm
    stored: Stored

    @property
    def variables(self) -> dict[str, str]:
        return {
            "DIESELFS_SERVER": self.cluster.servers,
            "DIESELFS_KEY_FILE": f"{SHARED}/ada.key",
            "DIESELFS_JOB_MEMORY": "64MiB",
        }

    def sent_bytes(self) -> int:
        """Bytes of chunks that the server has sent."""
        with closing(self.cluster.storages[0].server.client()) as client:
            return client.status().metrics["payloads.sent_bytes"]

    def start_reading(self) -> int:
        """A job that reads on all nodes."""
        job = self.slurm.submit(f"--nodes={NODES}", "reading.sbatch", **self.variables)
        started = [self.slurm.folder / f"{job}.{node.host.name}" for node in self.slurm.nodes]

        def all_read() -> bool:
            assert self.slurm.state(job) in ("PENDING", "RUNNING"), self.slurm.output(job)
            return all(path.exists() for path in started)

        wait_for(all_read, "the job reads", JOB_TIMEOUT_S)
        assert all(mounts(node) for node in self.slurm.nodes)
        return job

    def check_nothing_is_left(self) -> None:
        self.slurm.wait_until_idle()
        for node in self.slurm.nodes:
            assert mounts(node) == []
            assert node.run("ls", "-A", "/run/dieselfs-jobs") == ""
            assert node.shell(f"pgrep --uid {USER} --list-full || true") == ""
            assert node.shell("ls -d /tmp/dieselfs-* /tmp/tmp.* 2> /dev/null || true") == ""


def mounts(node: Machine) -> list[str]:
    table = Path(f"/proc/{node.leader}/mountinfo").read_text()
    places = [line.split()[4] for line in table.splitlines()]
    return [place for place in places if place.startswith("/run/dieselfs-jobs")]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with ExitStack() as stack:
        with skipping():
            net = stack.enter_context(Network())
            cluster = stack.enter_context(running_cluster(net, servers=1))
            slurm = stack.enter_context(running_slurm(net, NODES))
        stored = store(cluster, net.host("uploader"), "photos", FILES, FILE_BYTES, FILES_PER_CHUNK)
        key_file = slurm.folder / "ada.key"
        shutil.copyfile(cluster.key_file, key_file)
        key_file.chmod(0o600)
        shutil.chown(key_file, USER_ID, USER_ID)
        (slurm.folder / "train.py").write_text(TRAINING)
        (slurm.folder / "reading.sbatch").write_text(READING)
        program = (
            "#!/bin/sh\nexport LD_LIBRARY_PATH=/opt/dieselfs/base/lib\n"
            'exec /opt/dieselfs/python/bin/python -P -m torch.distributed.run "$@"\n'
        )
        for machine in slurm.nodes:
            machine.write("/opt/dieselfs/bin/torchrun", program, 0o755)
        yield Site(cluster, slurm, stored)


def test_torchrun_reads_over_mounts_that_pool_their_memory(site: Site) -> None:
    """The job of `deploy/`, on four ranks: every byte is right, and the nodes share what they fetch."""
    pytest.importorskip("torch")
    script = str(REPOSITORY / "deploy/slurm/job.sbatch")
    shutil.copy(script, site.slurm.folder)
    fitting = [f"--nodes={NODES}", "--gres=none", "--gpus-per-node=0", "--cpus-per-task=2"]
    sent_bytes = site.sent_bytes()
    job = site.slurm.submit(
        *fitting, "job.sbatch", "photos", "train.py", **site.variables, RANKS_PER_NODE=str(RANKS)
    )
    wait_for(
        lambda: site.slurm.state(job) not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"),
        "the job ends",
        JOB_TIMEOUT_S,
    )
    output = site.slurm.output(job)
    assert site.slurm.state(job) == "COMPLETED", output
    assert f"world {NODES * RANKS} read {FILES}" in output
    assert site.sent_bytes() - sent_bytes < NODES * site.stored.chunk_bytes, (
        "the nodes do not pool their memory"
    )
    site.check_nothing_is_left()


def test_a_cancelled_job_leaves_nothing(site: Site) -> None:
    """Until then root sees its mounts, as an exporter of each node does."""
    job = site.start_reading()
    place = f"/run/dieselfs-jobs/{job}/photos"
    for node in site.slurm.nodes:
        assert f'mountpoint="{place}"' in node.run("dlcmd", "metrics")
        assert '"limit"' in node.run("dlcmd", "why", place, "--since-start", "--json")
    site.slurm.control.run("scancel", str(job))
    site.check_nothing_is_left()
    assert site.slurm.state(job) == "CANCELLED"


def test_a_killed_job_leaves_nothing(site: Site) -> None:
    """All processes of the user at once: the mount stays behind, dead, until the epilog."""
    site.start_reading()
    for node in site.slurm.nodes:
        node.shell(f"pkill -KILL --uid {USER}")
    site.check_nothing_is_left()
