"""A map-style dataset over a folder tree with class labels. This module waits for sockets and opens files."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from dieselfs.meta.snapshot import Snapshot
from dieselfs.shuffle.plan import Share
from dieselfs.torch.images import check_loader, load_image
from dieselfs.torch.samples import IMAGE_EXTENSIONS, Samples, find_samples
from dieselfs.torch.source import Source, open_source

Transform = Callable[[Any], Any]


class FolderDataset(Dataset[tuple[Any, Any]]):
    """Samples of classes that are folders, labelled and numbered as torchvision's `ImageFolder` does it.

        FolderDataset("imagenet@v3/train")       # through the library
        FolderDataset("/mnt/imagenet/train")     # files on a mount

    An item is `(transform(loader(content)), target_transform(label))`. A batch is read at once (`__getitems__`):
    through the library, each of its chunks is asked for once. Works in `DataLoader` workers that are forked or
    spawned. Close it after use, or use it in a `with` block.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        *,
        loader: Callable[[bytes], Any] = load_image,
        extensions: Iterable[str] | None = IMAGE_EXTENSIONS,
        server: str | None = None,
        key_file: str | None = None,
        home: str | os.PathLike[str] | None = None,
        memory_bytes: int | None = None,
        job: str | None = None,
        job_secret: str | os.PathLike[str] | None = None,
    ) -> None:
        """`loader` makes an object of a file's bytes (`loader=bytes`: nothing is made); `extensions` None takes all
        files. `root` and the options of the connection: see `open_source`; what is a sample: see `find_samples`.

        Raises NotFound, InvalidInput, AccessDenied, Unavailable.
        """
        check_loader(loader)
        self.transform = transform
        self.target_transform = target_transform
        self.loader = loader
        self.root = os.fspath(root)
        self.source: Source
        self.source, self.folder = open_source(
            root,
            server=server,
            key_file=key_file,
            home=home,
            memory_bytes=memory_bytes,
            job=job,
            job_secret=job_secret,
        )
        try:
            self.samples: Samples = find_samples(self.source.snapshot, self.folder, extensions)
        except BaseException:
            self.source.close()
            raise

    @property
    def classes(self) -> list[str]:
        """Names of the classes; the label of a class is its place."""
        return list(self.samples.classes)

    @property
    def class_to_idx(self) -> dict[str, int]:
        return {name: label for label, name in enumerate(self.samples.classes)}

    @property
    def targets(self) -> npt.NDArray[np.int32]:
        """The label of each sample."""
        return self.samples.labels

    @property
    def snapshot(self) -> Snapshot:
        return self.source.snapshot

    def path(self, index: int) -> str:
        """Where a sample lies in the dataset."""
        return os.fsdecode(self.snapshot.path(int(self.samples.nodes[index])))

    def __len__(self) -> int:
        return len(self.samples.nodes)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        """Many items at once; `DataLoader` asks for a batch this way. Raises DieselfsError, or OSError on a mount."""
        nodes, labels = self.samples.nodes[indices].tolist(), self.samples.labels[indices].tolist()
        contents = self.source.read_many(nodes)
        return [self._item(content, label) for content, label in zip(contents, labels, strict=True)]

    def _item(self, content: bytes, label: int) -> tuple[Any, Any]:
        sample, transform, target_transform = self.loader(content), self.transform, self.target_transform
        return (
            sample if transform is None else transform(sample),
            label if target_transform is None else target_transform(label),
        )

    def expect_plan(self) -> None:
        """All batches will come in the order of a plan, in this process or in those that it is handed to."""
        self.source.expect_plan()

    def declare(self, share: Share) -> None:
        """Somebody begins to read this share of a plan over the folder: on a mount, it is fetched ahead from now on."""
        self.source.declare(share)

    def close(self) -> None:
        """Let go of connections. May be called again."""
        self.source.close()

    def __enter__(self) -> "FolderDataset":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        classes = len(self.samples.classes)
        return f"<dieselfs.torch.FolderDataset {self.root!r}: {len(self):,} samples, {classes:,} classes>"
