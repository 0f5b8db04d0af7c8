"""`dlcmd upgrade`: replace the daemons of mounts."""

from collections.abc import Sequence

import click

from dieselfs_client.daemon import control
from dieselfs_client.mount.points.mounting import resolved_mountpoint
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session


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
    places = [resolved_mountpoint(mountpoint) for mountpoint in mountpoints] or [
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
