"""The dataset over a real server, in the loaders of PyTorch."""

import pickle  # noqa: TID251  # as a DataLoader hands a dataset to spawned workers
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split

from dieselfs.dataset import Dataset
from dieselfs.errors import InvalidInput, NotFound
from dieselfs.torch import ChunkShuffleBatchSampler, FileDataset, FolderDataset, MixedDataset, PairDataset
from tests.support.server import RunningServer

CONTENT = {f"train/{'abc'[n % 3]}/{n:03}.jpg": b"%d" % n * (n + 1) for n in range(60)}


@pytest.fixture(scope="module")
def location(server: RunningServer) -> str:
    with Dataset(server.settings(), "folders", must_exist=False) as data:
        for path, content in {**CONTENT, "val/a/1.jpg": b"1", "train/readme": b"2"}.items():
            data.put(path, content)
    return "folders/train"


@pytest.fixture
def dataset(server: RunningServer, location: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FolderDataset]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(server.folder / "cache"))
    with FolderDataset(location, loader=bytes, server=server.unix) as dataset:
        yield dataset


def items(dataset: FolderDataset) -> list[tuple[Any, Any]]:
    return [dataset[index] for index in range(len(dataset))]


def test_items_are_contents_and_labels(dataset: FolderDataset) -> None:
    assert (dataset.classes, dataset.class_to_idx) == (["a", "b", "c"], {"a": 0, "b": 1, "c": 2})
    assert [dataset.path(index) for index in range(len(dataset))] == sorted(CONTENT)
    assert items(dataset) == [(CONTENT[path], "abc".index(path[6])) for path in sorted(CONTENT)]
    assert dataset.targets == dataset.labels.tolist() == [label for _, label in items(dataset)]
    assert dataset[-1] == dataset[59]
    expected = [(path, "abc".index(path[6])) for path in sorted(CONTENT)]
    assert list(dataset.samples) == list(dataset.imgs) == expected
    assert (dataset.samples[7], dataset.samples[-1]) == (expected[7], expected[-1])
    assert list(dataset.samples[3:9:2]) == expected[3:9:2] and len(dataset.samples) == 60
    assert repr(dataset) == "<dieselfs.torch.FolderDataset 'folders/train': 60 samples, 3 classes>"
    with pytest.raises(IndexError):
        dataset[60]


def test_a_batch_is_read_at_once(dataset: FolderDataset) -> None:
    indices = [5, 0, 59, 5]
    assert dataset.__getitems__(indices) == [dataset[index] for index in indices]
    assert dataset.__getitems__([]) == []
    assert list(DataLoader(Subset(dataset, indices), batch_size=4, collate_fn=list)) == [
        [dataset[index] for index in indices]
    ]


def test_transforms(server: RunningServer, location: str, dataset: FolderDataset) -> None:
    with FolderDataset(
        f"dl://{location}/", len, lambda label: -label, loader=bytes.decode, server=server.unix
    ) as other:
        assert items(other) == [(len(content), -label) for content, label in items(dataset)]


def test_own_loaders_get_views_if_they_want_them(server: RunningServer, location: str) -> None:
    def loader(content: Any) -> tuple[type, bytes]:
        return type(content), bytes(content)

    with FolderDataset(location, loader=loader, copy=False, server=server.unix) as folders:
        expected = [(memoryview, CONTENT[path]) for path in sorted(CONTENT)]
        assert [sample for sample, _ in folders.__getitems__(range(60))] == expected
    with FileDataset(location, "c/*.jpg", loader=loader, copy=False, server=server.unix) as files:
        assert files[0] == (memoryview, CONTENT["train/c/002.jpg"])
    with FolderDataset(location, loader=loader, server=server.unix) as copies:
        assert copies[0][0] == (bytes, CONTENT["train/a/000.jpg"])


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (1, "spawn")])
def test_in_workers(dataset: FolderDataset, workers: int, method: str | None) -> None:
    sampler = ChunkShuffleBatchSampler(dataset, 16, seed=1, group_chunks=1)
    loader = DataLoader(
        dataset, batch_sampler=sampler, collate_fn=list, num_workers=workers, multiprocessing_context=method
    )
    dataset[0]  # a connection is open when the workers are forked
    for _ in range(2):
        read = [item for batch in sampler.consumed(loader) for item in batch]
        assert sorted(read) == sorted(items(dataset))
    assert sampler.epoch == 2
    told = sampler.stalls.summary()
    assert (told["steps"], len(sampler.stalls.steps)) == (2 * len(sampler), 2 * len(sampler))
    causes = told["waiting_by_cause_s"]
    assert causes["reading"] + causes["server"] > 0 and causes["peer"] == 0
    assert sum(causes.values()) == pytest.approx(told["waiting_s"], abs=1e-5)


def test_a_pickled_dataset_is_small(dataset: FolderDataset) -> None:
    """Nothing of the snapshot travels, and no tuple for a sample."""
    state = pickle.dumps(dataset)
    assert len(state) < 6_000 + 8 * len(dataset)
    with pickle.loads(state) as copy:
        assert items(copy) == items(dataset)
        assert copy.snapshot.digest == dataset.snapshot.digest


def test_items_of_images_are_tensors_of_a_transform(server: RunningServer, dataset: FolderDataset) -> None:
    def pixels(content: bytes) -> torch.Tensor:
        return torch.from_numpy(np.frombuffer(content, np.uint8).copy())

    with FolderDataset("folders/train", loader=pixels, server=server.unix) as tensors:
        batch = tensors.__getitems__([0, 3])
        assert [bytes(tensor.numpy()) for tensor, _ in batch] == [dataset[0][0], dataset[3][0]]


