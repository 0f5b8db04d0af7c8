"""Messages about the nodes of a job that a verb waits for. No I/O but the output."""

from collections.abc import Collection, Mapping

from dieselfs.cluster.job import expected_nodes
from dieselfs.limits import JOB_GATHER_TIMEOUT_S
from dieselfs.settings.table import JobSettings
from dieselfs_tools.cli.output import Output


def announce(output: Output, job: JobSettings, environment: Mapping[str, str]) -> None:
    """Print that the verb waits for other nodes. Raises InvalidInput if the environment is broken."""
    nodes = expected_nodes(job, environment)
    if nodes > 1:
        output.aside(f"waiting for {nodes} nodes of the job, {JOB_GATHER_TIMEOUT_S:g} s at most")


def report(output: Output, name: str, nodes: int, members: Collection[str] | None) -> dict[str, object]:
    """Warn if nodes are missing, and return the fields for JSON. `nodes` 0 and `members` None: unknown."""
    if members is not None and len(members) < nodes:
        output.error(
            f"of {nodes} nodes of job {name} {len(members)} are here: {', '.join(sorted(members)) or 'none'}; "
            "the others are late, not started, or have another secret"
        )
    return {"job": name, "nodes": nodes, "members": None if members is None else sorted(members)}
