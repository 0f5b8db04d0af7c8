"""The verbs for what is in the memory and on the disk of a node: `warm` and `cache`."""

import os
import shlex
import time
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from dieselfs.errors import EXIT_DAMAGED, EXIT_OK, EXIT_PARTIAL, InvalidInput, NotFound
from dieselfs.settings.flags import settings_options
from dieselfs.settings.table import JOB_FIELDS, CacheOptions, JobSettings, Place
from dieselfs.units import count, format_duration
from dieselfs_client.daemon import cache_daemons, control
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.progress import Reading, shown
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs import Dataset
    from dieselfs.snapshot.reader import Snapshot
    from dieselfs_client.cluster.pool import PoolConfig
    from dieselfs_client.mount.control.warmth import MountWarmth


POLL_S = 0.25
"""Between two requests to the mount, which polls the nodes of a job once a second at most."""


def parse_share(text: str) -> float:
    """The share, from 0 to 1, of `80%` or `80`. Raises InvalidInput."""
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise InvalidInput(f"{text!r} is not a percentage above 0: write for example 80%")
    return share


@options.verb("warm", "dlcmd warm /mnt/imagenet", "dlcmd warm /mnt/imagenet --wait 80% --timeout 15m")
@click.argument("mountpoint", type=options.MOUNTPOINT, metavar="FOLDER")
@click.option(
    "--wait",
    "share",
    type=options.Parsed("PERCENT", parse_share),
    help="Wait until this share of the chunks that fit into memory is loaded, on all nodes of the job together.",
)
@click.option("--timeout", "timeout_s", type=options.DURATION, help="Limit of the --wait. [no limit]")
@options.dry_run
def warm(
    session: Session, mountpoint: str, share: float | None, timeout_s: float | None, is_dry_run: bool
) -> int:
    """Load the chunks that fit into the memory of a mount, before they are read; in a job, on all nodes.

    Loading runs in the background, and readers have priority. Without --wait, the command returns at once.
    """
    from dieselfs_client.mount.control import warmth

    if timeout_s is not None and share is None:
        raise InvalidInput("--timeout needs --wait, which it limits")
    place = control.mounted_place(mountpoint, "warm")
    if is_dry_run:
        return session.output.summary(f"would warm {place}", {"mountpoint": place, "dry_run": True})
    found = warmth.warm(place)
    if share is not None and found.whole.share < share:
        found = _wait(session, place, found, share, timeout_s)
    return _end(session, place, found, share, timeout_s)


def _wait(
    session: Session, place: str, found: "MountWarmth", share: float, timeout_s: float | None
) -> "MountWarmth":
    """Poll until the share is reached or the timeout is over; returns the last answer."""
    from dieselfs_client.mount.control import warmth

    end_s = None if timeout_s is None else time.monotonic() + timeout_s

    def reading() -> Reading:
        done = found.whole
        total_bytes = round(done.wanted_bytes * share)
        unknown, noun = len(found.unknown), "node" if found.job else ""
        nodes = len(found.nodes) + unknown
        return Reading(found.warm_nodes, done.pinned_bytes, nodes, total_bytes, unknown, noun=noun)

    with shown(session.output, "warm", reading):
        while found.whole.share < share:
            left_s = POLL_S if end_s is None else end_s - time.monotonic()
            if left_s <= 0:
                break
            time.sleep(min(POLL_S, left_s))
            found = warmth.warm(place)
    return found


def rest_of(output: Output, found: "MountWarmth") -> str:
    """Describes the part of a dataset that does not fit into memory; empty while a node does not answer."""
    if found.unknown or found.dataset_bytes <= found.whole.wanted_bytes:
        return ""
    why = "is damaged, or does not fit" if found.whole.damaged_chunks else "does not fit"
    return f"; the dataset has {output.size(found.dataset_bytes)}, and the rest {why}"


def _end(
    session: Session, place: str, found: "MountWarmth", share: float | None, timeout_s: float | None
) -> int:
    output, whole = session.output, found.whole
    sizes = f"{output.size(whole.pinned_bytes)} of {output.size(whole.wanted_bytes)}{rest_of(output, found)}"
    of = f"job {found.job}, {len(found.nodes) + len(found.unknown)} nodes" if found.job else place
    for node in found.unknown:
        output.error(f"node {node} does not answer; it is counted as cold")
    exit_code = EXIT_OK
    if whole.damaged_chunks:
        exit_code = EXIT_DAMAGED
        damaged = count(whole.damaged_chunks, "chunk")
        output.error(f"damaged, and not in memory: {damaged}; see dlcmd fsck --deep")
    if share is not None and timeout_s is not None and whole.share < share:
        exit_code, waited = EXIT_PARTIAL, format_duration(timeout_s)
        output.error(f"{of}: after {waited} {whole.share:.1%} is in memory, {sizes}; loading continues")
    fields = {
        "mountpoint": place,
        "job": found.job,
        **asdict(whole),
        "share": whole.share,
        "dataset_bytes": found.dataset_bytes,
        "nodes": {node: {**asdict(each), "share": each.share} for node, each in found.nodes.items() if node},
        "unknown": list(found.unknown),
    }
    return output.summary(f"{of}: {whole.share:.1%} is in memory, {sizes}", fields, exit_code)


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
    from dieselfs_tools.commands.mounts import announce_job, report_job

    settings = session.settings()
    chosen = CacheOptions(**session.server_options(), **given)
    chosen = with_configured(settings.with_disk(chosen), settings.job, os.environ)
    session.where = chosen.where
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
        announce_job(session.output, chosen, os.environ)
    memory_bytes = chosen.memory_bytes or (settings.job_memory_bytes if chosen.job else 0)
    started = replace(chosen, memory_bytes=memory_bytes, generation=data.generation)
    process = cache_daemons.start_cache(dataset, started)
    if terms is not None:
        members = cache_daemons.cache_members(data.snapshot, terms)
        fields |= report_job(session.output, terms.job.name, terms.nodes, members)
    job = JobSettings(**{name: getattr(chosen, name) for name in JOB_FIELDS})
    stop = shlex.join(["dlcmd", "cache", dataset, *job.arguments(), "--stop"])
    text = f"dl://{dataset} is shared on this node; to end it: {stop}"
    return session.output.summary(text, {**fields, "process": process})


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
