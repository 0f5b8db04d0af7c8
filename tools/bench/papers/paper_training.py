"""A training that reads its images from dieselfs or from files: figures 14 and 15 of DIESEL.

Each run of `examples/resnet18.py` is a new process after the caches were dropped. It trains for two epochs, and notes
for each step how long it waited for images and how long it computed. This module starts processes, servers and mounts.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from functools import partial
from pathlib import Path
from statistics import fmean

from bench.harness.figures import Run, RunFailed, Scale, Side, Trial
from bench.harness.forms import DATASET, drop_caches, mounted, running_home
from lab.server import upload

_EXAMPLE = Path(__file__).parents[3] / "examples/resnet18.py"
EPOCHS = 2
_BATCH, _QUICK_BATCH, _WORKERS = 128, 32, 2
_WIDTH = 2
"""Channels of the first layer: a processor then takes about as long for a step as a GPU for the whole network."""
_TIMEOUT_S = 3600.0


def paper_training(folder: Path, scale: Scale) -> Generator[Trial]:
    tree = folder / "images"
    images = make_images(tree, scale)
    with running_home(folder / "home") as home:
        with home.dataset(must_exist=False) as dataset:
            upload(dataset, tree)
        with mounted(home, folder / "mount"):
            roots = {
                "files": str(tree),
                "dieselfs, mount": str(folder / "mount"),
                "dieselfs, library": f"dl://{DATASET}",
            }
            sides = [
                Side(
                    name,
                    partial(_train, root, images, folder / "run", home.folder),
                    EPOCHS * images,
                    "images",
                )
                for name, root in roots.items()
            ]
            yield Trial(title_of(images), sides, scale.rounds, "files")


def make_images(tree: Path, scale: Scale) -> int:
    """Write the images, those to validate with too; the number of those to train with."""
    images = 2 * _QUICK_BATCH if scale.is_quick else max(scale.small_files // 2, 2 * _BATCH)
    _run_example(["images", tree, "--train", images, "--val", _batch_of(images)], tree.parent)
    return images


def _batch_of(images: int) -> int:
    """Images of a step: there are two steps at least."""
    return min(_BATCH, images // 2)


def title_of(images: int) -> str:
    return f"ResNet-18 (width {_WIDTH}), {images:,} images, {EPOCHS} epochs, batches of {_batch_of(images)}"


def _train(root: str, images: int, into: Path, home: Path) -> Run:
    drop_caches()
    return trained(root, images, into, home)


def trained(root: str, images: int, into: Path, home: Path | None = None) -> Run:
    """A training from `root`, which has as many images, and whose notes replace the folder `into`. Raises RunFailed."""
    shutil.rmtree(into, ignore_errors=True)
    options = {
        "into": into,
        "epochs": EPOCHS,
        "batch": _batch_of(images),
        "width": _WIDTH,
        "workers": _WORKERS,
    }
    words = (f"--{name}={value}" for name, value in options.items())
    _run_example(["train", root, *words], into.parent, home)
    steps = [json.loads(line) for line in (into / "steps-0.jsonl").read_text().splitlines()]
    waited_s, computed_s = (fmean(told[name] for told in steps) for name in ("waited_s", "computed_s"))
    seen = {"data access, ms a step": waited_s * 1e3, "computing, ms a step": computed_s * 1e3}
    return Run((waited_s + computed_s) * len(steps), seen=seen)


def _run_example(arguments: list[object], folder: Path, home: Path | None = None) -> None:
    command = [sys.executable, str(_EXAMPLE), *map(str, arguments)]
    path = ":".join(place for place in sys.path if place)
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        **({"DIESELFS_HOME": str(home)} if home else {}),
    }
    ran = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S
    )
    if ran.returncode:
        raise RunFailed(ran.stderr.strip().rpartition("\n")[2])
