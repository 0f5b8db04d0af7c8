"""`dlcmd umount`: unmount datasets."""

import shlex
from collections.abc import Sequence

import click

from dieselfs.errors import EXIT_OK, EXIT_PARTIAL, InvalidInput, MountError
from dieselfs.names import SCHEME, Location, is_location, parse_location
from dieselfs_client.daemon import control
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session


@options.verb(
    "umount",
    "dlcmd umount /mnt/imagenet",
    "dlcmd umount --lazy /mnt/imagenet       # open files stay readable",
)
@click.argument("mountpoints", type=options.MOUNTPOINT, nargs=-1, required=True, metavar="FOLDER...")
@options.flag("-l", "--lazy", "is_lazy", text="Detach now; open files stay readable until they are closed.")
@options.dry_run
def umount(session: Session, mountpoints: Sequence[str], is_lazy: bool, is_dry_run: bool) -> int:
    """Unmount datasets. If one of several fails, it is listed, and the others are unmounted (exit code 2)."""
    if named := [name for name in mountpoints if is_location(name)]:
        raise InvalidInput(_where(parse_location(named[0])))
    would = "would unmount" if is_dry_run else "unmounted"
    failed = 0
    for mountpoint in mountpoints:
        try:
            place = control.mounted_place(mountpoint)
            if not is_dry_run:
                control.unmount(mountpoint, is_lazy)
        except MountError as error:
            if len(mountpoints) == 1:
                raise
            session.output.error(str(error))
            failed += 1
            continue
        session.output.detail("mount", f"{would} {place}", {"mountpoint": place})
    fields = {"dry_run": is_dry_run, "mounts": len(mountpoints) - failed, "failed": failed}
    return session.output.summary("", fields, EXIT_PARTIAL if failed else EXIT_OK)


def _where(location: Location) -> str:
    """What to write in place of a dataset."""
    places = [
        shlex.quote(mount.mountpoint)
        for mount in control.mounts()
        if parse_location(f"{SCHEME}{mount.dataset}").dataset == location.dataset
    ]
    if not places:
        return f"{location} is not mounted on this machine; 'dlcmd mounts' lists what is"
    return f"umount takes the folder of a mount: dlcmd umount {' '.join(places)}"
