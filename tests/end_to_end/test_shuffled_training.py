"""Training in chunk-wise order over a real mount: the right samples in the right order, and networks that learn."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest
from torch.utils.data import DataLoader, Subset
from torch.utils.data import Dataset as TorchDataset

from bench.papers.digits import Lesson, by_class, store_digits, write_digits
from dieselfs.dataset import Dataset
from dieselfs.samples.source import MountSource
from dieselfs.shuffle.mixture import seed_of
from dieselfs.telemetry.stalls import CAUSES
from dieselfs.torch import ChunkShuffleBatchSampler, FolderDataset, MixedDataset
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from tests.support.image_folder import ImageFolder
from tests.support.server import RunningServer, running_server

pytestmark = [
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this machine has no /dev/fuse"),
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes:UserWarning"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def digits(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of 1,797 images in some seventy chunks, each of them of one class, or two."""
    source = tmp_path_factory.mktemp("digits")
    write_digits(source)
    with Dataset(server.settings(), "digits", must_exist=False) as data:
        store_digits(data, by_class, source)
    return "digits"


@pytest.fixture(scope="module")
def mountpoint(
    digits: str, server: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("mounted")
    path = folder / "mount"
    path.mkdir()
    control.mount(digits, path, MountOptions(server=server.unix, log_file=str(folder / "log")))
    try:
        yield path
    finally:
        control.unmount(path)


@pytest.fixture
def dataset(mountpoint: Path) -> Iterator[FolderDataset]:
    with FolderDataset(mountpoint / "train", loader=bytes) as dataset:
        yield dataset


def test_samples_and_labels_are_those_of_a_walk_over_the_mount(
    mountpoint: Path, dataset: FolderDataset
) -> None:
    walked = ImageFolder(str(mountpoint / "train"))
    found = [(str(mountpoint / dataset.path(index)), label) for index, label in enumerate(dataset.targets)]
    assert found == walked.samples
    content, label = dataset[700]
    assert (Path(walked.samples[700][0]).read_bytes(), walked.samples[700][1]) == (content, label)


def test_mount_and_library_give_the_same_order(
    dataset: FolderDataset, digits: str, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(server.folder / "cache"))
    with FolderDataset(f"{digits}/train", loader=bytes, server=server.unix) as library:
        samplers = [ChunkShuffleBatchSampler(one, 64, seed=1, group_chunks=5) for one in (dataset, library)]
        ours, others = map(list, samplers)
        assert ours == others
        assert dataset.__getitems__(ours[0]) == library.__getitems__(others[0])


def test_the_mount_is_told_what_will_be_read(mountpoint: Path, dataset: FolderDataset) -> None:
    sampler = ChunkShuffleBatchSampler(dataset, 64, seed=4242, group_chunks=5, rank=1, world=2)
    sampler.set_epoch(7)
    next(iter(sampler))
    stats = json.loads((mountpoint / ".dieselfs/stats").read_bytes())
    (plan,) = (plan for plan in stats["plans"] if plan["seed"] == 4242)
    assert (plan["epoch"], plan["group"], plan["positions"]) == (7, 5, len(dataset))
    assert [(reader["rank"], reader["world"]) for reader in plan["readers"]] == [(1, 2)]


def test_for_a_part_of_a_folder_the_mount_prefetches_the_folder(
    mountpoint: Path, dataset: FolderDataset
) -> None:
    """Its groups have the same chunks; from the group of the start on, for all ranks together."""
    part = Subset(dataset, range(0, len(dataset), 2))
    sampler = ChunkShuffleBatchSampler(part, 64, seed=4343, group_chunks=5, rank=1, world=2)
    batch = next(iter(sampler))
    stats = json.loads((mountpoint / ".dieselfs/stats").read_bytes())
    (plan,) = (plan for plan in stats["plans"] if plan["seed"] == 4343)
    assert (plan["epoch"], plan["group"], plan["positions"]) == (0, 5, len(dataset))
    assert [(reader["rank"], reader["world"]) for reader in plan["readers"]] == [(0, 1)]
    for index in batch:
        assert part[index] == dataset[2 * index]


def test_the_mount_is_told_of_each_pass_of_a_mixture(mountpoint: Path, dataset: FolderDataset) -> None:
    mixed = MixedDataset([dataset], weights=[1], epoch_samples=2 * len(dataset) + 64)
    sampler = ChunkShuffleBatchSampler(mixed, 64, seed=4444, group_chunks=5)
    declared: list[int] = []
    for number, _ in enumerate(sampler):
        if number % 8 == 0 or number == len(sampler) - 1:
            plans = json.loads((mountpoint / ".dieselfs/stats").read_bytes())["plans"]
            declared.append(max(plan["epoch"] for plan in plans if plan["seed"] == seed_of(4444, 0)))
    assert declared == sorted(declared) and set(declared) == {0, 1, 2}


def test_the_work_of_the_daemon_is_a_cause_of_waiting(dataset: FolderDataset) -> None:
    """Of this mount as a whole: what earlier tests have read stays in the page cache."""
    sampler = ChunkShuffleBatchSampler(dataset, 64, seed=4545, group_chunks=5)
    for _ in sampler.consumed(DataLoader(dataset, batch_sampler=sampler, collate_fn=list)):
        pass
    told = sampler.stalls.summary()
    assert sum(told["waiting_by_cause_s"].values()) == pytest.approx(told["waiting_s"], abs=1e-5)
    assert isinstance(dataset.source, MountSource)
    work = dataset.source.daemon_work()
    assert work is not None and work.waited_s > 0
    spent = dict(zip(CAUSES, work.spent.tolist(), strict=True))
    assert spent["push"] > 0 and spent["server"] > 0 and spent["reading"] == spent["loading"] == 0


class Numbered(TorchDataset[tuple[int, bytes]]):
    """Samples with their index."""

    def __init__(self, dataset: FolderDataset) -> None:
        self.dataset = dataset

    def __getitems__(self, indices: list[int]) -> list[tuple[int, bytes]]:
        return [
            (index, content)
            for index, (content, _) in zip(indices, self.dataset.__getitems__(indices), strict=True)
        ]


def test_every_sample_is_read_once_whatever_workers_and_ranks_there_are(
    mountpoint: Path, dataset: FolderDataset
) -> None:
    """From none to eight to three workers and to spawned ones, from one rank to two, in the middle of an epoch."""
    state: dict[str, str] | None = None
    served: list[int] = []
    for workers, method, world, steps in (
        (0, None, 1, 3),
        (8, "fork", 1, 4),
        (3, "fork", 2, 5),
        (1, "spawn", 1, None),
    ):
        states = []
        for rank in range(world):
            sampler = ChunkShuffleBatchSampler(dataset, 50, seed=2, group_chunks=5, rank=rank, world=world)
            if state is not None:
                sampler.load_state_dict(state)
            loader = DataLoader(
                Numbered(dataset),
                batch_sampler=sampler,
                collate_fn=list,
                num_workers=workers,
                multiprocessing_context=method,
            )
            for number, batch in enumerate(sampler.consumed(loader), start=1):
                for index, content in batch:
                    served.append(index)
                    assert content == (mountpoint / dataset.path(index)).read_bytes()
                if number == steps:
                    break
            states.append(sampler.state_dict())
        assert states == [states[0]] * world
        state = states[0]
    assert sorted(served) == list(range(len(dataset)))


def test_a_network_learns_as_well_in_chunk_wise_order(mountpoint: Path) -> None:
    """A short version of what docs/guide/training.md shows; the margin is many times the spread of such means."""
    epochs, last, seeds = 8, 3, 2
    lesson = Lesson.on(mountpoint)
    full, chunk_wise = (
        fmean(fmean(lesson.learn(seed, group_chunks, epochs)[-last:]) for seed in range(seeds))
        for group_chunks in (0, 20)
    )
    assert full > 0.95
    assert abs(full - chunk_wise) < 0.04
