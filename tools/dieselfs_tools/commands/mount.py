"""`dlcmd mount`: see a dataset as a folder."""

import os
from dataclasses import asdict, replace

import click

from dieselfs.errors import EXIT_OK
from dieselfs.limits import MOUNT_MEMORY_BYTES, READ_TIMEOUT_S
from dieselfs_client import control
from dieselfs_client.job_options import JobOptions, job_options
from dieselfs_client.mount.mounting import prepare_mountpoint, resolved_mountpoint
from dieselfs_client.options import DRIVERS, KERNEL, POLICIES, MountOptions, parse_options
from dieselfs_tools import gathering, options
from dieselfs_tools.session import Session
from dieselfs_tools.units import format_size


@options.verb(
    "mount",
    "dlcmd mount imagenet /mnt/imagenet",
    "dlcmd mount --memory 8G --generation 41 dl://imagenet /mnt/imagenet",
    "dlcmd mount imagenet /mnt/imagenet --memory 64GiB --job resnet --job-nodes 8 --job-secret ~/job.secret",
)
@click.argument("dataset", type=options.STATE, metavar="DATASET[@TAG]")
@click.argument("mountpoint", metavar="FOLDER")
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
@click.option(
    "--driver",
    type=click.Choice(DRIVERS),
    default=KERNEL,
    show_default=True,
    help="How the kernel is spoken to.",
)
@click.option("--allow-other", "is_open_to_others", is_flag=True, help="Other users see the mount as well.")
@click.option(
    "--timeout",
    "timeout_s",
    type=float,
    default=READ_TIMEOUT_S,
    show_default=True,
    help="Seconds until a read fails.",
)
@click.option("-o", "others", multiple=True, metavar="OPTIONS", help="Options as in fstab (docs/mount.md).")
@job_options
@options.dry_run
def mount(
    session: Session,
    dataset: str,
    mountpoint: str,
    generation: int,
    memory_bytes: int,
    policy: str,
    warm_rate_bytes: int,
    driver: str,
    is_open_to_others: bool,
    timeout_s: float,
    others: tuple[str, ...],
    is_dry_run: bool,
    job: JobOptions,
) -> int:
    """Mount a dataset on an empty folder, read-only. It stays in the generation that it has now.

    The command returns when the mount can be used; 'dlcmd umount' ends it.
    """
    chosen = MountOptions(  # but for the job, environment and configuration are read by the daemon as by us
        server=session.server,
        key_file=session.key_file,
        generation=generation,
        memory_bytes=memory_bytes,
        policy=policy,
        warm_rate_bytes=warm_rate_bytes,
        driver=driver,
        allow_other=is_open_to_others,
        timeout_s=timeout_s,
        **asdict(job),
    )
    for text in others:
        chosen = parse_options(text, chosen)
    configured = session.settings().job
    chosen = chosen.configured(configured, os.environ)
    if chosen.job is not None and not chosen.memory_bytes:
        chosen = replace(chosen, memory_bytes=configured.memory_bytes)
    place = resolved_mountpoint(mountpoint)
    data = session.dataset(dataset, job="")
    fields = {"dataset": dataset, "mountpoint": place, "generation": generation or data.generation}
    if is_dry_run:
        prepare_mountpoint(place)
        return session.output.summary(f"would mount dl://{dataset} on {place}", {"dry_run": True, **fields})
    if chosen.job is not None:
        gathering.announce(session.output, chosen, os.environ)
    process = control.mount(dataset, mountpoint, chosen)
    if job_told := control.job_of(place):
        nodes = chosen.nodes(os.environ)
        members = gathering.report(session.output, job_told["name"], nodes, job_told["members"])
        fields |= {**members, "node": job_told["node"]}
    text = f"dl://{dataset} is mounted on {place}; to end it: dlcmd umount {mountpoint}"
    return session.output.summary(text, {**fields, "process": process}, EXIT_OK)
