"""A Slurm of its own, on machines of the network: a controller and nodes, with the prolog and the epilog of `deploy/`.

Needs Debian's packages slurmctld, slurmd, slurm-client, munge and systemd-container.
"""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lab.machine import REPOSITORY, Machine, running_machine
from lab.namespace import wait_for
from lab.network import Network, Unsuitable

USER, USER_ID = "ada", 1500
SHARED = "/shared"
"""A folder that all machines have, as a home folder of a cluster."""
START_TIMEOUT_S = 60.0

_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
_SCRIPTS = "/etc/slurm/dieselfs"
_HOME = "/var/lib/home-of-jobs"
_SETTINGS = """\
ClusterName=lab
SlurmctldHost={control}({address})
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmUser=root
ReturnToService=2
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
MpiDefault=none
KillWait=5
Prolog={scripts}/prolog.sh
PrologFlags=Alloc
Epilog={scripts}/epilog.sh
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@dataclass(frozen=True)
class Slurm:
    """`folder`: what all machines see as SHARED."""

    control: Machine
    nodes: Sequence[Machine]
    folder: Path

    def submit(self, *words: str, **variables: str) -> int:
        """`sbatch` as the user, with these variables and the output in SHARED; the number of the job."""
        settings = [f"{name}={value}" for name, value in variables.items()]
        as_user = ["runuser", "-u", USER, "--", "env", "-C", SHARED, *settings]
        answer = self.control.run(*as_user, "sbatch", "--parsable", "--output=%j.out", *words)
        return int(answer)

    def state(self, job: int) -> str:
        """As `COMPLETED` or `CANCELLED`."""
        shown = self.control.run("scontrol", "show", "job", str(job))
        [state] = re.findall(r"JobState=(\w+)", shown)
        return str(state)

    def output(self, job: int) -> str:
        path = self.folder / f"{job}.out"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def is_idle(self) -> bool:
        """Whether all nodes are, and none is drained or completing."""
        states = self.control.run("sinfo", "--noheader", "--Node", "--format=%T").split()
        return states == ["idle"] * len(self.nodes)

    def wait_until_idle(self) -> None:
        wait_for(self.is_idle, "all nodes of Slurm are idle", START_TIMEOUT_S)


@contextmanager
def running_slurm(net: Network, nodes: int, binds: Mapping[Path, str] | None = None) -> Iterator[Slurm]:
    """A controller and nodes until the end of the block. Raises Unsuitable."""
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        raise Unsuitable(f"needs {', '.join(missing)}: apt-get install slurmctld slurmd slurm-client munge")
    folder = net.folder / "shared"
    folder.mkdir()
    shutil.chown(folder, USER_ID, USER_ID)
    names = ["control", *(f"node-{number + 1}" for number in range(nodes))]
    with ExitStack() as stack:
        shown = {folder: SHARED, **(binds or {})}
        hosts = [net.host(name) for name in names]
        machines = [stack.enter_context(running_machine(host, shown)) for host in hosts]
        known = "".join(f"{host.address} {host.name}\n" for host in net.hosts)
        settings = _SETTINGS.format(
            control=names[0],
            address=hosts[0].address,
            scripts=_SCRIPTS,
            nodes="\n".join(f"NodeName={host.name} NodeAddr={host.address} CPUs=2" for host in hosts[1:]),
        )
        for machine in machines:
            machine.write("/etc/hosts", f"127.0.0.1 localhost\n{known}")
            machine.write("/etc/slurm/slurm.conf", settings)
            for script in ("prolog.sh", "epilog.sh"):
                machine.write(
                    f"{_SCRIPTS}/{script}", (REPOSITORY / "deploy/slurm" / script).read_text(), 0o755
                )
            machine.shell(
                # A machine starts with this machine's accounts, in a copy of its own.
                f"sed -i -E '/^{USER}:/d; /^[^:]*:[^:]*:{USER_ID}:/d' /etc/passwd /etc/group\n"
                f"sed -i '/^{USER}:/d' /etc/shadow /etc/gshadow\n"
                f"useradd --create-home --home-dir {_HOME} --uid {USER_ID} {USER}\n"
                "mkdir -p /var/spool/slurmctld /var/spool/slurmd\n"
                f"systemctl start munge {'slurmctld' if machine is machines[0] else 'slurmd'}"
            )
        slurm = Slurm(machines[0], machines[1:], folder)
        wait_for(partial(_answers, slurm), "slurmctld answers", START_TIMEOUT_S)
        slurm.wait_until_idle()
        yield slurm


def _answers(slurm: Slurm) -> bool:
    return "is UP" in slurm.control.shell("scontrol ping || true")
