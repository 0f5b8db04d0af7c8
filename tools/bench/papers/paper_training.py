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
_EPOCHS, _BATCH, _WORKERS = 2, 128, 2
_WIDTH = 2
"""Channels of the first layer: a processor then takes about as long for a step as a GPU for the whole network."""
_TIMEOUT_S = 3600.0


def paper_training(folder: Path, scale: Scale) -> Generator[Trial]:
    images = 2 * _BATCH if scale.is_quick else max(scale.small_files // 2, 2 * _BATCH)
    tree = folder / "images"
    _run_example(["images", tree, "--train", images, "--val", _BATCH], folder)
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
                Side(name, partial(_train, root, folder, home.folder), _EPOCHS * images, "images")
                for name, root in roots.items()
            ]
            title = f"ResNet-18 (width {_WIDTH}), {images:,} images, {_EPOCHS} epochs, batches of {_BATCH}"
            yield Trial(title, sides, scale.rounds, "files")


def _train(root: str, folder: Path, home: Path) -> Run:
    into = folder / "run"
    shutil.rmtree(into, ignore_errors=True)
    drop_caches()
    options = {"into": into, "epochs": _EPOCHS, "batch": _BATCH, "width": _WIDTH, "workers": _WORKERS}
    _run_example(["train", root, *(f"--{name}={value}" for name, value in options.items())], folder, home)
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
