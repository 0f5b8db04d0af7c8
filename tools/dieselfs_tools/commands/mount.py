"""`dlcmd mount`: mount a dataset."""

import os
import shlex
from pathlib import Path
from typing import Any

import click

from dieselfs.errors import InvalidInput
from dieselfs.names import SCHEME, Location, is_location, printable
from dieselfs.settings.flags import settings_options
from dieselfs.settings.table import Place
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.mounting import prepare_mountpoint, resolved_mountpoint
from dieselfs_tools.cli import options
from dieselfs_tools.cli.mount_options import mount_options
from dieselfs_tools.cli.session import Session


@options.verb(
    "mount",
    "dlcmd mount imagenet /mnt/imagenet",
    "dlcmd mount --memory 8G --generation 41 dl://imagenet /mnt/imagenet",
    "dlcmd mount imagenet@v3/train /mnt/train",
    "dlcmd mount --follow 30s imagenet /mnt/imagenet",
    "dlcmd mount imagenet /mnt/imagenet --memory 64GiB --job resnet --job-nodes 8 --job-secret ~/job.secret",
)
@click.argument("dataset", type=options.MOUNTABLE, metavar="DATASET[@TAG][/FOLDER]|FILE")
@click.argument("mountpoint", metavar="FOLDER")
@settings_options(Place.MOUNT)
@click.option("-o", "others", multiple=True, metavar="OPTIONS", help="Mount options, as in fstab.")
@options.dry_run
def mount(
    session: Session,
    dataset: Location | Path,
    mountpoint: str,
    others: tuple[str, ...],
    is_dry_run: bool,
    given: dict[str, Any],
) -> int:
    """Mount a dataset, or a folder of it, on an empty folder, read-only. The mount stays at the current generation, or
    moves to new ones with --follow.

    FILE is a saved snapshot ('dlcmd snapshot save'), given as a path with a slash: ./imagenet.snapshot.

    The command returns when the mount is ready; 'dlcmd umount' ends it.
    """
    from dieselfs.cluster.job import expected_nodes
    from dieselfs_tools.cli import job_progress

    if is_location(mountpoint):
        raise InvalidInput(f"the dataset comes first: dlcmd mount {mountpoint} {shlex.quote(str(dataset))}")
    chosen = mount_options(session, given, others)
    place = resolved_mountpoint(mountpoint)
    name, shown, fields = _described(dataset, chosen.generation)
    fields["mountpoint"] = place
    if is_dry_run:
        if isinstance(dataset, Location):
            data = session.dataset(dataset.state, job="")
            fields["generation"] = chosen.generation or data.generation
        prepare_mountpoint(place)
        return session.output.summary(f"would mount {shown} on {place}", {"dry_run": True, **fields})
    if chosen.job is not None:
        job_progress.announce(session.output, chosen, os.environ)
    # Its processes find the dataset: to connect here as well would take as long as they take.
    process = control.mount(name, mountpoint, chosen)
    fields["generation"] = control.generation_of(place)
    if chosen.job is not None and (job := control.job_of(place)):
        nodes = expected_nodes(chosen, os.environ)
        fields |= job_progress.report(session.output, job["name"], nodes, job["members"])
        fields["node"] = job["node"]
    text = f"{shown} is mounted on {place}; to end it: dlcmd umount {shlex.quote(mountpoint)}"
    return session.output.summary(text, {**fields, "process": process})


def _described(dataset: Location | Path, generation: int) -> tuple[str, str, dict[str, Any]]:
    """What is mounted: for the daemon, for people, and as fields. Raises NotFound, InvalidInput, Damaged."""
    if isinstance(dataset, Path):
        from dieselfs.snapshot.reader import Snapshot

        if generation:
            raise InvalidInput("a saved snapshot has one generation: leave out --generation")
        saved = Snapshot.open(dataset)
        fields = {"dataset": saved.dataset, "folder": "", "generation": saved.generation}
        return str(dataset), f"{SCHEME}{saved.dataset} (generation {saved.generation})", fields
    folder = printable(dataset.path)
    shown = f"{SCHEME}{dataset.state}" + (f"/{folder}" if folder else "")
    return dataset.part, shown, {"dataset": dataset.state, "folder": folder}
