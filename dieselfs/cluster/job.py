"""The job of a process, and its place in the job: from options, or from the environment that launchers set.

No I/O. Slurm, torchrun and Open MPI are known. The rank comes from the innermost launcher, which training code uses;
the name from the outermost, whose name is certain to be the same on all nodes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from dieselfs.cluster.member import RANK_MAX, check_job_name, check_node_name
from dieselfs.errors import InvalidInput
from dieselfs.limits import JOB_NAME_CHARACTERS_MAX
from dieselfs.settings.table import AUTO, BY_NAME, JOB_FIELDS, JobSettings

_Environment = Mapping[str, str]
_Settings = TypeVar("_Settings", bound=JobSettings)

_RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
"""torchrun, Open MPI, Slurm."""
_STATIC_RUN = "none"
"""The run ID that torchrun gives to each unnamed run."""


@dataclass(frozen=True, slots=True)
class Job:
    """The place of a process in its job: `rank` of `size` processes, on `node`."""

    name: str
    rank: int
    size: int
    node: str


def find_job(settings: JobSettings, environment: _Environment, host: str) -> Job | None:
    """The job of the settings and the environment; None if they name no job.

    Settings override the environment; `host` is the default of the node. Raises InvalidInput.
    """
    rank, name = settings.job_rank, settings.job
    if name is None or name == AUTO:
        name = _name_in(environment)
    if name is None:
        if rank is not None:
            raise InvalidInput("a rank without a job: name the job as well")
        return None
    found_rank, size = _place_in(environment)
    if rank is None:
        rank = found_rank
    else:  # the size in the environment belongs to the rank there
        size = max(size, rank + 1)
    if not 0 <= rank < size <= RANK_MAX + 1:
        raise InvalidInput(f"job {name}: no rank {rank} among {size} processes")
    node = settings.job_node or environment.get("SLURMD_NODENAME") or host
    return Job(check_job_name(name), rank, size, check_node_name(node))


def required_job(job: Job | None) -> Job:
    """The job, if it was found. Raises InvalidInput otherwise."""
    if job is None:
        raise InvalidInput(
            "job auto: no Slurm, torchrun or Open MPI job detected in the environment; "
            f"name the job: {BY_NAME['job'].ways()} (in Python: job='NAME')"
        )
    return job


def with_configured(options: _Settings, configured: JobSettings, environment: _Environment) -> _Settings:
    """The options, completed by the configuration; an empty `job` means no job.

    A configured `auto` means no job without a launcher; an option `auto` always means a job. Raises InvalidInput if
    other settings of a job are given without a job.
    """
    is_in_force = configured.job != AUTO or _name_in(environment) is not None
    name = configured.job if options.job is None and is_in_force else options.job
    if not name:
        alone = replace(options, job=None)
        alone.check()
        return alone
    stated = {row.field for row, _ in options.stated()}
    missing = {field: getattr(configured, field) for field in JOB_FIELDS - stated}
    return replace(options, **{**missing, "job": name})


def expected_nodes(settings: JobSettings, environment: _Environment) -> int:
    """The number of nodes of the job; 0 if unknown. Raises InvalidInput."""
    return settings.job_nodes or count_nodes(environment)


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
    """A valid job name; other characters of launchers become `-`."""
    joined = "-".join(part for part in parts if part)
    return re.sub(r"[^A-Za-z0-9._-]", "-", joined)[:JOB_NAME_CHARACTERS_MAX]


def _place_in(environment: _Environment) -> tuple[int, int]:
    """`(rank, size)`; (0, 1) without a launcher."""
    for rank_name, size_name in _RANKS:
        if rank_name in environment:
            rank = _number(environment, rank_name)
            return rank, _number(environment, size_name) if size_name in environment else rank + 1
    return 0, 1


def _number(environment: _Environment, name: str) -> int:
    text = environment[name]
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise InvalidInput(f"{name} in the environment is {text[:40]!r}, not a number")
    return int(text)


def count_nodes(environment: _Environment) -> int:
    """The number of nodes on which the launcher started the job; 0 if unknown. Raises InvalidInput."""
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
