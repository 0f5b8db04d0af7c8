"""Samples of several files that share a base name, grouped as WebDataset does it: `1.jpg`, `1.json`, `1.mask.png`.

No I/O of its own.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Nodes, Numbers, distinct
from dieselfs.errors import InvalidInput, NotFound
from dieselfs.names import printable
from dieselfs.samples.loading import Loader, check_loader, loader_of
from dieselfs.samples.sample_set import SampleSet
from dieselfs.samples.source import ConnectOptions, SampleSource, open_source
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.subtree import files_below

KEY = "__key__"
"""The entry of an item with the base name, relative to the root; WebDataset's name for it."""

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Pairs:
    """`parts`: shape (samples, extensions), the node of each file, -1 where it is missing. By base name, ascending."""

    extensions: tuple[str, ...]
    parts: npt.NDArray[np.int64]


class PairSamples(SampleSet):
    """Samples of several files that share a base name. An item is a dictionary, as in WebDataset:
    `{"__key__": "train/0001", "jpg": image, "json": {...}}`.

        PairSamples("coco@v1/train", ["jpg", "json", "mask.png"])
        PairSamples("/mnt/coco/train", ["jpg", "cls"], loaders={"jpg": bytes})

    The base name ends at the first dot of the file's name; the extension is the rest, in lower case.
    """

    loaders: dict[str, Loader]
    """By extension, in the order of the columns of `parts`."""
    parts: npt.NDArray[np.int64]
    """Shape (n, extensions): the node of each file, -1 where it is missing."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        extensions: Iterable[str] | None = None,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        *,
        loaders: Mapping[str, Loader] | None = None,
        is_partial_allowed: bool = False,
        **connection: Unpack[ConnectOptions],
    ) -> None:
        """`extensions`: those of a sample; None: all that occur. Files with others are ignored. `transform` receives
        the dictionary. `loaders`: by extension; by default images, `json`, `txt`, `cls` and `npy` are decoded, and
        others are bytes. `is_partial_allowed`: items have the files that exist; otherwise each sample must have all.

        Raises NotFound if a file is missing; InvalidInput, AccessDenied, Unavailable.
        """
        super().__init__(root, *open_source(root, **connection))
        wanted = None if extensions is None else tuple(_extension(extension) for extension in extensions)

        def find() -> npt.NDArray[np.int64]:
            found = find_pairs(self.snapshot, self.folder, wanted)
            own = {_extension(extension): loader for extension, loader in (loaders or {}).items()}
            self.loaders = {one: own.get(one, loader_of(one)) for one in found.extensions}
            if unknown := own.keys() - self.loaders.keys():
                raise InvalidInput(f"there is a loader for {', '.join(sorted(unknown))}, but no such file")
            for loader in self.loaders.values():
                check_loader(loader)
            if not is_partial_allowed:
                _check_whole(self.snapshot, found)
            self.parts = found.parts
            # The file that gives a sample its place is the first one that exists.
            first: npt.NDArray[np.int64] = self.parts[
                np.arange(len(self.parts)), (self.parts >= 0).argmax(axis=1)
            ]
            return first

        self.transform = transform
        self._find(find)

    @property
    def extensions(self) -> list[str]:
        return list(self.loaders)

    @property
    def samples(self) -> list[str]:
        """The keys of all samples, made at each use."""
        return [self._key(index) for index in range(len(self))]

    def _key(self, index: int) -> str:
        path = self.snapshot.path(int(self.nodes[index]))
        below = path[len(self.folder) + 1 :] if self.folder else path
        return os.fsdecode(_split(below)[0])

    def reads(self, indices: Numbers) -> Iterator[tuple[SampleSource, Numbers, Nodes]]:
        """All files of each sample."""
        parts = self.parts[indices]
        places, columns = np.nonzero(parts >= 0)
        yield self.source, places, parts[places, columns].astype(np.uint32)

    def _items(self, indices: Any) -> list[Any]:
        parts = self.parts[indices]
        is_there = parts >= 0
        contents = iter(self.source.read_many(parts[is_there].tolist()))
        items = []
        for index, present in zip(indices, is_there.tolist(), strict=True):
            item: dict[str, Any] = {KEY: self._key(index)}
            for (extension, loader), exists in zip(self.loaders.items(), present, strict=True):
                if exists:
                    item[extension] = loader(next(contents))
            items.append(item if self.transform is None else self.transform(item))
        return items


def find_pairs(snapshot: Snapshot, folder: bytes, extensions: tuple[str, ...] | None = None) -> Pairs:
    """The files below `folder` by base name; `extensions` None takes all that occur, in the order of their names. About
    2 us per file.

    Raises NotFound if there is none; InvalidInput if two files of a sample have the same extension (`1.jpg`, `1.JPG`).
    """
    nodes = files_below(snapshot, snapshot.require_folder(folder))
    found: dict[bytes, dict[str, int]] = {}
    for path, node in zip(snapshot.path_many(nodes), nodes.tolist(), strict=True):
        base, extension = _split(path)
        if extension and (extensions is None or extension in extensions):
            other = found.setdefault(base, {}).setdefault(extension, node)
            if other != node:
                one = printable(snapshot.path(other))
                raise InvalidInput(f"{one} and {printable(path)} are the same part of one sample: remove one")
    if not found:
        wanted = (
            "with an extension" if extensions is None else f"with the extension {' or '.join(extensions)}"
        )
        raise NotFound(f"dl://{snapshot.dataset}/{printable(folder)}: no file {wanted}")
    if extensions is None:
        extensions = tuple(sorted(set().union(*found.values())))
    rows = [[found[base].get(one, -1) for one in extensions] for base in sorted(found)]
    return Pairs(extensions, np.array(rows, np.int64))


def _check_whole(snapshot: Snapshot, pairs: Pairs) -> None:
    """Raises NotFound if a sample has not all of its files."""
    rows, columns = np.nonzero(pairs.parts < 0)
    if not len(rows):
        return
    first = (pairs.parts >= 0).argmax(axis=1)
    some = [
        f"{printable(_split(snapshot.path(int(pairs.parts[row, first[row]])))[0])}.{pairs.extensions[column]}"
        for row, column in zip(rows[:_SHOWN].tolist(), columns[:_SHOWN].tolist(), strict=True)
    ]
    more = ", ..." if len(rows) > _SHOWN else ""
    raise NotFound(
        f"dl://{snapshot.dataset}: {len(rows)} files of {len(distinct(rows))} samples are missing: "
        f"{', '.join(some)}{more}; is_partial_allowed=True takes samples as they are"
    )


def _split(path: bytes) -> tuple[bytes, str]:
    """Base name and extension, in lower case: at the first dot of the name that is not its first character."""
    start = path.rfind(b"/") + 1
    dot = path.find(b".", start + 1)
    return (path, "") if dot < 0 else (path[:dot], os.fsdecode(path[dot + 1 :].lower()))


def _extension(text: str) -> str:
    extension = text.lower().removeprefix(".")
    if not extension or "/" in extension:
        raise InvalidInput(f"{text!r} is not a file extension: write for example jpg or mask.png")
    return extension
