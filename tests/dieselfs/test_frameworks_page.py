"""The blocks of docs/guide/frameworks.md, each where its package is installed."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from dieselfs.dataset import Dataset
from dieselfs.torch import FolderDataset
from tests.support.documents import DOCUMENTS
from tests.support.plain_folder import FILES, array_of, number_of, write_classes
from tests.support.server import RunningServer

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks

BATCH = 8
STEPS = FILES // BATCH


def function(name: str, package: str) -> Any:
    """The function of the page; the test is skipped where its package is missing."""
    pytest.importorskip(package, reason=f"{package} is not installed")
    text = (DOCUMENTS / "guide/frameworks.md").read_text(encoding="utf-8")
    pattern = rf"^(def|class) {name}\("
    (block,) = (
        block
        for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        if re.search(pattern, block, re.MULTILINE)
    )
    defined: dict[str, Any] = {}
    exec(compile(block, "docs/guide/frameworks.md", "exec"), defined)
    return defined[name]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_classes(tmp_path / "images")


@pytest.fixture
def dataset(root: Path) -> Iterator[FolderDataset]:
    with FolderDataset(
        root, loader=lambda content: torch.tensor([float(number_of(content))]), extensions=None
    ) as dataset:
        yield dataset


class Stopped(Exception):
    """As a kill in the middle of an epoch."""


def test_lightning(dataset: FolderDataset, tmp_path: Path) -> None:
    fit = function("fit", "lightning")
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Model(lightning.LightningModule):
        def __init__(self, stop_after: int | None = None) -> None:
            super().__init__()
            self.layer, self.stop_after = nn.Linear(1, 1), stop_after
            self.seen: list[int] = []

        def training_step(self, batch: Any, number: int) -> Any:
            if len(self.seen) == self.stop_after:
                raise Stopped
            self.seen += batch[0].flatten().int().tolist()
            return self.layer(batch[0]).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-6)

    def run(model: Model, folder: str, checkpoint: Path | None = None) -> list[int]:
        saves = lightning.pytorch.callbacks.ModelCheckpoint(
            tmp_path / folder, save_last=True, every_n_train_steps=1
        )
        trainer = {"max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_model_summary": False}
        options = {**trainer, "enable_progress_bar": False}
        original = lightning.Trainer.__init__

        def with_saves(self: Any, *, callbacks: list[Any], **rest: Any) -> None:
            original(self, callbacks=[*callbacks, saves], **rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lightning.Trainer, "__init__", with_saves)
            fit(model, dataset, BATCH, checkpoint, **options)
        return model.seen

    whole = run(Model(), "whole")
    assert sorted(whole[:FILES]) == sorted(whole[FILES:]) == list(range(FILES))
    stopped = Model(stop_after=BATCH * (STEPS + 2))
    with pytest.raises(Stopped):
        run(stopped, "stopped")
    assert stopped.seen + run(Model(), "stopped", tmp_path / "stopped/last.ckpt") == whole


def test_accelerate(dataset: FolderDataset, tmp_path: Path) -> None:
    train = function("train", "accelerate")

    def run(stop_after: int | None, folder: str, resume: bool = False) -> list[int]:
        seen: list[int] = []

        def loss_of(model: nn.Module, batch: Any) -> Any:
            if len(seen) == stop_after:
                raise Stopped
            seen.extend(batch[0].flatten().int().tolist())
            return model(batch[0]).mean()

        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), 1e-6)
        try:
            train(model, optimizer, loss_of, dataset, BATCH, 2, str(tmp_path / folder), resume)
        except Stopped:
            assert stop_after is not None
        return seen

    whole = run(None, "whole")
    assert sorted(whole[:FILES]) == sorted(whole[FILES:]) == list(range(FILES))
    stopped = run(BATCH * (STEPS + 2), "stopped")
    assert stopped + run(None, "stopped", resume=True) == whole


def test_trainer(dataset: FolderDataset, tmp_path: Path) -> None:
    ordered_trainer = function("OrderedTrainer", "transformers")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from transformers import TrainingArguments

    seen: list[int] = []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            seen.extend(x.flatten().int().tolist())
            return {"loss": self.layer(x).mean()}

    def collate(items: list[Any]) -> dict[str, Any]:
        return {
            "x": torch.stack([x for x, _ in items]),
            "labels": torch.tensor([label for _, label in items]),
        }

    def trainer(folder: str, epochs: float) -> Any:
        arguments = TrainingArguments(
            str(tmp_path / folder),
            num_train_epochs=epochs,
            save_steps=1,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            logging_strategy="no",
        )
        return ordered_trainer(Model(), arguments, collate, dataset, batch_size=BATCH)

    trainer("whole", 2).train()
    whole = seen.copy()
    assert sorted(whole[:FILES]) == sorted(whole[FILES:]) == list(range(FILES))
    seen.clear()
    trainer("whole", 2).train_from(str(tmp_path / f"whole/checkpoint-{STEPS + 2}"))
    assert seen == whole[BATCH * (STEPS + 2) :]


def test_huggingface(
    root: Path, server: RunningServer, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, table = function("images", "datasets"), function("table", "datasets")
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(root.parent / "cache"))
    monkeypatch.setenv("DIESELFS_KEY", str(server.settings().key_file))
    whole = [number_of(example["image"]) for example in images(root, 3)]
    first = images(root, 3)
    found = [number_of(example["image"]) for _, example in zip(range(9), first, strict=False)]
    assert found + [number_of(example["image"]) for example in images(root, 3, first.state_dict())] == whole
    data.put("rows.json", b'{"x": 1}\n{"x": 2}\n')
    data.flush()
    assert table(f"dl://{data.name}/rows.json", server.unix)["x"] == [1, 2]


def test_tensorflow(root: Path) -> None:
    batches = function("batches", "tensorflow")
    whole, _ = batches(root, array_of, (1,))
    found = [int(number) for images, _ in whole for number in images.numpy()[:, 0]]
    assert sorted(found) == list(range(FILES))


def test_grain(root: Path) -> None:
    loader = function("loader", "grain")
    whole = [int(number) for images, _ in loader(root, array_of, 1, BATCH) for number in images[:, 0]]
    assert sorted(whole) == list(range(FILES))


def test_dali(tmp_path: Path) -> None:
    decoded = function("decoded", "nvidia.dali")
    for number in range(FILES):
        folder = tmp_path / str(number % 2)
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (40, 30), (number, 0, 0)).save(folder / f"{number:03d}.png")

    def read(pipeline: tuple[Any, Any], steps: int = STEPS + 1) -> list[int]:
        iterator, sampler = pipeline
        found: list[int] = []
        for number, (batch,) in enumerate(sampler.consumed(iterator), 1):
            assert batch["images"].shape[1:] == (32, 32, 3)
            found += batch["images"][:, 0, 0, 0].tolist()
            assert batch["labels"].flatten().tolist() == [one % 2 for one in found[-len(batch["labels"]) :]]
            if number == steps:
                break
        return found

    whole = decoded(tmp_path, BATCH, size=32)
    epochs = [read(whole), read(whole)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(FILES)) and epochs[0] != epochs[1]
    stopped = decoded(tmp_path, BATCH, size=32)
    found = read(stopped, 2)
    resumed = decoded(tmp_path, BATCH, size=32, state=stopped[1].state_dict())
    assert found + read(resumed) == epochs[0]
    assert read(resumed) == epochs[1]


def test_pandas_and_pyarrow(server: RunningServer, data: Dataset, tmp_path: Path) -> None:
    rows_of, rows_where = function("rows_of", "pandas"), function("rows_where", "pyarrow")
    import pyarrow.dataset

    options = put_tables(server, data, tmp_path)
    assert rows_of(f"dl://{data.name}/tables/1.parquet", **options)["x"].tolist() == [3, 4, 5]
    found = rows_where(f"dl://{data.name}/tables", pyarrow.dataset.field("x") > 1, ["y"], **options)
    assert sorted(found["y"].to_pylist()) == ["2", "3", "4", "5"]


def put_tables(server: RunningServer, data: Dataset, folder: Path) -> dict[str, Any]:
    """Two Parquet files with the numbers 0 to 5; the options to read them."""
    import pyarrow.parquet

    for part in range(2):
        numbers = range(3 * part, 3 * part + 3)
        table = pyarrow.table({"x": [*numbers], "y": [*map(str, numbers)]})
        pyarrow.parquet.write_table(table, folder / f"{part}.parquet")
        data.put(f"tables/{part}.parquet", (folder / f"{part}.parquet").read_bytes())
    data.flush()
    settings = server.settings()
    return {"server": settings.server, "key_file": settings.key_file}


def test_zarr_and_dask(server: RunningServer, data: Dataset, tmp_path: Path) -> None:
    pytest.importorskip("dask", reason="dask is not installed")
    mean_of_array, lines_of = function("mean_of_array", "zarr"), function("lines_of", "zarr")
    sum_of_column = function("sum_of_column", "zarr")
    import zarr

    values = np.arange(1000.0).reshape(10, 100)
    zarr.create_array(str(tmp_path / "values.zarr"), data=values, chunks=(5, 50))
    for path in (tmp_path / "values.zarr").rglob("*"):
        if path.is_file():
            data.put(str(path.relative_to(tmp_path)), path.read_bytes())
    data.put("logs/1.txt", b"a\nb\n")
    data.put("logs/2.txt", b"c\n")
    options = put_tables(server, data, tmp_path)
    assert mean_of_array(f"dl://{data.name}/values.zarr", **options) == values.mean()
    assert lines_of(f"dl://{data.name}/logs/*.txt", **options) == 3
    assert sum_of_column(f"dl://{data.name}/tables/*.parquet", "x", **options) == 15
