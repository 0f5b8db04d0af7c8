"""`dlcmd cp`: copy files and folders inside the servers, or to and from this machine."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dieselfs.errors import InvalidInput
from dieselfs.limits import CHUNK_TARGET_BYTES
from dieselfs.names import is_location, parse_location
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs_tools.transfers.copy_runner import CopyOptions


@options.verb(
    "cp",
    "dlcmd cp dl://pets/train/cat.jpg dl://cats/       # a slash at the end: into that folder",
    "dlcmd cp -r dl://pets/train dl://pets/validation  # no slash: the new name",
    "dlcmd cp -r dl://pets@v1/train/ dl://pets/train/  # the content, as it was at a tag",
    "dlcmd cp -r ./pets/ dl://pets/                    # as 'put'; from dl:// to here as 'get'",
)
@click.argument("names", type=options.SOURCE, nargs=-1, required=True, metavar="SOURCE... DESTINATION")
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

    With files of this machine, 'cp' is 'put' or 'get', with their rules.
    """
    from dieselfs_tools.transfers.copy_runner import CopyOptions, run_copy

    if len(names) < 2:
        raise InvalidInput(f"the destination of {names[0]} is missing")
    copying = CopyOptions(is_move=False, **chosen)
    *sources, destination = names
    are_stored = {is_location(source) for source in sources}
    if are_stored == {True, False}:
        raise InvalidInput("the sources must all be in datasets, or all on this machine")
    if is_location(destination) and are_stored == {True}:
        places = list(map(parse_location, sources))
        return run_copy(session, places, options.changeable_location(destination), copying)
    if not is_location(destination) and are_stored == {False}:
        raise InvalidInput(
            "neither the sources nor the destination are in a dataset: write dl://DATASET/PATH"
        )
    if copying.is_kept:
        raise InvalidInput("--no-clobber works between datasets only")
    return _put(session, names, copying) if is_location(destination) else _get(session, names, copying)


def _put(session: Session, names: Sequence[str], copying: "CopyOptions") -> int:
    session.expect_server()
    from dieselfs_tools.transfers.put_runner import PutOptions, run_put

    put = PutOptions(
        names=names,
        is_recursive=copying.is_recursive,
        is_dry_run=copying.is_dry_run,
        is_forced=copying.is_forced,
        patterns=copying.patterns,
        files_from=None,
        jobs=options.JOBS,
        chunk_bytes=CHUNK_TARGET_BYTES,
    )
    return run_put(session, put)


def _get(session: Session, names: Sequence[str], copying: "CopyOptions") -> int:
    from dieselfs_tools.transfers.download_runner import run_get

    return run_get(
        session,
        names,
        is_recursive=copying.is_recursive,
        is_dry_run=copying.is_dry_run,
        is_forced=copying.is_forced,
        is_preserving=False,
        jobs=options.JOBS,
        patterns=copying.patterns,
    )
