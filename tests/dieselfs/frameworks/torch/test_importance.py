"""The sampler with a real DataLoader, datasets on a server, processes of torch.distributed, and its files in memory."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from dieselfs.dataset import Dataset
from dieselfs.encryption.segments import sealed_length
from dieselfs.errors import InvalidInput
from dieselfs.frameworks.torch import importance
from dieselfs.importance.rank_reader import RankReader
from dieselfs.samples.ranks import Gather
from dieselfs.torch import FolderDataset, ImportanceSampler
from tests.support.gathering import run_ranks
from tests.support.server import RunningServer

SAMPLES = 90
CONTENTS = {
    f"train/{number % 3}/{number:03}.jpg": b"%03d" % number * (number + 1) for number in range(SAMPLES)
}
DATA = TensorDataset(torch.arange(SAMPLES))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[FolderDataset]:
    for name, content in CONTENTS.items():
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    with FolderDataset(tmp_path / "train", loader=bytes) as dataset:
        yield dataset


def number_of(content: bytes) -> int:
    return int(content[:3])


def train(sampler: ImportanceSampler, loader: Any, steps: int = SAMPLES) -> list[list[int]]:
    """The next steps; the numbers of the samples in each. The loss of a sample is its number, or so."""
    read = []
    for batch in sampler.consumed(loader):
        numbers = [number_of(content) for content, _ in batch]
        sampler.record(torch.tensor(numbers) / (10.0 + sampler.epoch))
        read.append(numbers)
        if len(read) == steps:
            break
    return read


def loader_of(dataset: FolderDataset, sampler: ImportanceSampler, workers: int, method: str | None) -> Any:
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        collate_fn=list,
        num_workers=workers,
        multiprocessing_context=method,
        persistent_workers=workers > 0,
    )


def index_of(dataset: Any) -> dict[int, int]:
    """By the number in a file, the index of its sample."""
    return {number_of(content): index for index, (content, _) in enumerate(dataset)}


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (1, "spawn")])
def test_important_samples_are_read_more_often_from_memory(
    folder: Any, workers: int, method: str | None
) -> None:
    index = index_of(folder)
    sampler = ImportanceSampler(folder, 10, seed=1, cache_share=0.3)
    loader = loader_of(folder, sampler, workers, method)
    first, *later = [[number for batch in train(sampler, loader) for number in batch] for _ in range(4)]
    assert sorted(first) == list(range(SAMPLES)) and sampler.epoch == 4
    assert np.mean(later) > 1.2 * np.mean(first)
    assert isinstance(sampler.reader, RankReader)
    cached = {*sampler.reader.course.cache.samples().tolist()}
    store = folder.source.store
    kept = {number for number in range(SAMPLES) if store.read(int(folder.nodes[index[number]]))}
    assert {index[number] for number in kept} <= cached and len(kept) > 0.9 * len(cached)
    sampler.close()
    assert not os.path.exists(store.folder) and len(folder[0][0]) > 0


def test_hits_read_nothing_from_the_source(folder: Any) -> None:
    sampler = ImportanceSampler(folder, 10, cache_share=1.0)
    loader = loader_of(folder, sampler, 0, None)
    train(sampler, loader)
    # Whatever is missing would raise.
    of_files, folder.source.source = folder.source.source, SimpleNamespace(takes_lists=False)
    train(sampler, loader, 5)
    assert sampler.statistics()["hits"] == 50
    folder.source.source = of_files
    sampler.close()


@pytest.mark.parametrize("is_mounted", [False, True])
def test_samples_of_an_encrypted_dataset_are_encrypted_in_memory(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_mounted: bool
) -> None:
    settings = replace(server.settings(), identity=str(tmp_path / "identity"), cache=tmp_path / "cache")
    monkeypatch.setenv("DIESELFS_IDENTITY", str(settings.identity))
    monkeypatch.setenv("DIESELFS_CACHE", str(settings.cache))
    root, mount = f"sampled-{is_mounted:d}", tmp_path / "mount"
    with Dataset(settings, root, must_exist=False) as data:
        data.client.encrypt(data.create())
        for path, content in CONTENTS.items():
            data.put(path, content)
        data.flush()
        info = {"snapshot": data.snapshot.source, "digest": data.snapshot.digest.hex()}
    if is_mounted:  # a folder that has what a mount has
        root = str(mount)
        for path, content in {**CONTENTS, ".dieselfs/info": json.dumps(info).encode()}.items():
            (mount / path).parent.mkdir(parents=True, exist_ok=True)
            (mount / path).write_bytes(content)
    dataset: Any
    with FolderDataset(
        f"{root}/train", loader=bytes, server=None if is_mounted else settings.server
    ) as dataset:
        nodes = dataset.nodes.tolist()
        sampler = ImportanceSampler(dataset, 10, cache_share=1.0)
        train(sampler, loader_of(dataset, sampler, 0, None))
        store = dataset.source.store
        kept = [store.read(node) for node in nodes]
        assert sorted(map(len, kept)) == sorted(sealed_length(len(content)) for content in CONTENTS.values())
        assert not any(b"%03d" % number * 3 in content for number in range(SAMPLES) for content in kept)
        store.write(nodes[0], b"x" * len(kept[0]))
        before = dataset.source.counts.total()
        spawned = ForkingPickler.loads(ForkingPickler.dumps(dataset.source))
        assert sorted(spawned.read_many(nodes)) == sorted(CONTENTS.values())
        assert dataset.source.counts.total().hits - before.hits == SAMPLES - 1  # all but the wrong one
        spawned.source.close()
        sampler.close()


@pytest.mark.parametrize("steps", [1, 5, 8])
def test_a_checkpoint_in_a_file_continues(folder: FolderDataset, tmp_path: Path, steps: int) -> None:
    read = []
    for interrupted in (False, True):
        sampler = ImportanceSampler(folder, 10, seed=4, cache_share=0.3)
        loader = loader_of(folder, sampler, 0, None)
        for accuracy in (10, 20):
            train(sampler, loader)
            sampler.note_accuracy(accuracy)
        found = train(sampler, loader, steps)
        if interrupted:
            torch.save(sampler.state_dict(), tmp_path / "state.pt")
            sampler.close()
            sampler = ImportanceSampler(folder, 10, seed=99, cache_share=0.3)
            sampler.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
            loader = loader_of(folder, sampler, 0, None)
        found += train(sampler, loader) + train(sampler, loader)
        read.append(found)
        sampler.close()
    assert read[0] == read[1]


def test_ranks_share_the_memory_of_a_node(folder: FolderDataset) -> None:
    def run(rank: int, gather: Gather) -> tuple[list[int], str]:
        dataset: Any
        with FolderDataset(folder.root, loader=bytes) as dataset:
            sampler = ImportanceSampler(dataset, 10, cache_share=0.3, rank=rank, world=2, gather=gather)
            loader = loader_of(dataset, sampler, 0, None)
            steps = train(sampler, loader) + train(sampler, loader)
            read = [number for batch in steps for number in batch]
            place = dataset.source.store.folder
            sampler.close()
        return read, place

    (read, place), (other, other_place) = run_ranks(2, run)
    assert place == other_place and not os.path.exists(place)
    assert sorted(read[: SAMPLES // 2] + other[: SAMPLES // 2]) == list(range(SAMPLES))


def test_several_nodes_without_a_job_are_told_to_have_one(
    folder: FolderDataset, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hosts = iter(["a", "b"])
    monkeypatch.setattr(importance, "gethostname", lambda: next(hosts))

    def run(rank: int, gather: Gather) -> None:
        with FolderDataset(folder.root, loader=bytes) as dataset:
            ImportanceSampler(dataset, 10, rank=rank, world=2, gather=gather).close()

    run_ranks(2, run)
    assert "each of 2 nodes keeps the samples of its own ranks alone" in caplog.text
    assert caplog.text.count('job="auto"') == 1


def rank_of_a_group(rank: int, world: int, place: Path) -> None:
    torch.distributed.init_process_group("gloo", f"file://{place}/group", rank=rank, world_size=world)
    try:
        sampler = ImportanceSampler(DATA, 12, seed=2)
        loader = DataLoader(DATA, batch_sampler=sampler)
        read = []
        for _ in range(2):
            for (numbers,) in sampler.consumed(loader):
                sampler.record(numbers.float())
                read += numbers.tolist()
        (place / str(rank)).write_text(json.dumps(read))
    finally:
        torch.distributed.destroy_process_group()


def test_ranks_of_torch_distributed(tmp_path: Path) -> None:
    import_module("torch.multiprocessing").spawn(rank_of_a_group, (2, tmp_path), nprocs=2)
    first, second = (json.loads((tmp_path / rank).read_text()) for rank in ("0", "1"))
    assert sorted(first[: SAMPLES // 2] + second[: SAMPLES // 2]) == list(range(SAMPLES))
    assert len(first) + len(second) == 2 * SAMPLES


def test_any_dataset_and_weights() -> None:
    sampler = ImportanceSampler(DATA, 32, cache_share=0.2)
    for (numbers,) in sampler.consumed(DataLoader(DATA, batch_sampler=sampler)):
        assert sampler.loss_weights().tolist() == [1.0] * len(numbers)
        sampler.record(numbers.float(), numbers)
    assert len(sampler) == 3
    (numbers,) = next(iter(sampler.consumed(DataLoader(DATA, batch_sampler=sampler))))
    weights = sampler.loss_weights(numbers)
    assert weights.tolist() == sampler.loss_weights().tolist() and weights.std() > 0


def test_misuse(folder: FolderDataset) -> None:
    for options, says in (
        ({"cache_share": 1.5}, "cache_share is 1.5"),
        ({"rank": 0, "world": 2}, "init_process_group first"),
    ):
        with pytest.raises(InvalidInput, match=says):
            ImportanceSampler(DATA, 10, **options)
    sampler = ImportanceSampler(DATA, 10)
    loader = DataLoader(DATA, batch_sampler=sampler)
    for _ in sampler.consumed(loader):
        with pytest.raises(InvalidInput, match="number 0 is nan"):
            sampler.record(torch.full((10,), torch.nan))
        break
    state = sampler.state_dict()
    with pytest.raises(InvalidInput, match="the state is of the samples"):
        ImportanceSampler(folder, 10, cache_share=0).load_state_dict(state)
    with pytest.raises(InvalidInput, match="the state is of the samples"):
        ImportanceSampler(TensorDataset(torch.arange(3)), 3).load_state_dict(state)
    with pytest.raises(InvalidInput, match="not a state"):
        sampler.load_state_dict("state")  # type: ignore[arg-type]  # of the wrong kind
    for _ in sampler.consumed(DataLoader(DATA, batch_sampler=sampler, num_workers=0, in_order=False)):
        with pytest.raises(InvalidInput, match="in_order=False"):
            sampler.record(torch.ones(10))
        break
