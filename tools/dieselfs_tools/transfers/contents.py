"""The content of stored files, extent by extent, on standard output. This module writes to it."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dieselfs.errors import Damaged, InvalidInput
from dieselfs.names import Location
from dieselfs_tools.cli.output import write_bytes
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs import Dataset


def write_contents(session: Session, locations: Sequence[Location]) -> None:
    """Looks up all files before it writes the first byte. Raises NotFound, InvalidInput, Damaged."""
    if session.output.is_json:
        raise InvalidInput("--json and the content of files cannot both go to standard output")
    session.output.is_stdout_taken = True
    datasets = {name: session.dataset(name) for name in dict.fromkeys(place.state for place in locations)}
    found = [(datasets[place.state], find_file(datasets[place.state], place.path)) for place in locations]
    for dataset, node in found:
        for content in extents(dataset, node):
            write_bytes(content)


def find_file(dataset: "Dataset", path: bytes) -> int:
    """The node of a file; links are followed. Raises NotFound, and InvalidInput for a folder."""
    snapshot = dataset.snapshot
    node = snapshot.find(path)
    if node < 0 or snapshot.stat(node).is_link:
        node = snapshot.follow(path)
    if not snapshot.stat(node).is_file:
        raise InvalidInput(f"{Location(dataset.name, path)} is a folder; name a file")
    return node


def extents(dataset: "Dataset", node: int) -> Iterator[bytes]:
    """The verified bytes of a file, extent by extent. Raises Damaged, Unavailable."""
    end_bytes = 0
    for extent in dataset.snapshot.extents(node):
        if extent.place != end_bytes:
            break
        yield from dataset.chunks.fetch_extents(extent.chunk, [extent])
        end_bytes += extent.length
    if end_bytes != dataset.snapshot.size(node):
        place = Location(dataset.name, dataset.snapshot.path(node), False)
        raise Damaged(f"{place}: its extents have {end_bytes} bytes of {dataset.snapshot.size(node)}")
