"""dlcmd bisect finds the image behind the spike of a PyTorch training, which samples without knowing of it."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dieselfs
from bench.papers.digits import write_digits
from dieselfs.settings.table import EMBEDDED
from dieselfs_tools.bisection.search import runs_for
from dieselfs_tools.cli.private_home import private_home
from tests.support.dlcmd import Dlcmd

BATCH = 8
TRAIN = """
import io
import sys
from itertools import islice

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

from dieselfs.torch import ChunkShuffleBatchSampler, FolderDataset

def pixels(content):
    return torch.from_numpy(np.array(Image.open(io.BytesIO(content)), np.float32)) / 255

torch.manual_seed(1)
with FolderDataset(sys.argv[1], loader=pixels) as dataset:
    sampler = ChunkShuffleBatchSampler(dataset, 8, seed=3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    batches = sampler.consumed(DataLoader(dataset, batch_sampler=sampler))
    for step, (images, labels) in enumerate(islice(batches, int(sys.argv[2]))):
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        with torch.no_grad():  # as SGD; torch.optim takes as long to import as all the rest, in each run
            for weights in model.parameters():
                weights -= 0.1 * weights.grad
                weights.grad = None
        print(f"step {step}: loss {loss.item():.3f}", flush=True)
"""


def test_the_poisonous_image_of_a_training_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    digits = tmp_path / "digits"
    write_digits(digits)
    (tmp_path / "train.py").write_text(TRAIN)
    place = sorted((digits / "train/3").iterdir())[7]
    # 16 bits a pixel, which the program takes for 8: 257 times as bright, and of another class.
    Image.fromarray(np.array(Image.open(place), np.uint16) * 257).save(digits / "train/8" / place.name)
    with private_home() as home:
        dlcmd = Dlcmd(home, tmp_path)
        dlcmd("put", "-r", "-q", f"{digits}/train/", "dl://digits/")
        with dieselfs.connect("digits", server=EMBEDDED, home=home) as data:
            read = [os.fspath(path) for path in data.plan(seed=3).share(batch=BATCH).paths]
        step = read.index(f"8/{place.name}") // BATCH
        told = dlcmd(
            *("bisect", "digits", "--seed", "3", "--batch", str(BATCH), "--step", str(step), "--json"),
            *("--metric", "loss ([0-9.]+)", "--above", "5", "--"),
            *(sys.executable, "train.py", "dl://digits", str(step + 2)),
        )
    assert [one["path"] for one in told.objects if one["type"] == "cause"] == [f"8/{place.name}"]
    runs = [one for one in told.objects if one["type"] == "run"]
    assert {one["verdict"] for one in runs} == {"good", "bad"} and len(runs) <= runs_for(BATCH)
