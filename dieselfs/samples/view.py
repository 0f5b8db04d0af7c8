"""A view of a map-style dataset of the user's own, which says what files its items read. No I/O of its own."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Unpack

from dieselfs.arrays import Nodes, Numbers
from dieselfs.errors import InvalidInput
from dieselfs.samples.file_lists import find_files
from dieselfs.samples.sample_set import SampleSet, read_items
from dieselfs.samples.source import ConnectOptions, SampleSource, open_source

FilePath = str | bytes | os.PathLike[str]
FilesOf = Callable[[int], FilePath | Iterable[FilePath]]


class ViewSamples(SampleSet):
    """A dataset of the user's own, for orders of its files. Items are those of `dataset`, which reads the files itself.

        images = torchvision.datasets.ImageFolder("/mnt/imagenet/train")
        view = DatasetView(images, "/mnt/imagenet/train", lambda index: images.samples[index][0])

    The first file of an item gives it its place in an order. Several items may read the same file.
    """

    def __init__(
        self,
        dataset: Any,
        root: str | os.PathLike[str],
        files: FilesOf | Sequence[FilePath | Iterable[FilePath]],
        **connection: Unpack[ConnectOptions],
    ) -> None:
        """`files(index)`, or `files[index]`: the path of the file that item `index` reads, or of all of them, as `open`
        takes them on a mount, or relative to `root`. It is asked once for each index. `root` and the options of the
        connection: see `open_source`; the root says where the files are, and which process prefetches them.

        Raises NotFound if a file does not exist; InvalidInput, AccessDenied, Unavailable.
        """
        super().__init__(root, *open_source(root, **connection))
        self.dataset = dataset
        files_of = files if callable(files) else _files_in(files, len(dataset))
        self._find(lambda: self._first_files(files_of))

    def _first_files(self, files_of: FilesOf) -> Numbers:
        firsts: list[FilePath] = []
        others: list[FilePath] = []
        for index in range(len(self.dataset)):
            found = files_of(index)
            paths = [found] if isinstance(found, str | bytes | os.PathLike) else [*found]
            if not paths:
                raise InvalidInput(f"item {index} reads no file: leave it out (torch.utils.data.Subset)")
            firsts.append(paths[0])
            others += paths[1:]
        nodes = find_files(self.source, self.folder, [*firsts, *others], self.root)
        return nodes[: len(firsts)]

    def reads(self, indices: Numbers) -> Iterator[tuple[SampleSource, Numbers, Nodes]]:
        """Nothing through this source: the dataset reads its files itself."""
        return iter(())

    def _items(self, indices: Any) -> list[Any]:
        return read_items(self.dataset, indices)


def _files_in(files: Sequence[FilePath | Iterable[FilePath]], length: int) -> FilesOf:
    """Raises InvalidInput if there are not as many entries as items."""
    if len(files) != length:
        raise InvalidInput(
            f"files has {len(files)} entries, the dataset {length} items: give the files of each item"
        )
    return files.__getitem__
