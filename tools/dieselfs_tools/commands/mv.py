"""`dlcmd mv`: move or rename a file or a folder."""

import click

from dieselfs.errors import InvalidInput
from dieselfs.names import Location, split_path
from dieselfs_tools import options
from dieselfs_tools.output import name_fields
from dieselfs_tools.session import Session


@options.verb(
    "mv",
    "dlcmd mv dl://pets/train/cat.jpg dl://pets/train/lynx.jpg",
    "dlcmd mv dl://pets/new dl://pets/train/          # a slash at the end: into that folder",
)
@click.argument("source", type=options.CHANGEABLE, metavar="dl://DATASET/OLD")
@click.argument("target", type=options.CHANGEABLE, metavar="dl://DATASET/NEW")
@options.dry_run
def mv(session: Session, source: Location, target: Location, is_dry_run: bool) -> int:
    """Move a file, a link, or a folder with its content, inside one dataset.

    The new path is stored first, then the old one is deleted. Nothing is replaced.
    """
    if source.dataset != target.dataset:
        raise InvalidInput("both paths must be in one dataset; between datasets, use get and put")
    path = target.path
    if target.is_folder_form:
        name = split_path(source.path)[1]
        path = path + b"/" + name if path else name
    moved = Location(target.dataset, path, source.is_folder_form)
    fields = {"dataset": source.dataset, **name_fields(source.path, "old"), **name_fields(path, "new")}
    if is_dry_run:
        session.client.stat(source.dataset, source.path)
        return session.output.summary(f"would move {source} to {moved}", {"dry_run": True, **fields})
    session.dataset(source.dataset).rename(source.path, path)
    return session.output.summary(f"moved {source} to {moved}", fields)
