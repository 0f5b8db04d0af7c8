"""The verbs for mounts: `mount`, `umount`, `mounts`, `run` and `upgrade`, and what jobs add to them."""

import os
import shlex
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from dieselfs.errors import EXIT_OK, EXIT_PARTIAL, DieselfsError, InvalidInput
from dieselfs.limits import JOB_GATHER_TIMEOUT_S
from dieselfs.names import SCHEME, Location, is_location, printable
from dieselfs.settings.flags import settings_options
from dieselfs.settings.table import JobSettings, Place
from dieselfs_client.daemon import cache_daemons, control
from dieselfs_client.mount.points.mounting import prepare_mountpoint, resolved_mountpoint
from dieselfs_client.mount.points.options import MountOptions, parse_options
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.session import Session


def mount_options(session: Session, given: Mapping[str, Any], others: Iterable[str]) -> MountOptions:
    """`given`: options of the command line, by field; `others`: texts of `-o`. Raises InvalidInput."""
    from dieselfs.cluster.job import with_configured

    # The daemon reads environment and configuration itself, except for the job.
    chosen = MountOptions(**session.server_options(), **given)
    for text in others:
        chosen = parse_options(text, chosen)
    settings = session.settings()
    chosen = with_configured(settings.with_disk(chosen), settings.job, os.environ)
    if chosen.job is not None and not chosen.memory_bytes:
        chosen = replace(chosen, memory_bytes=settings.job_memory_bytes)
    return chosen


def announce_job(output: Output, job: JobSettings, environment: Mapping[str, str]) -> None:
    """Print that the verb waits for other nodes. Raises InvalidInput if the environment is broken."""
    from dieselfs.cluster.job import expected_nodes

    nodes = expected_nodes(job, environment)
    if nodes > 1:
        output.aside(f"waiting for {nodes} nodes of the job, {JOB_GATHER_TIMEOUT_S:g} s at most")


def report_job(output: Output, name: str, nodes: int, members: Collection[str] | None) -> dict[str, object]:
    """Warn if nodes are missing, and return the fields for JSON. `nodes` 0 and `members` None: unknown."""
    if members is not None and len(members) < nodes:
        output.error(
            f"of {nodes} nodes of job {name} {len(members)} are here: {', '.join(sorted(members)) or 'none'}; "
            "the others are late, not started, or have another secret"
        )
    return {"job": name, "nodes": nodes, "members": None if members is None else sorted(members)}


