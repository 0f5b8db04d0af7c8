"""Which files of a folder are samples, and of which class, as torchvision's `ImageFolder` has it. No I/O.

Columns, not tuples: 1.28 million samples take 10 MB, and are shared by forked workers as they are.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dieselfs.errors import InvalidInput, NotFound
from dieselfs.meta.snapshot import Snapshot
from dieselfs.meta.subtree import files_below, nodes_below
from dieselfs.names import printable

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""What `ImageFolder` takes for images."""

_LOWER = np.frombuffer(bytes(range(256)).lower(), np.uint8)


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples by class, then by folder, then by name. `nodes` are their numbers in the snapshot."""

    classes: tuple[str, ...]
    nodes: npt.NDArray[np.uint32]
    labels: npt.NDArray[np.int32]
    other_files: int
    """Files of the folder that are no samples."""

    def index_by_node(self, nodes: int) -> npt.NDArray[np.int32]:
        """The index of the sample at each node of a snapshot with so many nodes, -1 for what is no sample."""
        index = np.full(nodes, -1, np.int32)
        index[self.nodes] = np.arange(len(self.nodes))
        return index


def find_samples(
    snapshot: Snapshot, folder: bytes, extensions: Iterable[str] | None = IMAGE_EXTENSIONS
) -> Samples:
    """The samples below `folder`. Its sub-folders are the classes, in the order of their names; a file anywhere
    below one is a sample if its name ends in one of `extensions`, in small or large letters; None takes all.

    Raises NotFound if there is no such folder, or a class has no sample; InvalidInput if it is no folder, or
    samples are behind symbolic links: an order has each file once, under its own path.
    """
    root = snapshot.require(folder)
    if not snapshot.stat(root).is_folder:
        raise InvalidInput(f"{_shown(snapshot, root)} is not a folder")
    names = sorted(
        os.fsdecode(snapshot.name(node)) for node in snapshot.children(root) if snapshot.stat(node).is_folder
    )
    endings = None if extensions is None else tuple(_ending(extension) for extension in extensions)
    label_of_folder, rank_of_folder = _folders_below(snapshot, root, names)
    _check_links(snapshot, root, label_of_folder, endings)

    parents = snapshot.column("parents")
    files = files_below(snapshot, root)
    in_class = files[label_of_folder[parents[files]] >= 0]
    in_class = in_class[_has_ending(snapshot, in_class, endings)]
    # The files of one folder have their numbers in the order of their names.
    nodes = in_class[np.lexsort((in_class, rank_of_folder[parents[in_class]]))]
    labels = label_of_folder[parents[nodes]]
    empty = [names[label] for label in np.flatnonzero(np.bincount(labels, minlength=len(names)) == 0)]
    if empty or not names:
        missing = f"no file of a class in {_some(empty)}" if names else "no folder, so there are no classes"
        kinds = "" if endings is None else f" (looked for {', '.join(map(os.fsdecode, endings))})"
        raise NotFound(f"{_shown(snapshot, root)}: {missing}{kinds}")
    return Samples(tuple(names), nodes.astype(np.uint32), labels, len(files) - len(nodes))


def _folders_below(
    snapshot: Snapshot, root: int, names: list[str]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """By node: the class that a folder belongs to, -1 for none, and its place among all in the order of paths.

    Only folders that something lies in have them.
    """
    label_by_name = {name: label for label, name in enumerate(names)}
    parents = snapshot.column("parents")
    start = len(snapshot.path(root)) + 1 if root else 0
    placed = []
    for level in nodes_below(snapshot, root)[1:]:
        for folder in np.unique(parents[level.start : level.stop]).tolist():
            below = os.fsdecode(snapshot.path(folder)[start:])
            placed.append((below.partition("/")[0], below, folder))
    labels = np.full(len(snapshot), -1, np.int32)
    ranks = np.zeros(len(snapshot), np.int64)
    for rank, (name, _, folder) in enumerate(sorted(placed)):
        labels[folder], ranks[folder] = label_by_name[name], rank
    return labels, ranks


def _ending(extension: str) -> bytes:
    ending = os.fsencode(extension).lower()
    if not ending or b"/" in ending:
        raise InvalidInput(f"{extension!r} is no ending of a file name")
    return ending


def _has_ending(
    snapshot: Snapshot, nodes: npt.NDArray[np.int64], endings: tuple[bytes, ...] | None
) -> npt.NDArray[np.bool_]:
    """Whose names end like this. The nodes lie in folders, so that what stands before a short name has a slash."""
    found = np.full(len(nodes), endings is None)
    if endings is None or not len(nodes):
        return found
    paths, ends = snapshot.column("paths"), snapshot.column("path_ends")[nodes].astype(np.int64)
    width = max(map(len, endings))
    tails = _LOWER[paths[np.maximum(ends[:, None] - np.arange(width, 0, -1), 0)]]
    for ending in endings:
        found |= (tails[:, width - len(ending) :] == np.frombuffer(ending, np.uint8)).all(axis=1)
    return found


def _check_links(
    snapshot: Snapshot, root: int, label_of_folder: npt.NDArray[np.int32], endings: tuple[bytes, ...] | None
) -> None:
    """Raises InvalidInput if a link is where `ImageFolder` finds samples."""
    links = snapshot.column("link_nodes").astype(np.int64)
    parents = snapshot.column("parents")[links]
    in_class = label_of_folder[parents] >= 0
    behind = links[in_class][_has_ending(snapshot, links[in_class], endings)].tolist()
    others = links[in_class | (parents == root)].tolist()
    for node in behind or (node for node in others if _leads_to_folder(snapshot, node)):
        raise InvalidInput(
            f"{_shown(snapshot, node)} is a symbolic link; samples must be files of their own: "
            "store what it leads to (cp -rL makes such a copy)"
        )


def _leads_to_folder(snapshot: Snapshot, link: int) -> bool:
    try:
        return snapshot.stat(snapshot.follow(snapshot.path(link))).is_folder
    except NotFound:
        return False


def _some(names: list[str], at_most: int = 5) -> str:
    return ", ".join(names[:at_most]) + (f" and {len(names) - at_most} more" if len(names) > at_most else "")


def _shown(snapshot: Snapshot, node: int) -> str:
    return f"dl://{snapshot.dataset}/{printable(snapshot.path(node))}"
