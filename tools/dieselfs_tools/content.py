"""The bytes of stored files, as a stream. This module waits for the server."""

from collections.abc import Iterator

from dieselfs.dataset import Dataset
from dieselfs.errors import Damaged, InvalidInput
from dieselfs.names import Location


def find_file(dataset: Dataset, path: bytes) -> int:
    """The node of a file, links followed. Raises NotFound, InvalidInput for a folder."""
    snapshot = dataset.snapshot
    node = snapshot.find(path)
    if node < 0 or snapshot.stat(node).is_link:
        node = snapshot.follow(path)
    if not snapshot.stat(node).is_file:
        raise InvalidInput(f"{Location(dataset.name, path)}: is a folder; name a file")
    return node


def pieces(dataset: Dataset, node: int) -> Iterator[bytes]:
    """The verified bytes of a file, in order, a chunk's worth at a time. Raises Damaged, Unavailable."""
    end_bytes = 0
    for extent in dataset.snapshot.extents(node):
        if extent.place != end_bytes:
            break
        yield dataset.chunks.fetch_extent(extent)
        end_bytes += extent.length
    if end_bytes != dataset.snapshot.size(node):
        raise Damaged(
            f"{Location(dataset.name, dataset.snapshot.path(node), False)}: its pieces do not make up the file"
        )
