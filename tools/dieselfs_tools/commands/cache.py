"""`dlcmd cache`: the cache daemon of a node, and its disk tier."""

import os
import shlex
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from dieselfs.errors import InvalidInput, NotFound
from dieselfs.settings.flags import settings_options
from dieselfs.settings.table import JOB_FIELDS, CacheOptions, JobSettings, Place
from dieselfs_client.daemon import cache_daemons
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs import Dataset
    from dieselfs.snapshot.reader import Snapshot
    from dieselfs_client.cluster.pool import PoolConfig


@options.verb(
    "cache",
    "dlcmd cache imagenet --memory 32GiB --policy oneshot",
    "dlcmd cache imagenet --memory 32GiB --job resnet --job-nodes 8 --job-secret ~/job.secret",
    "dlcmd cache imagenet --stop",
    "dlcmd cache --list                       # what the disk of this node keeps",
    "dlcmd cache --clear imagenet             # remove its chunks from the disk; all: --clear --all",
)
@click.argument("dataset", type=options.STATE, required=False, metavar="[DATASET[@TAG]]")
@settings_options(Place.CACHE)
@options.flag("--stop", "is_stopped", text="Stop the daemon; programs that read continue without it.")
@options.flag("--list", "is_listing", text="List the datasets on the disk of this node (--disk).")
@options.flag("--clear", "is_clearing", text="Remove the chunks of a dataset from the disk of this node.")
@options.flag("--all", "is_all", text="With --clear: the chunks of all datasets.")
@options.dry_run
def cache(
    session: Session,
    dataset: str | None,
    is_stopped: bool,
    is_listing: bool,
    is_clearing: bool,
    is_all: bool,
    is_dry_run: bool,
    given: dict[str, Any],
) -> int:
    """Start a daemon that shares a dataset's chunks in memory with your programs that use the library on this node.

    Programs find the daemon themselves. A mount needs none: it has its own memory. With --job, the daemon is this
    node's part of the job's cache, for programs of the job only. --stop also finds a daemon of an older generation.
    'dlcmd mounts' lists the daemons.

    --list and --clear look at the disk tier of this node: --disk FOLDER, or the configured one. Datasets that a mount
    or a program reads are not cleared (exit code 2).
    """
    if is_listing or is_clearing:
        from dieselfs_tools.transfers.disk_runner import clear_disk, list_disk

        disk = given.get("disk") or session.settings().disk
        if is_listing and not (is_clearing or is_all or dataset):
            return list_disk(session.output, disk)
        if is_listing or is_all == (dataset is not None):
            raise InvalidInput("write dlcmd cache --list, --clear DATASET, or --clear --all")
        return clear_disk(session.output, disk, dataset, is_dry_run)
    if dataset is None:
        raise InvalidInput(
            "name a dataset: dlcmd cache DATASET; or see the disk of this node: dlcmd cache --list"
        )
    return _share(session, dataset, is_stopped, is_dry_run, given)


def _share(session: Session, dataset: str, is_stopped: bool, is_dry_run: bool, given: dict[str, Any]) -> int:
    """Start the daemon, or stop it."""
    from dieselfs.cluster.job import with_configured
    from dieselfs_client.cluster.pool import pool_config
    from dieselfs_tools.cli import job_progress

    settings = session.settings()
    chosen = CacheOptions(server=session.server, key_file=session.key_file, **given)
    chosen = with_configured(settings.with_disk(chosen), settings.job, os.environ)
    data = session.dataset(dataset, chosen.generation, job="")
    fields: dict[str, object] = {"dataset": dataset, "generation": data.generation, "dry_run": is_dry_run}
    terms = None
    if chosen.job is not None:
        terms = pool_config(chosen, data.client, data.snapshot.dataset, os.environ)
        fields |= {"job": terms.job.name, "node": terms.job.node}
    if is_stopped:
        if chosen.memory_bytes:
            raise InvalidInput("--stop does not go with --memory")
        is_named = bool(chosen.generation) or "@" in dataset
        snapshot = data.snapshot if is_named else _shared(session, data, terms)
        end = cache_daemons.find_cache if is_dry_run else cache_daemons.stop_cache
        process = end(snapshot, terms)
        text = f"dl://{dataset} {'would not be' if is_dry_run else 'is not'} shared any more"
        fields |= {"generation": snapshot.generation, "process": process}
        return session.output.summary(text, fields)
    if is_dry_run:
        return session.output.summary(f"would share dl://{dataset} on this node", fields)
    if terms is not None:
        job_progress.announce(session.output, chosen, os.environ)
    memory_bytes = chosen.memory_bytes or (settings.job_memory_bytes if chosen.job else 0)
    started = replace(chosen, memory_bytes=memory_bytes, generation=data.generation)
    process = cache_daemons.start_cache(dataset, started)
    if terms is not None:
        members = cache_daemons.cache_members(data.snapshot, terms)
        fields |= job_progress.report(session.output, terms.job.name, terms.nodes, members)
    stop = shlex.join(["dlcmd", "cache", dataset, *_job_arguments(chosen), "--stop"])
    text = f"dl://{dataset} is shared on this node; to end it: {stop}"
    return session.output.summary(text, {**fields, "process": process})


def _job_arguments(chosen: CacheOptions) -> list[str]:
    return JobSettings(**{name: getattr(chosen, name) for name in JOB_FIELDS}).arguments()


def _shared(session: Session, data: "Dataset", terms: "PoolConfig | None") -> "Snapshot":
    """The generation that a daemon shares; the newest if none does. Raises InvalidInput if several do."""
    snapshots = [data.snapshot]
    for generation in cache_daemons.cache_generations(data.name):
        if generation != data.generation:
            with suppress(NotFound):
                snapshots.append(session.dataset(data.name, generation, job="").snapshot)
    found = [snapshot for snapshot in snapshots if cache_daemons.find_cache(snapshot, terms) is not None]
    if len(found) > 1:
        there = ", ".join(str(number) for number in sorted(snapshot.generation for snapshot in found))
        raise InvalidInput(f"generations {there} of {data.name} are shared: choose one with --generation")
    return found[0] if found else data.snapshot
