"""The main job: upload with dlcmd's engine, mount, and train with a program that knows nothing about dieselfs."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from dieselfs.dataset import Dataset
from dieselfs.transfer.upload import TreeUpload, walk_source
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from tests.support.image_folder import ImageFolder, content_key
from tests.support.server import RunningServer, running_server

FILES = 600
CLASSES = 6


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    numbers = random.Random(1)
    for n in range(FILES):
        folder = root / f"class-{n % CLASSES}"
        folder.mkdir(exist_ok=True)
        (folder / f"{n:04d}.img").write_bytes(numbers.randbytes(numbers.randrange(10, 60_000)))
    return root


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def data(server: RunningServer, source: Path) -> Iterator[Dataset]:
    with Dataset(server.settings(), "images", must_exist=False) as dataset:
        upload = TreeUpload(dataset.client, dataset.create(), None, chunk_bytes=1 << 20)
        report = upload.run(lambda failed: walk_source(os.fsencode(source), b"", failed))
        assert not report.failures
        dataset.refresh()
        yield dataset


@pytest.fixture(scope="module")
def mountpoint(
    data: Dataset, server: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("mounted")
    path = folder / "mount"
    path.mkdir()
    control.mount(data.name, path, MountOptions(server=server.unix, log_file=str(folder / "log")))
    try:
        yield path
    finally:
        control.unmount(path)


def expected(source: Path) -> list[tuple[int, int]]:
    return sorted(
        (content_key(path.read_bytes()), int(path.parent.name.rpartition("-")[2]))
        for path in source.glob("*/*")
    )


def epoch(loader: "DataLoader[tuple[int, int]]") -> list[tuple[int, int]]:
    return sorted(
        (int(key), int(label)) for keys, labels in loader for key, label in zip(keys, labels, strict=True)
    )


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (2, "spawn")])
def test_an_unmodified_dataset_reads_every_file_once_an_epoch(
    mountpoint: Path, source: Path, workers: int, method: str | None
) -> None:
    loader = DataLoader(
        ImageFolder(str(mountpoint)),
        batch_size=32,
        shuffle=True,
        num_workers=workers,
        multiprocessing_context=method,
        persistent_workers=workers > 0,
    )
    for _ in range(2):
        assert epoch(loader) == expected(source)


class LibraryDataset(ImageFolder):
    """The same over the library, without a mount: the dataset travels to the workers."""

    def __init__(self, root: str, data: Dataset) -> None:
        super().__init__(root)
        self.data = data
        self.samples = [(os.path.relpath(path, root), label) for path, label in self.samples]

    def __getitem__(self, index: int) -> tuple[int, int]:
        path, label = self.samples[index]
        return content_key(self.data.get(path)), label


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (1, "spawn")])
def test_the_library_in_the_workers_reads_the_same(
    data: Dataset, source: Path, workers: int, method: str | None
) -> None:
    loader = DataLoader(
        LibraryDataset(str(source), data), batch_size=32, num_workers=workers, multiprocessing_context=method
    )
    assert epoch(loader) == expected(source)


def test_the_mount_in_shuffled_order(mountpoint: Path, data: Dataset, source: Path) -> None:
    order = data.shuffle(seed=7, epoch=3, group_chunks=4)
    assert len(order) == FILES
    for path in order:
        assert (mountpoint / path).read_bytes() == (source / path).read_bytes()