@options.verb(
    "mount",
    "dlcmd mount imagenet /mnt/imagenet",
    "dlcmd mount --memory 8G --generation 41 dl://imagenet /mnt/imagenet",
    "dlcmd mount imagenet@v3/train /mnt/train",
    "dlcmd mount --follow 30s imagenet /mnt/imagenet",
    "dlcmd mount --write dl://runs/exp1 /mnt/exp1                   # checkpoints and logs",
    "dlcmd mount --where \"lang = 'de'\" imagenet /mnt/german      # columns: dlcmd columns",
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

    With --write, programs can write there; the dataset and the folder are made if they do not exist. What they write is
    on the disk of this node at once, and in the dataset at each interval, with 'dlcmd sync FOLDER' and 'dlcmd umount'.
    The next mount stores what a crash has left.

    FILE is a saved snapshot ('dlcmd snapshot save'), given as a path with a slash: ./imagenet.snapshot.

    The command returns when the mount is ready; 'dlcmd umount' ends it.
    """
    from dieselfs.cluster.job import expected_nodes

    if is_location(mountpoint):
        raise InvalidInput(f"the dataset comes first: dlcmd mount {mountpoint} {shlex.quote(str(dataset))}")
    chosen = mount_options(session, given, others)
    place = resolved_mountpoint(mountpoint)
    session.where = chosen.where
    name, shown, fields = _described(dataset, chosen.generation)
    fields["mountpoint"] = place
    if is_dry_run:
        if isinstance(dataset, Location) and not chosen.write:  # which makes a dataset that does not exist
            data = session.dataset(dataset.state, job="")
            fields["generation"] = chosen.generation or data.generation
        prepare_mountpoint(place)
        return session.output.summary(f"would mount {shown} on {place}", {"dry_run": True, **fields})
    if chosen.job is not None:
        announce_job(session.output, chosen, os.environ)
    # Its processes find the dataset: to connect here as well would take as long as they take.
    process = control.mount(name, mountpoint, chosen)
    fields["generation"] = control.generation_of(place)
    fields["memory_advice"] = control.memory_advice_of(place)
    if fields["memory_advice"]:
        session.output.aside(fields["memory_advice"])
    if chosen.job is not None and (job := control.job_of(place)):
        nodes = expected_nodes(chosen, os.environ)
        fields |= report_job(session.output, job["name"], nodes, job["members"])
        fields["node"] = job["node"]
    text = f"{shown} is mounted on {place}; to end it: dlcmd umount {shlex.quote(mountpoint)}"
    return session.output.summary(text, {**fields, "process": process})


def _described(dataset: Location | Path, generation: int) -> tuple[str, str, dict[str, Any]]:
    """What is mounted: for the daemon, for people, and as fields. Raises NotFound, InvalidInput, Damaged."""
    if isinstance(dataset, Path):
        from dieselfs.snapshot.reader import Snapshot

        if dataset.is_dir():
            raise InvalidInput(f"{dataset} is a folder: a dataset, or a file with a snapshot, comes first")
        if generation:
            raise InvalidInput("a saved snapshot has one generation: leave out --generation")
        saved = Snapshot.open(dataset)
        fields = {"dataset": saved.dataset, "folder": "", "generation": saved.generation}
        return str(dataset), f"{SCHEME}{saved.dataset} (generation {saved.generation})", fields
    folder = printable(dataset.path)
    shown = f"{SCHEME}{dataset.state}" + (f"/{folder}" if folder else "")
    return dataset.part, shown, {"dataset": dataset.state, "folder": folder}


@options.verb("mounts", "dlcmd mounts", "dlcmd mounts --json")
def mounts(session: Session) -> int:
    """List the mounted datasets of this machine, and your cache daemons ('dlcmd cache')."""
    found, daemons = control.mounts(), cache_daemons.cache_daemons()
    if found or daemons:
        session.output.heading("dataset on folder (what serves it)")
    for mount in found:
        place = printable(mount.mountpoint.encode("utf-8", "surrogateescape"))
        text = f"dl://{mount.dataset} on {place} ({_state(mount)})"
        fields = {**asdict(mount), "options": list(mount.options)}
        if mount.generation is None:
            del fields["generation"]
        session.output.record("mount", text, fields)
    for daemon in daemons:
        job = f", job {daemon.job}" if daemon.job else ""
        text = f"dl://{daemon.dataset} in memory (cache daemon {daemon.process}, generation {daemon.generation}{job})"
        session.output.record("cache", text, asdict(daemon))
    if not found:
        session.output.note("no dataset is mounted")
    return session.output.summary("", {"mounts": len(found), "caches": len(daemons)})


def _state(mount: control.Mount) -> str:
    if mount.is_stale:
        return f"dead: {printable(mount.trouble.encode('utf-8', 'surrogateescape')) or 'mount it again'}"
    if mount.process is None:
        return "process of another user"
    state = f"process {mount.process}, daemon {mount.daemon or 'is being replaced'}, view {mount.view}"
    if mount.view_reason:
        state += f": {mount.view_reason}"
    if mount.following:  # which begins with the generation
        state += f", {mount.following}"
    elif mount.generation is not None:
        state += f", generation {mount.generation}"
    if mount.writes:
        state += f", {mount.writes}"
    if mount.restarts:
        state += f", restarted {mount.restarts} times after a crash"
    if not mount.resends:
        state += "; if the daemon dies, open files fail"
    if mount.trouble:
        state += f"; last trouble: {printable(mount.trouble.encode('utf-8', 'surrogateescape'))}"
    return f"{state}; last error: {mount.last_error}" if mount.last_error else state


@options.verb(
    "umount",
    "dlcmd umount /mnt/imagenet",
    "dlcmd umount --lazy /mnt/imagenet       # open files stay readable",
)
@click.argument("mountpoints", type=options.MOUNTPOINT, nargs=-1, required=True, metavar="FOLDER...")
@options.flag("-l", "--lazy", "is_lazy", text="Detach now; open files stay readable until they are closed.")
@options.dry_run
def umount(session: Session, mountpoints: Sequence[str], is_lazy: bool, is_dry_run: bool) -> int:
    """Unmount datasets. If one of several fails, it is listed, and the others are unmounted (exit code 2).

    What was written through a mount is stored first. If that is not possible, it is kept on this node, and the message
    says how to store it later.
    """
    would = "would unmount" if is_dry_run else "unmounted"
    failed = 0
    for mountpoint in mountpoints:
        try:
            place = control.mounted_place(mountpoint)
            if not is_dry_run:
                for line in control.unmount(mountpoint, is_lazy):
                    session.output.error(line)
        except DieselfsError as error:
            if len(mountpoints) == 1:
                raise
            session.output.error(str(error))
            failed += 1
            continue
        session.output.detail("mount", f"{would} {place}", {"mountpoint": place})
    fields = {"dry_run": is_dry_run, "mounts": len(mountpoints) - failed, "failed": failed}
    return session.output.summary("", fields, EXIT_PARTIAL if failed else EXIT_OK)


EXIT_CANNOT_RUN = 126
EXIT_NO_COMMAND = 127
"""The exit codes of shells."""


@options.verb(
    "run",
    "dlcmd run imagenet -- python train.py          # which opens os.environ['DIESELFS_MOUNT']",
    "dlcmd run --memory 8G imagenet@v3 --at /mnt/imagenet -- ./train.sh",
)
@click.argument("dataset", type=options.PART, metavar="DATASET[@TAG][/FOLDER]")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option(
    "--at",
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="An empty folder to mount on. [a new one]",
)
@settings_options(Place.MOUNT)
@click.option("-o", "others", multiple=True, metavar="OPTIONS", help="Mount options, as in fstab.")
def run(
    session: Session,
    dataset: Location,
    command: tuple[str, ...],
    at: str | None,
    others: tuple[str, ...],
    given: dict[str, Any],
) -> int:
    """Run a command with a dataset, or a folder of it, that is mounted for it alone, and unmounted when it ends.

    DIESELFS_MOUNT is the path of the mount. No other process sees it, and no rights are needed; where private
    namespaces are forbidden, it is an ordinary mount. The exit code is that of the command. Processes that it leaves
    are killed.
    """
    from dieselfs.process.keeper import end_as
    from dieselfs_client.daemon import private_mount

    if shutil.which(command[0]) is None:
        session.output.error(f"{command[0]}: there is no such command")
        return EXIT_NO_COMMAND
    chosen = mount_options(session, given, others)
    # The server of embedded data is started here, where it outlives the command.
    if chosen.write:
        session.client.ensure_dataset(dataset.dataset)
    else:
        session.dataset(dataset.state, job="")
    session.close()
    try:
        status = private_mount.run(dataset.part, command, chosen, at, session.output.aside)
    except OSError as error:
        session.output.error(f"{command[0]}: {error.strerror}")
        return EXIT_CANNOT_RUN
    end_as(status)


@options.verb(
    "upgrade",
    "dlcmd upgrade /mnt/imagenet",
    "dlcmd upgrade                          # all your mounts",
)
@click.argument("mountpoints", type=options.MOUNTPOINT, nargs=-1, metavar="[FOLDER...]")
@options.dry_run
def upgrade(session: Session, mountpoints: Sequence[str], is_dry_run: bool) -> int:
    """Replace the daemons of mounts by the installed version.

    Files stay open, and readers see a short pause. If the new daemon does not start, the old one continues.
    """
    places = [control.mounted_place(mountpoint, "upgrade") for mountpoint in mountpoints] or [
        mount.mountpoint for mount in control.mounts() if mount.process is not None
    ]
    would = "would upgrade" if is_dry_run else "upgraded"
    for place in places:
        fields: dict[str, object] = {"mountpoint": place}
        if not is_dry_run:
            fields["daemon"] = control.upgrade(place).daemon
        session.output.detail("mount", f"{would} {place}", fields)
    if not places:
        session.output.note("no dataset is mounted")
    return session.output.summary("", {"dry_run": is_dry_run, "mounts": len(places)})
