"""`dlcmd du`: size and number of files of datasets and folders."""

import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from dieselfs.names import Location
from dieselfs_tools import options
from dieselfs_tools.entries import SIZE_COLUMNS
from dieselfs_tools.output import name_fields
from dieselfs_tools.session import Session

if TYPE_CHECKING:
    from dieselfs.snapshot.reader import Snapshot


@options.verb(
    "du",
    "dlcmd du dl://imagenet",
    "dlcmd du -d 1 --bytes dl://imagenet/train     # each folder in train, then train",
)
@click.argument("locations", nargs=-1, type=options.LOCATION, metavar="[dl://DATASET/PATH...]")
@click.option(
    "-d",
    "--depth",
    "depth_max",
    type=click.IntRange(0),
    default=0,
    help="Also print each folder down to this depth. [0]",
)
@options.human
def du(session: Session, locations: Sequence[Location], depth_max: int) -> int:
    """Print the size and the number of files of each location, or of all datasets."""
    places = locations or [Location(dataset.name) for dataset in session.client.datasets()]
    total_bytes = total_files = 0
    for place in places:
        sums = _sums(session, place, depth_max)
        for path, (size_bytes, files) in sums.items():
            shown = Location(place.dataset, path, tag=place.tag)
            text = f"{session.output.size(size_bytes):>{SIZE_COLUMNS}} {files:>12,} files  {shown}"
            fields = {"dataset": place.dataset, **name_fields(path), "bytes": size_bytes, "files": files}
            session.output.record("usage", text, fields)
        total_bytes += sums[place.path][0]
        total_files += sums[place.path][1]
    return session.output.summary("", {"bytes": total_bytes, "files": total_files})


Sums = dict[bytes, tuple[int, int]]
"""Bytes and files by path; a folder comes after the folders in it."""


def _sums(session: Session, place: Location, depth_max: int) -> Sums:
    if not place.path and not depth_max and not place.tag:  # the server knows these totals
        record = session.client.dataset(place.dataset)
        return {b"": (record.total_bytes, record.files)}
    return folder_sums(session.dataset(place.state).snapshot, place.path, depth_max)


def folder_sums(snapshot: "Snapshot", path: bytes, depth_max: int) -> Sums:
    """The sums of the folder at `path`, and of the folders down to `depth_max` below it. Raises NotFound."""
    import numpy as np

    top = snapshot.require(path)
    if not snapshot.stat(top).is_folder:
        return {path: (snapshot.stat(top).size, 1)}
    kinds, sizes = snapshot.column("modes") & 0o170000, snapshot.column("sizes")
    sums: Sums = {path: (0, 0)}
    pending = [(top, [path])]  # a folder, and the listed folders that contain it
    while pending:
        folder, counted = pending.pop()
        children = snapshot.children(folder)
        of_folder = slice(children.start, children.stop)
        is_file = kinds[of_folder] == stat.S_IFREG
        size_bytes, files = int(sizes[of_folder][is_file].sum()), int(is_file.sum())
        for listed in counted:
            sums[listed] = (sums[listed][0] + size_bytes, sums[listed][1] + files)
        for child in (np.flatnonzero(kinds[of_folder] == stat.S_IFDIR) + children.start).tolist():
            is_listed = len(counted) <= depth_max
            pending.append((child, [*counted, snapshot.path(child)] if is_listed else counted))
            if is_listed:
                sums[snapshot.path(child)] = (0, 0)
    return {listed: sums[listed] for listed in sorted(sums, reverse=True)}
