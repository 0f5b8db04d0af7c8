"""Hugging Face datasets over an order. Runs where `datasets` is installed."""

from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from dieselfs.errors import InvalidInput
from dieselfs.samples.class_folders import FolderSamples
from dieselfs.samples.sampler_state import SamplerState
from tests.support.plain_folder import FILES, number_of, write_classes

datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of datasets


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("hf")))


@pytest.fixture
def samples(tmp_path: Path) -> FolderSamples:
    return FolderSamples(write_classes(tmp_path), loader=number_of, extensions=None)


def dataset_of(samples: FolderSamples, rank: int = 0, world: int = 1, **options: Any) -> Any:
    from dieselfs.huggingface import iterable_dataset

    return iterable_dataset(samples, SamplerState(samples, 6, seed=2, rank=rank, world=world), **options)


def test_the_samples_of_ranks(samples: FolderSamples) -> None:
    whole = list(dataset_of(samples))
    assert all(example["label"] == example["image"] % 2 for example in whole)
    sampler = SamplerState(samples, 6, seed=2, rank=0, world=1)
    expected = [samples[index][0] for _, step in sampler.steps(0) for index in step]
    assert [example["image"] for example in whole] == expected
    parts = [example["image"] for rank in range(3) for example in dataset_of(samples, rank, 3)]
    assert sorted(parts) == list(range(FILES))


def test_a_state_continues_in_the_middle_of_a_step_twice(samples: FolderSamples) -> None:
    whole = [example["image"] for example in dataset_of(samples)]
    found: list[int] = []
    state = None
    for count in (8, 9, FILES):
        dataset = dataset_of(samples)
        if state is not None:
            dataset.load_state_dict(state)
        for number, example in enumerate(dataset, start=1):
            found.append(example["image"])
            if number == count:
                break
        state = dataset.state_dict()
    assert found == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_share_the_steps(samples: FolderSamples, workers: int) -> None:
    loader = DataLoader(dataset_of(samples), batch_size=6, num_workers=workers)
    assert sorted(int(number) for batch in loader for number in batch["image"]) == list(range(FILES))


def test_what_cannot_be(samples: FolderSamples) -> None:
    from dieselfs.huggingface import iterable_dataset

    with pytest.raises(InvalidInput, match="items have 2 entries, but columns are image"):
        next(iter(dataset_of(samples, columns=["image"])))
    sampler = SamplerState(samples, 6, rank=0, world=1)
    sampler.position = FILES
    with pytest.raises(InvalidInput, match="no step after position 40: call set_epoch"):
        iterable_dataset(samples, sampler)


def test_image_folders_and_tables_of_a_dataset(tmp_path: Path) -> None:
    """The plain ways: `imagefolder` over files, and `load_dataset` of any file."""
    from PIL import Image

    for number in range(4):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (2, 2), number).save(path)
    folder = datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "images"), split="train")
    assert sorted((example["image"].getpixel((0, 0)), example["label"]) for example in folder) == [
        (0, 0),
        (1, 1),
        (2, 0),
        (3, 1),
    ]
