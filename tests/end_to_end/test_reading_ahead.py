"""Workers of a loader that read from a server on another machine load ahead what they read next."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, get_worker_info

from dieselfs.dataset import Dataset
from dieselfs.importance.schedule import DEFAULT_REPEATS
from dieselfs.torch import ChunkShuffleBatchSampler, FileDataset, ImportanceSampler, MixedDataset
from tests.support.dlcmd import wait_until
from tests.support.server import RunningServer, running_server

FILES, BATCH = 600, 10

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


def content(number: int) -> bytes:
    return b"%04d" % number * 500


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as running:
        for name in ("one", "two"):
            with Dataset(running.settings(), name, must_exist=False) as data:
                for number in range(FILES):
                    data.put(f"{number:04d}", content(number))
        yield running


@pytest.fixture
def options(server: RunningServer, tmp_path: Path) -> dict[str, Any]:
    """Of a connection from another machine: with a key, over TCP."""
    key = server.folder / "reader.key"
    if not key.exists():
        server.user("reader", all_datasets="read")
    return {"server": server.tcp, "key_file": str(key), "home": tmp_path}


def loaded(dataset: Any) -> int:
    counters = dataset.source.dataset.statistics()["look_ahead"]
    return int(counters["files"] + counters["chunks"])


class Patient:
    """Collates in a worker: from its third batch on, something has been loaded ahead before."""

    def __init__(self) -> None:
        self._batches = 0

    def __call__(self, items: list[bytes]) -> tuple[list[bytes], int]:
        info: Any = get_worker_info()
        self._batches += 1
        if self._batches > 2:
            wait_until(lambda: loaded(info.dataset) > 0)
        return items, loaded(info.dataset)


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])  # a spawned one imports torch
def test_workers_load_ahead(options: dict[str, Any], method: str, workers: int) -> None:
    with FileDataset("one", **options) as dataset:
        sampler = ChunkShuffleBatchSampler(dataset, BATCH, seed=1, rank=0, world=1)
        loader = DataLoader(
            dataset,
            batch_sampler=sampler,
            num_workers=workers,
            collate_fn=Patient(),
            multiprocessing_context=method,
        )
        for _ in range(2):
            batches = [*sampler.consumed(loader)]
            found = [item for items, _ in batches for item in items]
            assert sorted(found) == [content(number) for number in range(FILES)]
            assert all(count for _, count in batches[-workers:])


def test_all_passes_of_a_mixture_are_loaded_ahead(options: dict[str, Any]) -> None:
    with MixedDataset([FileDataset("one", **options), FileDataset("two", **options)], [1, 4], 1500) as mixed:
        sampler = ChunkShuffleBatchSampler(mixed, BATCH, seed=1, rank=0, world=1)
        found = []
        for step, items in enumerate(
            sampler.consumed(DataLoader(mixed, batch_sampler=sampler, collate_fn=list))
        ):
            if step > 1:
                wait_until(lambda: all(map(loaded, mixed.datasets)))
            found += items
        assert len(found) == 1500 and set(found) == {content(number) for number in range(FILES)}


def test_draws_by_importance_are_loaded_ahead(options: dict[str, Any]) -> None:
    with FileDataset("one", **options) as dataset:
        sampler = ImportanceSampler(dataset, BATCH, seed=1, repeats=DEFAULT_REPEATS, rank=0, world=1)
        source: Any = dataset.source
        of_files = source.dataset
        for _ in range(2):
            before = of_files.statistics()["look_ahead"]
            for step, items in enumerate(
                sampler.consumed(DataLoader(dataset, batch_sampler=sampler, collate_fn=list))
            ):
                assert all(item in item[:4] * 500 for item in items)
                sampler.record([float(item[3]) for item in items])
                if step > 1 and before["files"] + before["chunks"] == 0:
                    wait_until(lambda: loaded(dataset) > 0)
        sampler.close()
