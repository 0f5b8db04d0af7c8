"""Which job a daemon belongs to, as every command says it: `--job NAME`, `-o job=NAME`. No I/O."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import Any, Self, TypeVar

import click

from dieselfs.cache.job import JobSettings, count_nodes, found_again
from dieselfs.errors import InvalidInput

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The fields are the names of the options.

    - `job`: the job whose nodes pool their memory; `auto` for the one that the environment speaks of, None for none
    - `job_nodes`: how many nodes it has, which are waited for; 0 for what the environment says
    - `job_node`, `job_rank`, `job_host`: what this node is called, its rank, and the address at which the others reach
      it; None to find out
    - `job_secret`: a file with the secret of the job; None to derive one from the user's key
    """

    job: str | None = None
    job_nodes: int = 0
    job_node: str | None = None
    job_rank: int | None = None
    job_host: str | None = None
    job_secret: str | None = None

    def arguments(self) -> list[str]:
        """The command line that gives these options."""
        given = {name: getattr(self, name) for name in JOB_FIELDS}
        return [
            part
            for name, value in given.items()
            if value != getattr(NO_JOB, name)
            for part in (f"--{name.replace('_', '-')}", str(value))
        ]

    def absolute(self) -> Self:
        """The same for a process that works in another folder."""
        return replace(self, job_secret=self.job_secret and found_again(self.job_secret))

    def check(self) -> None:
        """Raises InvalidInput if something is said of a job, and no job is."""
        if self.job is None and (given := self.arguments()):
            raise InvalidInput(f"{given[0]} belongs to a job: give --job NAME as well (with -o: job=NAME)")

    def configured(self, told: JobSettings, environment: Mapping[str, str]) -> Self:
        """The same, with what is configured where nothing else is said; an empty `job` means none. Raises as `check`.

        A job that is configured as `auto` is none where no launcher has started us; one that an option asks for is.
        """
        name = told.name if self.job is None and told.is_in_force(environment) else self.job
        if not name:
            alone = replace(self, job=None)
            alone.check()
            return alone
        return replace(
            self,
            job=name,
            job_nodes=self.job_nodes or told.nodes,
            job_node=self.job_node or told.node,
            job_host=self.job_host or told.host,
            job_secret=self.job_secret or told.secret,
        )

    def nodes(self, environment: Mapping[str, str]) -> int:
        """How many nodes the job should have; 0 if nobody knows. Raises InvalidInput."""
        return self.job_nodes or count_nodes(environment)


NO_JOB = JobOptions()
JOB_FIELDS = tuple(field.name for field in fields(JobOptions))

_OPTIONS = (
    click.option(
        "--job",
        metavar="NAME",
        help="Pool the memory of the nodes of this job; auto: the one that Slurm, torchrun or Open MPI has started. "
        "[DIESELFS_JOB, the configuration file]",
    ),
    click.option(
        "--job-nodes",
        type=click.IntRange(0),
        default=0,
        metavar="N",
        help="How many nodes the job has; they are waited for. [what the environment says]",
    ),
    click.option("--job-node", metavar="NAME", help="What this node is called. [its host name]"),
    click.option(
        "--job-rank", type=click.IntRange(0), metavar="N", help="The rank here. [the environment's]"
    ),
    click.option("--job-host", metavar="HOST", help="Where other nodes reach this one. [found out]"),
    click.option(
        "--job-secret", metavar="FILE", help="What the job's nodes prove to each other. [from your key]"
    ),
)


def job_options(command: _Command) -> _Command:
    """Give a command the options of a job; it gets them as one argument, `job`."""

    @wraps(command)
    def packed(*arguments: Any, **named: Any) -> Any:
        job = JobOptions(**{name: named.pop(name) for name in JOB_FIELDS})
        return command(*arguments, job=job, **named)

    decorated: Any = packed
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    result: _Command = decorated
    return result
