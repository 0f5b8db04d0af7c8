"""The verb `du`: sizes of folders."""

import stat as modes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from dieselfs.errors import InvalidInput, ProtocolError, Unavailable
from dieselfs.names import Location
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import name_fields
from dieselfs_tools.cli.patterns import ALL, Patterns
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.entries import SIZE_COLUMNS

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
@options.flag(
    "--stored", "is_stored", text="Also what a dataset takes in the store; one look-up for each chunk."
)
@options.filters
@options.human
@options.where
def du(
    session: Session, locations: Sequence[Location], depth_max: int, is_stored: bool, patterns: Patterns
) -> int:
    """Print the size and the number of files of each location, or of all datasets.

    With --stored, also the bytes of the objects of each dataset in the object store: compressed, those that files share
    once, and with what waits for a purge. It needs the right to write.
    """
    places = locations or [Location(dataset.name) for dataset in session.client.datasets()]
    if is_stored and any(place.path or place.tag for place in places):
        raise InvalidInput(
            "--stored is for whole datasets: files share chunks, so a folder has no bytes of its own"
        )
    total_bytes = total_files = total_object_bytes = 0
    for place in places:
        sums = _sums(session, place, depth_max, patterns)
        for path, (size_bytes, files) in sums.items():
            shown = Location(place.dataset, path, tag=place.tag)
            text = f"{session.output.size(size_bytes):>{SIZE_COLUMNS}} {files:>12,} files  {shown}"
            fields = {"dataset": place.dataset, **name_fields(path), "bytes": size_bytes, "files": files}
            if is_stored and path == place.path:
                fields["object_bytes"] = object_bytes = _object_bytes(session, place.dataset)
                total_object_bytes += object_bytes
                text += f"  ({session.output.size(object_bytes)} stored)"
            session.output.record("usage", text, fields)
        total_bytes += sums[place.path][0]
        total_files += sums[place.path][1]
    total = {"bytes": total_bytes, "files": total_files}
    return session.output.summary("", total | ({"object_bytes": total_object_bytes} if is_stored else {}))


def _object_bytes(session: Session, dataset: str) -> int:
    try:
        return session.client.object_bytes(dataset)
    except (Unavailable, ProtocolError) as error:  # how a server answers a method that it does not know
        session.client.dataset(dataset)  # raises if the server is away
        raise Unavailable(
            f"dl://{dataset}: {error}; other calls are answered, so perhaps the server is too old for --stored: "
            "upgrade it, or leave out --stored"
        ) from None


Sums = dict[bytes, tuple[int, int]]
"""Bytes and files by path; a folder comes after the folders in it."""


def _sums(session: Session, place: Location, depth_max: int, patterns: Patterns) -> Sums:
    if not (
        patterns or place.path or depth_max or place.tag or session.where
    ):  # the server knows these totals
        record = session.client.dataset(place.dataset)
        return {b"": (record.total_bytes, record.files)}
    return folder_sums(session.dataset(place.state).snapshot, place.path, depth_max, patterns)


def folder_sums(snapshot: "Snapshot", path: bytes, depth_max: int, patterns: Patterns = ALL) -> Sums:
    """The sums of the folder at `path`, and of the folders down to `depth_max` below it, of what the patterns select.
    Raises NotFound.
    """
    import numpy as np

    from dieselfs.snapshot.subtree import nodes_below
    from dieselfs_tools.transfers.trees import selected_nodes

    top = snapshot.require(path)
    if not snapshot.stat(top).is_folder:
        return {path: (snapshot.stat(top).size, 1)}
    kinds, parents = snapshot.types(), snapshot.column("parents")
    is_file, levels = kinds == modes.S_IFREG, nodes_below(snapshot, top)
    if (selected := selected_nodes(snapshot, top, patterns)) is not None:
        is_file &= np.isin(np.arange(len(is_file)), selected)
    size_bytes = np.where(is_file, snapshot.column("sizes"), 0).astype(np.int64)
    files = is_file.astype(np.int64)
    for level in reversed(levels):
        nodes = slice(level.start, level.stop)
        np.add.at(size_bytes, parents[nodes], size_bytes[nodes])
        np.add.at(files, parents[nodes], files[nodes])
    listed = [top, *(node for level in levels[:depth_max] for node in level if kinds[node] == modes.S_IFDIR)]
    sums = {snapshot.path(node): (int(size_bytes[node]), int(files[node])) for node in listed}
    return dict(sorted(sums.items(), reverse=True))
