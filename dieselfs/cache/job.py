"""Which job a process belongs to, and its place in it: from options, or from what launchers put into the environment.

No I/O. Slurm, torchrun and Open MPI are known. The rank comes from the launcher that started the process last, because
training code asks that one; the name from the first, because only that one's is the same on all nodes for sure.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dieselfs.cache.member import RANK_MAX, check_job_name, check_node_name
from dieselfs.errors import InvalidInput
from dieselfs.limits import JOB_NAME_CHARACTERS_MAX, MIB, MOUNT_MEMORY_BYTES_MIN
from dieselfs.sizes import parse_size

AUTO = "auto"
"""As a job's name: the one that the launcher gives it."""

_Environment = Mapping[str, str]

_RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
"""torchrun, Open MPI, Slurm."""
_STATIC_RUN = "none"
"""What torchrun calls every run that was not given a name."""


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What a program is told of its job; what it is not told is found out (`find_job`).

    - `name`: `auto` for that of the launcher, None for no job
    - `secret`: a file with the secret of the job, found again after a change of folder; None: from the user's key
    - `memory_bytes`: what this node offers for chunks; 0 for 1 GiB, or less where the system allows less
    - `nodes`: how many there are, which are waited for; 0 for what the launcher says
    - `node`, `host`: what this node is called, and the address at which the others reach it
    """

    name: str | None = None
    secret: str | None = None
    memory_bytes: int = 0
    nodes: int = 0
    node: str | None = None
    host: str | None = None

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "JobSettings":
        """From settings called `job`, `job_secret` and so on, which are text. Raises InvalidInput."""
        secret = settings.get("job_secret")
        return cls(
            settings.get("job"),
            secret and found_again(secret),
            _memory_bytes(settings.get("job_memory", "0")),
            _number(settings, "job_nodes", _in_environment("job_nodes")) if "job_nodes" in settings else 0,
            settings.get("job_node"),
            settings.get("job_host"),
        )

    def is_in_force(self, environment: _Environment) -> bool:
        """Whether there is a job: `auto` is none for what no launcher has started."""
        return bool(self.name) and (self.name != AUTO or _name_in(environment) is not None)


def _in_environment(setting: str) -> str:
    return f" (in the environment: DIESELFS_{setting.upper()})"


def _memory_bytes(text: str) -> int:
    where = "job_memory" + _in_environment("job_memory")
    try:
        memory_bytes = parse_size(text)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from None
    if 0 < memory_bytes < MOUNT_MEMORY_BYTES_MIN:
        raise InvalidInput(f"{where} is {text}, and must be at least {MOUNT_MEMORY_BYTES_MIN // MIB}MiB")
    return memory_bytes


def found_again(path: str) -> str:
    """The same file after a change of folder; `~` stays for whoever opens it."""
    return path if path.startswith("~") else os.path.abspath(path)


JOB_SETTINGS = frozenset(("job", "job_secret", "job_memory", "job_nodes", "job_node", "job_host"))


@dataclass(frozen=True, slots=True)
class Job:
    """A process's place in its job: `rank` of `size` processes, on `node`."""

    name: str
    rank: int
    size: int
    node: str


def find_job(
    environment: _Environment,
    host: str,
    name: str | None = None,
    rank: int | None = None,
    size: int | None = None,
    node: str | None = None,
) -> Job | None:
    """The job that options and the environment speak of; None if they name no job.

    Options go before the environment, and `host` is the node unless something else is said. Raises InvalidInput.
    """
    found_name = name if name is not None else _name_in(environment)
    if found_name is None:
        if rank is not None or size is not None:
            raise InvalidInput("a rank without a job: give the job a name as well")
        return None
    found_rank, found_size = _place_in(environment)
    if rank is None:
        rank = found_rank
    elif size is None:  # the environment's is about its own rank
        size = max(found_size, rank + 1)
    size = found_size if size is None else size
    if not 0 <= rank < size <= RANK_MAX + 1:
        raise InvalidInput(f"job {found_name}: there is no rank {rank} among {size} processes")
    return Job(check_job_name(found_name), rank, size, check_node_name(node or _node_in(environment) or host))


def _name_in(environment: _Environment) -> str | None:
    if number := environment.get("SLURM_JOB_ID"):
        return _joined("slurm", environment.get("SLURM_CLUSTER_NAME"), number)
    run = environment.get("TORCHELASTIC_RUN_ID")
    if run and run != _STATIC_RUN:
        return _joined("torchrun", run)
    if "RANK" in environment and (host := environment.get("MASTER_ADDR")):
        return _joined("torchrun", host, environment.get("MASTER_PORT"))
    namespace = environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid")
    return _joined("mpi", namespace) if namespace else None


def _joined(*parts: str | None) -> str:
    """A name that a job may have; launchers put characters into theirs that we do not."""
    joined = "-".join(part for part in parts if part)
    return re.sub(r"[^A-Za-z0-9._-]", "-", joined)[:JOB_NAME_CHARACTERS_MAX]


def _place_in(environment: _Environment) -> tuple[int, int]:
    """`(rank, size)`; the only process if nothing is said."""
    for rank_name, size_name in _RANKS:
        if rank_name in environment:
            rank = _number(environment, rank_name)
            return rank, _number(environment, size_name) if size_name in environment else rank + 1
    return 0, 1


def _number(environment: _Environment, name: str, where: str = " in the environment") -> int:
    text = environment[name]
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise InvalidInput(f"{name}{where} is {text[:40]!r}, and should be a number")
    return int(text)


def _node_in(environment: _Environment) -> str | None:
    return environment.get("SLURMD_NODENAME")


def count_nodes(environment: _Environment) -> int:
    """How many nodes the launcher has started the job on; 0 if it does not say. Raises InvalidInput."""
    for name in ("GROUP_WORLD_SIZE", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"):
        if name in environment:
            return _number(environment, name)
    for size, local in (
        ("WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ):
        if size in environment and local in environment:
            return -(-_number(environment, size) // max(_number(environment, local), 1))
    return 0
