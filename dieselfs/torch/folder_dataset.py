"""A map-style dataset over a folder tree with class labels. This module waits for sockets and opens files."""

import io
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Self

from torch.utils.data import Dataset

from dieselfs.errors import InvalidInput
from dieselfs.shuffle.plan import Share
from dieselfs.snapshot.reader import Snapshot
from dieselfs.torch.samples import IMAGE_EXTENSIONS, SampleList, Samples, find_samples
from dieselfs.torch.source import Source, open_source

Transform = Callable[[Any], Any]


def load_image(content: bytes) -> Any:
    """The image of a file, as by torchvision's default loader: Pillow, converted to RGB."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        return image.convert("RGB")


def check_loader(loader: object) -> None:
    """Raises InvalidInput if the library of this loader is missing, before a worker needs it."""
    if loader is load_image and find_spec("PIL") is None:
        raise InvalidInput(
            "images need Pillow: pip install 'dieselfs[torch]', or give loader=bytes, or your own"
        )


class FolderDataset(Dataset[tuple[Any, Any]]):
    """Samples of classes that are folders, labelled and numbered as torchvision's `ImageFolder` does it.

        FolderDataset("imagenet@v3/train")       # through the library
        FolderDataset("/mnt/imagenet/train")     # files on a mount, or in any local folder

    An item is `(transform(loader(content)), target_transform(label))`. A batch is read at once (`__getitems__`); the
    library requests each of its chunks once. Works in forked and spawned `DataLoader` workers. Close it after use, or
    use it in a `with` block.
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
        """`loader` converts the bytes of a file (`loader=bytes`: no conversion); `extensions` None takes all files.
        `root` and the options of the connection: see `open_source`; which files are samples: see `find_samples`.

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
            self.columns: Samples = find_samples(self.source.snapshot, self.folder, extensions)
        except BaseException:
            self.source.close()
            raise

    @property
    def classes(self) -> list[str]:
        """Names of the classes; the label of a class is its index."""
        return list(self.columns.classes)

    @property
    def class_to_idx(self) -> dict[str, int]:
        return {name: label for label, name in enumerate(self.columns.classes)}

    @cached_property
    def targets(self) -> list[int]:
        """The label of each sample, as a list that is made at first use; `columns.labels` is the array."""
        labels: list[int] = self.columns.labels.tolist()
        return labels

    @property
    def samples(self) -> SampleList:
        """`(path, label)` of each sample. On a mount, `open` takes the path; else it is the path in the dataset."""
        return SampleList(self._place, self.columns.nodes, self.columns.labels)

    imgs = samples  # code for `ImageFolder` uses both

    def _place(self, node: int) -> str:
        return self.source.place(self.snapshot.path(node))

    @property
    def snapshot(self) -> Snapshot:
        return self.source.snapshot

    def path(self, index: int) -> str:
        """Path of a sample in the dataset."""
        return os.fsdecode(self.snapshot.path(int(self.columns.nodes[index])))

    def __len__(self) -> int:
        return len(self.columns.nodes)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        """Many items at once; `DataLoader` reads batches this way. Raises DieselfsError, or OSError on a mount."""
        nodes, labels = self.columns.nodes[indices].tolist(), self.columns.labels[indices].tolist()
        contents = self.source.read_many(nodes)
        return [self._item(content, label) for content, label in zip(contents, labels, strict=True)]

    def _item(self, content: bytes, label: int) -> tuple[Any, Any]:
        sample, transform, target_transform = self.loader(content), self.transform, self.target_transform
        return (
            sample if transform is None else transform(sample),
            label if target_transform is None else target_transform(label),
        )

    def expect_plan(self) -> None:
        """Announce that all reads follow a plan, in this process and in its workers."""
        self.source.expect_plan()

    def declare(self, share: Share) -> None:
        """Announce that reading of this share of a plan starts; a mount prefetches it."""
        self.source.declare(share)

    def close(self) -> None:
        """Close connections. May be called again."""
        self.source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        classes = len(self.columns.classes)
        return f"<dieselfs.torch.FolderDataset {self.root!r}: {len(self):,} samples, {classes:,} classes>"
