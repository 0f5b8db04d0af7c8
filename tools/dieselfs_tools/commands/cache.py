"""`dlcmd cache`: chunks in memory that all programs of a node share."""

import os
import shlex
from contextlib import suppress

import click

from dieselfs.dataset import Dataset
from dieselfs.errors import EXIT_OK, InvalidInput, NotFound
from dieselfs.limits import MOUNT_MEMORY_BYTES
from dieselfs.meta.snapshot import Snapshot
from dieselfs_client import cache_control
from dieselfs_client.job.pool import PoolTerms, terms_of
from dieselfs_client.job_options import JobOptions, job_options
from dieselfs_client.options import POLICIES
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
    "--generation", type=click.IntRange(0), default=0, help="Which generation of the dataset. [the newest]"
)
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
    generation: int,
    memory_bytes: int,
    policy: str,
    warm_rate_bytes: int,
    is_stopped: bool,
    is_dry_run: bool,
    job: JobOptions,
) -> int:
    """Hold a dataset's chunks in memory for all programs of yours on this node that read it with the library.

    They find it by themselves. A mount does not need it: it has memory of its own. With --job, it is this node's part
    in the memory of the job, for the programs of the job alone. --stop finds the daemon also if the dataset has got a
    newer generation since.
    """
    configured = session.settings().job
    job = job.configured(configured, os.environ)
    data = session.dataset(dataset, generation, job="")
    fields: dict[str, object] = {"dataset": dataset, "generation": data.generation, "dry_run": is_dry_run}
    terms = None
    if job.job is not None:
        terms = terms_of(job, data.client, data.snapshot.dataset, 0, os.environ)
        fields |= {"job": terms.job.name, "node": terms.job.node}
    if is_stopped:
        if memory_bytes:
            raise InvalidInput("--stop does not go with --memory")
        is_named = bool(generation) or "@" in dataset
        snapshot = data.snapshot if is_named else _shared(session, data, terms)
        end = cache_control.find if is_dry_run else cache_control.stop
        process = end(snapshot, terms)
        text = f"dl://{dataset} {'would not be' if is_dry_run else 'is not'} shared any more"
        fields |= {"generation": snapshot.generation, "process": process}
        return session.output.summary(text, fields, EXIT_OK)
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
        generation=data.generation,
    )
    if terms is not None:
        members = cache_control.members(data.snapshot, terms)
        fields |= gathering.report(session.output, terms.job.name, terms.nodes, members)
    stop = shlex.join(["dlcmd", "cache", dataset, *job.arguments(), "--stop"])
    text = f"dl://{dataset} is shared on this node; to end it: {stop}"
    return session.output.summary(text, {**fields, "process": process}, EXIT_OK)


def _shared(session: Session, data: Dataset, terms: PoolTerms | None) -> Snapshot:
    """The generation that a daemon shares; the newest if none does. Raises InvalidInput if several do."""
    snapshots = [data.snapshot]
    for generation in cache_control.generations(data.name):
        if generation != data.generation:
            with suppress(NotFound):
                snapshots.append(session.dataset(data.name, generation, job="").snapshot)
    found = [snapshot for snapshot in snapshots if cache_control.find(snapshot, terms) is not None]
    if len(found) > 1:
        there = ", ".join(str(number) for number in sorted(snapshot.generation for snapshot in found))
        raise InvalidInput(f"generations {there} of {data.name} are shared: say which with --generation")
    return found[0] if found else data.snapshot
