"""Samples in folders that are their classes, as in torchvision's `ImageFolder`. No I/O of its own.

Columns, not tuples: 1.28 million samples take 10 MB, which forked workers share.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Nodes, distinct
from dieselfs.errors import InvalidInput, NotFound
from dieselfs.names import printable
from dieselfs.samples.loading import IMAGE_EXTENSIONS, Loader, Transform, check_loader, load_image
from dieselfs.samples.sample_set import LocationList, SampleSet
from dieselfs.samples.source import ConnectOptions, open_source
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.subtree import files_below, listed_children, nodes_below

_LOWER = np.frombuffer(bytes(range(256)).lower(), np.uint8)
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples by class, then by folder, then by name. `nodes`: shape (n,), their node numbers; `labels`: shape
    (n,), the index of their class in `classes`.
    """

    classes: tuple[str, ...]
    nodes: Nodes
    labels: npt.NDArray[np.int32]


class FolderSamples(SampleSet):
    """Samples of classes that are folders, labelled and numbered as torchvision's `ImageFolder` does it.

        FolderSamples("imagenet@v3/train")       # through the library
        FolderSamples("/mnt/imagenet/train")     # files on a mount, or in any local folder

    An item is `(transform(loader(content)), target_transform(label))`. A batch is read at once (`__getitems__`); the
    library requests each of its chunks once.
    """

    labels: npt.NDArray[np.int32]
    """Shape (n,), the class of each sample."""
    _classes: tuple[str, ...]

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        *,
        loader: Loader = load_image,
        extensions: Iterable[str] | None = IMAGE_EXTENSIONS,
        copy: bool = True,
        **connection: Unpack[ConnectOptions],
    ) -> None:
        """`loader` converts the bytes of a file (`loader=bytes`: no conversion); `extensions` None takes all files.
        Without `copy` it gets read-only memoryviews, which keep their whole chunk in memory while they exist.
        `root` and the options of the connection: see `open_source`; which files are samples: see `find_samples`.

        Raises NotFound, InvalidInput, AccessDenied, Unavailable.
        """
        check_loader(loader)
        super().__init__(root, *open_source(root, **connection))
        self.transform, self.target_transform, self.loader = transform, target_transform, loader
        self._is_copied = copy

        def find() -> Nodes:
            found = find_samples(self.snapshot, self.folder, extensions)
            self._classes, self.labels = found.classes, found.labels
            return found.nodes

        self._find(find)

    @property
    def classes(self) -> list[str]:
        """Names of the classes; the label of a class is its index."""
        return list(self._classes)

    @property
    def class_to_idx(self) -> dict[str, int]:
        return {name: label for label, name in enumerate(self._classes)}

    @cached_property
    def targets(self) -> list[int]:
        """The label of each sample, as a list that is made at first use; `labels` is the array."""
        labels: list[int] = self.labels.tolist()
        return labels

    @property
    def samples(self) -> LocationList:
        """`(path, label)` of each sample. On a mount, `open` takes the path; else it is the path in the dataset."""
        return LocationList(self._location, self.nodes, self.labels)

    imgs = samples  # code for `ImageFolder` uses both

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {len(self._classes):,} classes>"

    def _items(self, indices: Any) -> list[tuple[Any, Any]]:
        nodes, labels = self.nodes[indices].tolist(), self.labels[indices].tolist()
        contents = self._contents(nodes, self.loader)
        return [self._item(content, label) for content, label in zip(contents, labels, strict=True)]

    def _item(self, content: bytes | memoryview, label: int) -> tuple[Any, Any]:
        sample, transform, target_transform = self.loader(content), self.transform, self.target_transform
        return (
            sample if transform is None else transform(sample),
            label if target_transform is None else target_transform(label),
        )


def find_samples(
    snapshot: Snapshot, folder: bytes, extensions: Iterable[str] | None = IMAGE_EXTENSIONS
) -> Samples:
    """The samples below `folder`. Its sub-folders are the classes, in the order of their names; a file anywhere
    below one is a sample if its name ends in one of `extensions`, in any case; None takes all files.

    Raises NotFound if the folder does not exist, or a class has no sample; InvalidInput if it is not a folder, or
    if samples are behind symbolic links: an order contains each file once, under its own path.
    """
    root = snapshot.require_folder(folder)
    names = sorted(
        os.fsdecode(snapshot.name(node))
        for node in listed_children(snapshot, root)
        if snapshot.stat(node).is_folder
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
        missing = f"no sample in class {_some(empty)}" if names else "no sub-folder, so there are no classes"
        kinds = "" if endings is None else f" (looked for {', '.join(map(os.fsdecode, endings))})"
        raise NotFound(f"{_shown(snapshot, root)}: {missing}{kinds}")
    return Samples(tuple(names), nodes.astype(np.uint32), labels)


def _folders_below(
    snapshot: Snapshot, root: int, names: list[str]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """The class of each folder, -1 for none, and its rank in the order of paths; both have one element per node.

    Empty folders have neither.
    """
    label_by_name = {name: label for label, name in enumerate(names)}
    parents = snapshot.column("parents")
    start = len(snapshot.path(root)) + 1 if root else 0
    placed = []
    for level in nodes_below(snapshot, root)[1:]:
        for folder in distinct(parents[level.start : level.stop]).tolist():
            below = os.fsdecode(snapshot.path(folder)[start:])
            if (label := below.partition("/")[0]) in label_by_name:
                placed.append((label, below, folder))
    labels = np.full(len(snapshot), -1, np.int32)
    ranks = np.zeros(len(snapshot), np.int64)
    for rank, (name, _, folder) in enumerate(sorted(placed)):
        labels[folder], ranks[folder] = label_by_name[name], rank
    return labels, ranks


def _ending(extension: str) -> bytes:
    ending = os.fsencode(extension).lower()
    if not ending or b"/" in ending:
        raise InvalidInput(f"{extension!r} is not a file extension: write for example .jpg")
    return ending


def _has_ending(
    snapshot: Snapshot, nodes: npt.NDArray[np.int64], endings: tuple[bytes, ...] | None
) -> npt.NDArray[np.bool_]:
    """Whether each name has one of the endings: shape (n,). The nodes are in folders, so a slash precedes each name."""
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
    """Raises InvalidInput for a link that `ImageFolder` would follow to samples."""
    links = snapshot.column("link_nodes").astype(np.int64)
    parents = snapshot.column("parents")[links]
    in_class = label_of_folder[parents] >= 0
    behind = links[in_class][_has_ending(snapshot, links[in_class], endings)].tolist()
    others = links[in_class | (parents == root)].tolist()
    for node in behind or (node for node in others if _leads_to_folder(snapshot, node)):
        raise InvalidInput(
            f"{_shown(snapshot, node)} is a symbolic link, and samples must be files: "
            "store the target instead (cp -rL makes such a copy)"
        )


def _leads_to_folder(snapshot: Snapshot, link: int) -> bool:
    try:
        return snapshot.stat(snapshot.follow(snapshot.path(link))).is_folder
    except NotFound:
        return False


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _shown(snapshot: Snapshot, node: int) -> str:
    return f"dl://{snapshot.dataset}/{printable(snapshot.path(node))}"