def test_what_cannot_be_opened(
    server: RunningServer, location: str, dataset: FolderDataset, tmp_path: Path
) -> None:
    with pytest.raises(NotFound, match="folders/nowhere"):
        FolderDataset("folders/nowhere", loader=bytes, server=server.unix)
    with pytest.raises(NotFound):
        FolderDataset("no-such-dataset", loader=bytes, server=server.unix)
    with pytest.raises(NotFound, match="no dataset is mounted there"):
        FolderDataset(tmp_path, loader=bytes)


def test_a_plain_folder_for_debugging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, content in {**CONTENT, "train/readme": b"2"}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    (tmp_path / "train/c/link.jpg").symlink_to(tmp_path / "train/a/000.jpg")
    with FolderDataset(tmp_path / "train", loader=bytes) as dataset:
        assert dataset.classes == ["a", "b", "c"] and len(dataset) == 61
        path, label = dataset.samples[0]
        assert (Path(path).read_bytes(), label) == dataset[0] == (CONTENT["train/a/000.jpg"], 0)
        assert dataset[60] == (CONTENT["train/a/000.jpg"], 2)
        copy = pickle.loads(pickle.dumps(dataset))
        assert items(copy) == items(dataset)
        sampler = ChunkShuffleBatchSampler(dataset, 16, seed=1)
        assert sorted(index for batch in sampler for index in batch) == list(range(61))
    with pytest.raises(NotFound, match="no such folder, and no dataset is mounted there"):
        FolderDataset(tmp_path / "nowhere", loader=bytes)


def test_a_relative_folder_that_looks_like_a_dataset(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mnt/ml/train").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFound, match=r"for the folder of this name, write \./mnt/ml/train"):
        FolderDataset("mnt/ml/train", loader=bytes, server=server.unix)


def test_a_subset_of_a_subset_has_an_order(dataset: FolderDataset) -> None:
    half = Subset(dataset, range(0, 60, 2))
    part, rest = random_split(half, [10, 20], torch.Generator().manual_seed(1))
    for one in (part, rest):
        sampler = ChunkShuffleBatchSampler(one, 4, seed=1, rank=0, world=1)
        loader = DataLoader(one, batch_sampler=sampler, collate_fn=list)
        read = [item for batch in sampler.consumed(loader) for item in batch]
        assert sorted(read) == sorted(one[index] for index in range(len(one)))
        assert all(item in items(dataset)[::2] for item in read)


def test_a_dataset_whose_files_are_unknown_is_refused(dataset: FolderDataset) -> None:
    unknown: Any = [1, 2, 3]
    with pytest.raises(
        InvalidInput, match=r"which files a list reads: wrap it as DatasetView\(dataset, root, files\)"
    ):
        ChunkShuffleBatchSampler(Subset(unknown, [1, 2]), 2)


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_files_and_pairs_of_a_server(server: RunningServer, location: str, dataset: FolderDataset) -> None:
    with (
        FileDataset(location, "[ab]/*.jpg", server=server.unix) as files,
        PairDataset("dl://folders", ["jpg"], loaders={"jpg": bytes}, server=server.unix) as pairs,
    ):
        assert (len(files), len(pairs)) == (40, 61)
        for one, expected in (
            (files, [content for content, label in items(dataset) if label < 2]),
            (pairs, [b"1", *CONTENT.values()]),
        ):
            sampler = ChunkShuffleBatchSampler(one, 7, seed=2, group_chunks=1, rank=0, world=1)
            loader = DataLoader(
                one,
                batch_sampler=sampler,
                collate_fn=list,
                num_workers=2,
                multiprocessing_context="fork",
            )
            read = [item for batch in sampler.consumed(loader) for item in batch]
            assert sorted(item["jpg"] if isinstance(item, dict) else item for item in read) == sorted(
                expected
            )
        assert pairs[60] == {"__key__": "val/a/1", "jpg": b"1"}
        assert isinstance(files + pairs, ConcatDataset)
        with pytest.raises(NotFound, match="1 of 2 files do not exist: train/d"):
            FileDataset(location, files=["dl://folders/val/a/1.jpg", "d"], server=server.unix)
        with pytest.raises(InvalidInput, match="not in the dataset folders"):
            FileDataset(location, files=["dl://others/val/a/1.jpg"], server=server.unix)


def test_a_sum_of_datasets_is_read_in_one_order(server: RunningServer, dataset: FolderDataset) -> None:
    with FolderDataset("folders/val", loader=bytes, server=server.unix) as val:
        both = dataset + val
        assert isinstance(both, ConcatDataset)
        sampler = ChunkShuffleBatchSampler(both, 7, seed=1, rank=0, world=1)
        loader = DataLoader(both, batch_sampler=sampler, collate_fn=list)
        read = [item for batch in sampler.consumed(loader) for item in batch]
        assert sorted(read) == sorted([*items(dataset), *items(val)])
        assert sampler.state_dict()["cursor"].startswith("mix2.")


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_mixture_is_read_by_its_weights(
    server: RunningServer, dataset: FolderDataset, workers: int
) -> None:
    val = FolderDataset("folders/val", loader=bytes, server=server.unix)
    with MixedDataset([Subset(dataset, range(10)), val], weights=[3, 1], epoch_samples=40) as mixed:
        assert len(mixed) == 11
        sampler = ChunkShuffleBatchSampler(mixed, 8, seed=1, rank=0, world=1)
        loader = DataLoader(
            mixed,
            batch_sampler=sampler,
            collate_fn=list,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )
        read = Counter(item for batch in sampler.consumed(loader) for item in batch)
        assert read == {**{dataset[index]: 3 for index in range(10)}, val[0]: 10}
