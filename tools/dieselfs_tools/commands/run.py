"""`dlcmd run`: run a command with a mounted dataset."""

import shutil
from typing import Any

import click

from dieselfs.names import Location
from dieselfs.settings.flags import settings_options
from dieselfs.settings.table import Place
from dieselfs_tools.cli import options
from dieselfs_tools.cli.mount_options import mount_options
from dieselfs_tools.cli.session import Session

EXIT_CANNOT_RUN = 126
EXIT_NO_COMMAND = 127
"""As of a shell."""


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
    session.dataset(
        dataset.state, job=""
    )  # the server of embedded data is started here, where it outlives the command
    session.close()
    try:
        status = private_mount.run(dataset.part, command, chosen, at, session.output.aside)
    except OSError as error:
        session.output.error(f"{command[0]}: {error.strerror}")
        return EXIT_CANNOT_RUN
    end_as(status)
