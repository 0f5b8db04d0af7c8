"""What a user hears of the nodes of a job which a verb waits for. No I/O but what `Output` prints."""

from collections.abc import Collection, Mapping

from dieselfs.limits import JOB_GATHER_TIMEOUT_S
from dieselfs_client.job_options import JobOptions
from dieselfs_tools.output import Output


def announce(output: Output, job: JobOptions, environment: Mapping[str, str]) -> None:
    """Say so, if other nodes are waited for. Raises InvalidInput if the environment is broken."""
    nodes = job.nodes(environment)
    if nodes > 1:
        output.aside(f"waiting for {nodes} nodes of the job, {JOB_GATHER_TIMEOUT_S:g} s at most")


def report(output: Output, name: str, nodes: int, members: Collection[str] | None) -> dict[str, object]:
    """Warn if fewer are there than should be (0: nobody knows); the same for JSON. `members` None: nobody can say."""
    if members is not None and len(members) < nodes:
        output.error(
            f"of {nodes} nodes of job {name} {len(members)} are here: {', '.join(sorted(members)) or 'none'}; "
            "the others come too late, are not started, or know another secret"
        )
    return {"job": name, "nodes": nodes, "members": None if members is None else sorted(members)}
