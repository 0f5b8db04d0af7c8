"""`dlcmd cache`: chunks in memory that all programs of a node share."""

import os
import shlex

import click

from dieselfs.errors import EXIT_OK, InvalidInput
from dieselfs.limits import MOUNT_MEMORY_BYTES
from dieselfs_client import cache_control
from dieselfs_client.job_options import JobOptions, job_options
from dieselfs_client.options import POLICIES
from dieselfs_client.pool import terms_of
from dieselfs_tools import gathering, options
from dieselfs_tools.session import Session
from dieselfs_tools.units import format_size


@options.verb(
    "cache",
    "dlcmd cache imagenet --memory 32GiB --policy oneshot",
    "dlcmd cache imagenet --memory 32GiB --job resnet --job-nodes 8 --job-secret ~/job.secret",
    "dlcmd cache imagenet --stop",
)
@click.argument("dataset", type=options.STATE, metavar="DATASET[@TAG]")
@click.option(
    "--memory",
    "memory_bytes",
    type=options.SIZE,
    default=0,
    help=f"What may be held in memory. [{format_size(MOUNT_MEMORY_BYTES)}, or what the system allows]",
)
@click.option(
    "--policy",
    type=click.Choice(POLICIES),
    default=POLICIES[0],
    show_default=True,
    help="When to fetch what memory can keep: when it is read, or at once.",
)
@options.warm_rate
@click.option("--stop", "is_stopped", is_flag=True, help="End it; programs that read go on without it.")
@job_options
@options.dry_run
def cache(
    session: Session,
    dataset: str,
    memory_bytes: int,
    policy: str,
    warm_rate_bytes: int,
    is_stopped: bool,
    is_dry_run: bool,
    job: JobOptions,
) -> int:
    """Hold a dataset's chunks in memory for all programs of yours on this node that read it with the library.

    They find it by themselves. A mount does not need it: it has memory of its own. With --job, it is this node's part
    in the memory of the job, for the programs of the job alone.
    """
    configured = session.settings().job
    job = job.configured(configured, os.environ)
    data = session.dataset(dataset, job="")
    fields = {"dataset": dataset, "generation": data.generation, "dry_run": is_dry_run}
    terms = None
    if job.job is not None:
        terms = terms_of(job, data.client, data.snapshot.dataset, 0, os.environ)
        fields |= {"job": terms.job.name, "node": terms.job.node}
    if is_stopped:
        if memory_bytes:
            raise InvalidInput("--stop does not go with --memory")
        end = cache_control.find if is_dry_run else cache_control.stop
        process = end(data.snapshot, terms)
        text = f"dl://{dataset} {'would not be' if is_dry_run else 'is not'} shared any more"
        return session.output.summary(text, {**fields, "process": process}, EXIT_OK)
    if is_dry_run:
        return session.output.summary(f"would share dl://{dataset} on this node", fields, EXIT_OK)
    if terms is not None:
        gathering.announce(session.output, job, os.environ)
    process = cache_control.start(
        dataset,
        memory_bytes or (configured.memory_bytes if job.job else 0),
        policy,
        server=session.server,
        key_file=session.key_file,
        job=job,
        warm_rate_bytes=warm_rate_bytes,
    )
    if terms is not None:
        members = cache_control.members(data.snapshot, terms)
        fields |= gathering.report(session.output, terms.job.name, terms.nodes, members)
    stop = shlex.join(["dlcmd", "cache", dataset, *job.arguments(), "--stop"])
    text = f"dl://{dataset} is shared on this node; to end it: {stop}"
    return session.output.summary(text, {**fields, "process": process}, EXIT_OK)
