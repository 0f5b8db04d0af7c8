"""`dlcmd stat`: the attributes of a file, folder or link."""

import stat as modes
from collections.abc import Sequence

import click

from dieselfs.names import Location, printable
from dieselfs.units import format_time
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.entries import Entry


@options.verb(
    "stat",
    "dlcmd stat dl://pets/train/cat.jpg",
    "dlcmd stat --json dl://pets/train dl://pets/labels.csv",
)
@click.argument("locations", nargs=-1, required=True, type=options.LOCATION, metavar="dl://DATASET/PATH...")
def stat(session: Session, locations: Sequence[Location]) -> int:
    """Show type, size, mode and time; of a link, not of its target."""
    output = session.output
    for location in locations:
        entry = _find(session, location)
        seconds, nanoseconds = divmod(entry.mtime_ns, 10**9)
        lines = [
            str(Location(location.dataset, location.path, entry.is_folder, location.tag)),
            f"  type      {entry.type}",
            f"  size      {entry.size if entry.is_folder else output.size(entry.size)}",
            f"  mode      {modes.S_IMODE(entry.mode):04o} {modes.filemode(entry.mode)}",
            f"  modified  {format_time(seconds)}.{nanoseconds:09}",
        ]
        if entry.target:
            lines.append(f"  target    {printable(entry.target)}")
        output.record("entry", "\n".join(lines), {"dataset": location.dataset, **entry.fields()})
    return output.summary("", {"entries": len(locations)})


def _find(session: Session, location: Location) -> Entry:
    if location.tag:  # only a snapshot has the content of a tag
        snapshot = session.dataset(location.state).snapshot
        return Entry.of_snapshot(snapshot, snapshot.require(location.path))
    return Entry.of_server(location.path, session.client.stat(location.dataset, location.path))
