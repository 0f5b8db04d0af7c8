"""Samples that this library reads, as a sequence of items. No I/O of its own: a source reads."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dieselfs.samples.loading import VIEW_LOADERS, Loader
from dieselfs.samples.order import SamplePlaces
from dieselfs.samples.source import SampleSource


class SampleSet(SamplePlaces, ABC):
    """The base of the datasets: item i is made of the bytes of one or several files.

    A subclass has `_items`. Works after a fork, and pickles, so `DataLoader` workers can use it. Close it after use, or
    use it in a `with` block.
    """

    def __init__(self, root: str | os.PathLike[str], source: SampleSource, folder: bytes) -> None:
        """`nodes` is set by the subclass, when it has found the samples."""
        super().__init__(source, folder, np.empty(0, np.uint32))
        self.root = os.fspath(root)
        self._times = source.times

    def _find(self, find: Callable[[], npt.NDArray[np.integer]]) -> None:
        """Set `nodes` to what `find` returns; closes the source if it raises."""
        try:
            self.nodes = find().astype(np.uint32)
        except BaseException:
            self.close()
            raise

    _is_copied = True
    """Whether loaders get `bytes`."""

    def _contents(self, nodes: Sequence[int], loader: Loader) -> Sequence[bytes | memoryview]:
        """The bytes of files, as the loader takes them. Raises DieselfsError, or OSError on a mount."""
        is_copied = self._is_copied and loader not in VIEW_LOADERS
        return self.source.read_many(nodes) if is_copied else self.source.read_views(nodes)

    @abstractmethod
    def _items(self, indices: Any) -> list[Any]:
        """The items of these samples. Raises IndexError, DieselfsError, or OSError on a mount."""

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Many items at once; `DataLoader` reads batches this way. Raises DieselfsError, or OSError on a mount."""
        with self._times.timed("loading"):
            return self._items(indices)

    def path(self, index: int) -> str:
        """Path of a sample in the dataset; of the first of its files, if it has several."""
        return os.fsdecode(self.snapshot.path(int(self.nodes[index])))

    def _location(self, node: int) -> str:
        """The path that users can open: on a mount the whole one, else that in the dataset."""
        return self.source.place(self.snapshot.path(node))

    def close(self) -> None:
        """Close connections. May be called again."""
        self.source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        # By the name by which programs import it.
        package = type(self).__module__.rpartition(".")[0].replace(".frameworks.", ".")
        return f"<{package}.{type(self).__name__} {self.root!r}: {len(self):,} samples>"


def read_items(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """Items of any map-style dataset, all at once if it can."""
    if hasattr(dataset, "__getitems__"):
        return list(dataset.__getitems__(indices))
    return [dataset[index] for index in indices]


class LocationList(Sequence[Any]):
    """The paths of samples, made on access; `labels` are given beside them, if there are any: `(path, label)`."""

    def __init__(
        self,
        location_of: Callable[[int], str],
        nodes: npt.NDArray[np.uint32],
        labels: npt.NDArray[np.int32] | None = None,
    ) -> None:
        """`nodes`, `labels`: shape (n,); `location_of(node)`: the path of a sample."""
        self._location_of, self._nodes, self._labels = location_of, nodes, labels

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            labels = None if self._labels is None else self._labels[index]
            return LocationList(self._location_of, self._nodes[index], labels)
        path = self._location_of(int(self._nodes[index]))
        return path if self._labels is None else (path, int(self._labels[index]))
