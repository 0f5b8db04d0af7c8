"""`dlcmd umount`: end mounts."""

from collections.abc import Sequence

import click

from dieselfs.errors import EXIT_OK
from dieselfs_client import control
from dieselfs_client.mount.mounting import resolved_mountpoint
from dieselfs_tools import options
from dieselfs_tools.session import Session


@options.verb(
    "umount",
    "dlcmd umount /mnt/imagenet",
    "dlcmd umount --lazy /mnt/imagenet       # although files on it are open",
)
@click.argument("mountpoints", nargs=-1, required=True, metavar="FOLDER...")
@click.option(
    "-l",
    "--lazy",
    "is_lazy",
    is_flag=True,
    help="Although files on it are open; they can be read to the end.",
)
@options.dry_run
def umount(session: Session, mountpoints: Sequence[str], is_lazy: bool, is_dry_run: bool) -> int:
    """Unmount datasets."""
    would = "would unmount" if is_dry_run else "unmounted"
    for mountpoint in mountpoints:
        if not is_dry_run:
            control.unmount(mountpoint, is_lazy)
        place = resolved_mountpoint(mountpoint)
        session.output.detail("mount", f"{would} {place}", {"mountpoint": place})
    fields = {"dry_run": is_dry_run, "mounts": len(mountpoints)}
    return session.output.summary("", fields, EXIT_OK)
