"""`dlcmd rm`: delete files and folders."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from dieselfs.chunk.format import Op
from dieselfs.dataset import Dataset
from dieselfs.errors import EXIT_OK, InvalidInput
from dieselfs.names import Location
from dieselfs_tools import options
from dieselfs_tools.confirmation import confirm_name
from dieselfs_tools.output import name_fields
from dieselfs_tools.session import Session
from dieselfs_tools.units import count


@dataclass(frozen=True)
class Doomed:
    """A path that is to be deleted."""

    dataset: Dataset
    path: bytes


@options.verb(
    "rm",
    "dlcmd rm dl://pets/train/blurred.jpg",
    "dlcmd rm -r -n dl://pets/old/                  # say what would go",
)
@click.argument("locations", nargs=-1, required=True, type=options.CHANGEABLE, metavar="dl://DATASET/PATH...")
@click.option("-r", "--recursive", "is_recursive", is_flag=True, help="Folders, with all that is in them.")
@options.dry_run
@options.yes
def rm(
    session: Session,
    locations: Sequence[Location],
    is_recursive: bool,
    is_dry_run: bool,
    is_confirmed: bool,
) -> int:
    """Delete files, links and, with -r, folders. Whoever reads an older generation still sees them.

    To empty a whole dataset you are asked for its name, unless -y is given. The room is won back by 'dlcmd purge'.
    """
    datasets = {name: session.dataset(name) for name in dict.fromkeys(place.dataset for place in locations)}
    doomed = [one for place in locations for one in _doomed(datasets[place.dataset], place, is_recursive)]
    output = session.output
    if is_dry_run:
        for one in doomed:
            place = Location(one.dataset.name, one.path, False)
            output.detail(
                "entry", f"would delete {place}", {"dataset": one.dataset.name, **name_fields(one.path)}
            )
        return output.summary(
            f"would delete {count(len(doomed), 'entry')}", {"dry_run": True, "entries": len(doomed)}
        )
    for place in locations:
        if not place.path and not is_confirmed:
            confirm_name(place.dataset, f"this deletes everything in {place}")
    for one in doomed:
        one.dataset.writer.delete(one.path)
    for dataset in datasets.values():
        dataset.flush()
    return output.summary(f"deleted {count(len(doomed), 'entry')}", {"entries": len(doomed)}, EXIT_OK)


def _doomed(dataset: Dataset, location: Location, is_recursive: bool) -> Iterator[Doomed]:
    """What deleting `location` deletes. Raises NotFound, InvalidInput for a folder without `is_recursive`.

    A single file is looked up at the server; a snapshot is only needed for what is below a folder.
    """
    if location.path and Op(dataset.client.stat(dataset.name, location.path).op) != Op.DIRECTORY:
        yield Doomed(dataset, location.path)
        return
    if not is_recursive:
        raise InvalidInput(f"{location} is a folder: delete it with -r")
    snapshot = dataset.snapshot
    for node in snapshot.walk(snapshot.require(location.path)):
        yield Doomed(dataset, snapshot.path(node))
    if location.path:
        yield Doomed(dataset, location.path)
