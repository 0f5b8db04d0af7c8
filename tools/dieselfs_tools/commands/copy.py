"""The verbs that store, fetch, copy and move files: `put`, `sync`, `get`, `cp` and `mv`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dieselfs.errors import EXIT_OK, EXIT_PARTIAL, InvalidInput
from dieselfs.names import Location, is_location, parse_location, split_remote
from dieselfs.units import count
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    pass


@options.verb(
    "put",
    "dlcmd put -r ./imagenet/ dl://imagenet/        # slash: the content, as dl://imagenet/train/...",
    "dlcmd put -r ./imagenet dl://sets/             # no slash: the folder, as dl://sets/imagenet/...",
    "dlcmd put cat.jpg dog.jpg dl://pets/train/     # into a folder, each under its own name",
    "tar c logs | dlcmd put - dl://runs/logs.tar    # standard input, under this name",
)
@click.argument("names", type=options.SOURCE, nargs=-1, required=True, metavar="SOURCE... dl://DATASET/PATH")
@options.recursive
@options.dry_run
@options.flag("-f", "--force", "is_forced", text="Also store files that are already stored.")
@options.encrypt
@options.compress
@options.dedup
@options.filters
@click.option(
    "--files-from",
    metavar="FILE",
    help="Store only the names in FILE ('-': standard input): one per line, relative to the one SOURCE folder.",
)
@options.processes
@options.chunk_size
def put(session: Session, **chosen: Any) -> int:
    """Store files in a dataset; a dataset that does not exist is created.

    A SOURCE folder with a slash at its end means its content, without one the folder itself. A destination with a slash
    at its end is a folder; otherwise it is the new name of a single file.

    Files that are already stored (same size, time and mode) are skipped, so the same command continues an interrupted
    upload. Unreadable files are listed at the end, and the rest is stored (exit code 2).
    """
    session.expect_server()
    from dieselfs_tools.transfers.upload import PutOptions, run_put

    return run_put(session, PutOptions(**chosen))


@options.verb(
    "sync",
    "dlcmd sync -n --delete ./pets/ dl://pets/       # only print the changes",
    "dlcmd sync --delete --exclude '*.tmp' ./pets/ dl://pets/",
    "dlcmd sync --delete dl://pets@v1/ ./pets        # the local folder becomes equal",
    "dlcmd sync /mnt/exp1                            # store what was written through a mount",
)
@click.argument("source", type=options.SOURCE, metavar="SOURCE")
@click.argument("destination", type=options.SOURCE, metavar="[DESTINATION]", required=False)
@options.flag("--delete", "is_mirror", text="Delete entries of the destination that SOURCE does not have.")
@options.encrypt
@options.compress
@options.dedup
@options.filters
@options.dry_run
@options.yes
@options.processes
@options.chunk_size
def sync(session: Session, source: str, destination: str | None, **chosen: Any) -> int:
    """Store what is new or changed in a local folder, as 'put -r' does; or write what is new or changed in a dataset to
    a local folder. With --delete, then delete what the source does not have. The slashes mean what they mean for 'put'
    and 'get'.

    Excluded entries are neither written nor deleted. Nothing is deleted if an entry cannot be read (exit code 2). An
    empty source, perhaps a file system that is not mounted, needs a confirmation, or -y. In a local folder, files with
    the same size and time are skipped, and those with the same bytes get the mode and time only.

    Without a DESTINATION, SOURCE is a mount that was made with --write: what was written there is stored, and what was
    deleted there is deleted.
    """
    if destination is None:
        return _sync_mount(session, source)
    if is_location(source) and is_location(destination):
        raise InvalidInput("one side must be a folder of this machine; between datasets, use cp -r")
    session.expect_server()
    from dieselfs_tools.transfers.upload import PutOptions, run_put

    put = PutOptions(names=[source, destination], **chosen)
    if is_location(source):
        given = {"--encrypt": put.is_encrypted, "--compress": put.compression, "--dedup": put.is_sharing}
        if wrong := next((option for option, value in given.items() if value), None):
            raise InvalidInput(f"{wrong} is for a dataset; files of this machine are written as they are")
        from dieselfs_tools.transfers.download import run_folder_sync

        return run_folder_sync(session, parse_location(source), destination, put)
    return run_put(session, put)


def _sync_mount(session: Session, place: str) -> int:
    """Store what was written through a mount."""
    from dieselfs_client.mount.points.mounting import resolved_mountpoint
    from dieselfs_client.writing.rounds import sync

    outcome = sync(resolved_mountpoint(place))
    for line in outcome.warnings():
        session.output.error(line)
    stored, deleted = count(outcome.stored, "entry"), count(outcome.deleted, "entry")
    return session.output.summary(
        f"stored {stored}, deleted {deleted}: dl://{outcome.dataset} is at generation {outcome.generation}",
        {
            "dataset": outcome.dataset,
            "generation": outcome.generation,
            "stored": outcome.stored,
            "stored_bytes": outcome.stored_bytes,
            "deleted": outcome.deleted,
            "failed": len(outcome.waiting),
        },
        EXIT_PARTIAL if outcome.waiting else EXIT_OK,
    )


@options.verb(
    "get",
    "dlcmd get -r dl://imagenet/val/ ./val          # slash: the content, as ./val/...",
    "dlcmd get -r dl://imagenet/val .               # no slash: the folder, as ./val/...",
    "dlcmd get dl://pets/train/cat.jpg ./tom.jpg    # one file, under a new name",
    "dlcmd get dl://runs/logs.tar - | tar x         # to standard output",
)
@click.argument(
    "names", type=options.SOURCE, nargs=-1, required=True, metavar="dl://DATASET/PATH... [DESTINATION]"
)
@options.recursive
@options.dry_run
@options.flag("-f", "--force", "is_forced", text="Also write files that already exist.")
@options.flag(
    "-p", "--preserve", "is_preserving", text="Give permissions as stored, also those that the umask forbids."
)
@options.filters
@options.processes
@options.where
def get(session: Session, **chosen: Any) -> int:
    """Write files of a dataset to DESTINATION. [this folder; '-': standard output]

    A stored folder with a slash at its end means its content, without one the folder itself; a dataset (dl://DATASET)
    always means its content. A single file is written into a DESTINATION that is a folder or ends with a slash;
    otherwise DESTINATION is its new name.

    Files that already exist (same size and time) are skipped, so the same command continues an interrupted download.
    Damaged files are listed at the end, and the rest is written (exit code 5).
    """
    from dieselfs_tools.transfers.download import run_get

    return run_get(session, **chosen)


@options.verb(
    "cp",
    "dlcmd cp dl://pets/train/cat.jpg dl://cats/       # a slash at the end: into that folder",
    "dlcmd cp -r dl://pets/train dl://pets/validation  # no slash: the new name",
    "dlcmd cp -r dl://pets@v1/train/ dl://pets/train/  # the content, as it was at a tag",
    "dlcmd cp -r ./pets/ dl://pets/                    # as 'put'; from dl:// to here as 'get'",
    "dlcmd cp -r dl://site1:pets dl://pets             # from a remote, a site in the configuration file",
)
@click.argument("names", type=options.PLACE, nargs=-1, required=True, metavar="SOURCE... DESTINATION")
@options.recursive
@options.replacing
@options.filters
@options.dry_run
def cp(session: Session, names: Sequence[str], **chosen: Any) -> int:
    """Copy files, links, and with -r folders, within a dataset or to another one. The servers copy the bytes. A dataset
    that does not exist is created.

    A DESTINATION with a slash at its end is a folder to copy into, otherwise it is the new name; a file goes into a
    folder that exists. A SOURCE folder with a slash at its end means its content.

    What exists with the same content is skipped, so the same command continues an interrupted copy. If files exist with
    other content, nothing is copied; -f replaces and --no-clobber keeps them.

    From or to another site (dl://REMOTE:DATASET/PATH), the bytes pass through this command, chunk by chunk; it verifies
    them, compares both sides at the end, and prints the digest of the copy.

    With files of this machine, 'cp' is 'put' or 'get', with their rules.
    """
    from dieselfs_tools.transfers.copy_runner import CopyOptions, run_copy

    if len(names) < 2:
        raise InvalidInput(f"the destination of {names[0]} is missing")
    remotes = {split_remote(name)[0] for name in names if is_location(name)}
    if len(remotes) == 1:
        session.settle(remotes.pop())
        names = [split_remote(name)[1] for name in names]
    *sources, destination = names
    are_stored = {is_location(source) for source in sources}
    if are_stored == {True, False}:
        raise InvalidInput("the sources must all be in datasets, or all on this machine")
    if is_location(destination) and are_stored == {True}:
        copying = CopyOptions(is_move=False, **chosen)
        places = list(map(options.location_at_site, sources))
        return run_copy(session, places, options.changeable_location(destination), copying)
    if not is_location(destination) and are_stored == {False}:
        raise InvalidInput(
            "neither the sources nor the destination are in a dataset: write dl://DATASET/PATH"
        )
    if chosen.pop("is_kept"):
        raise InvalidInput("--no-clobber works between datasets only")
    if is_location(destination):
        session.expect_server()
        from dieselfs_tools.transfers.upload import PutOptions, run_put

        return run_put(session, PutOptions(names=names, **chosen))
    from dieselfs_tools.transfers.download import run_get

    return run_get(session, names, is_preserving=False, jobs=options.PROCESSES, **chosen)


@options.verb(
    "mv",
    "dlcmd mv dl://pets/train/cat.jpg dl://pets/train/lynx.jpg",
    "dlcmd mv dl://pets/new dl://pets/train/          # a slash at the end: into that folder",
    "dlcmd mv dl://pets/train/ dl://cats/             # its content, to another dataset",
)
@click.argument("sources", type=options.CHANGEABLE, nargs=-1, required=True, metavar="dl://DATASET/OLD...")
@click.argument("destination", type=options.CHANGEABLE, metavar="dl://DATASET/NEW")
@options.replacing
@options.filters
@options.dry_run
def mv(session: Session, sources: Sequence[Location], destination: Location, **chosen: Any) -> int:
    """Move files, links, and folders with their content, also to another dataset. The servers copy the bytes; when all
    are stored, they delete the old paths.

    The slashes and the rules for what exists are those of 'cp'. After an interruption, entries may be at both paths;
    the same command continues.
    """
    from dieselfs_tools.transfers.copy_runner import CopyOptions, run_copy

    copying = CopyOptions(is_move=True, is_recursive=True, **chosen)
    return run_copy(session, sources, destination, copying)
