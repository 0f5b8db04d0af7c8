"""`dlcmd mv`: another path for a file or a folder."""

import click

from dieselfs.errors import EXIT_OK, InvalidInput
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
    """Move a file, a link, or a folder with all that is in it, inside one dataset.

    It is stored under the new path, then deleted under the old one; nothing that exists is replaced.
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
    return session.output.summary(f"moved {source} to {moved}", fields, EXIT_OK)
