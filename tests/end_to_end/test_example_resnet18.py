"""examples/resnet18.py: a killed training continues with other ranks, and reads what it would have read."""

import json
import os
import runpy
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import dieselfs
from dieselfs.shuffle.cursor import Cursor
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_tools.cli.private_home import private_home
from lab.namespace import wait_for
from tests.support.documents import DOCUMENTS

EXAMPLE = DOCUMENTS.parent / "examples/resnet18.py"
IMAGES, BATCH, SEED = 120, 12, 5
ENDLESS = 10_000
"""Epochs; a run of that many does not end before it is killed."""
TIMEOUT_S = 240.0

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this machine has no /dev/fuse")


@dataclass(frozen=True)
class Place:
    folder: Path
    home: Path

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join(path for path in sys.path if path)
        return {**os.environ, "PYTHONPATH": path, "DIESELFS_HOME": str(self.home), "OMP_NUM_THREADS": "1"}

    def run(self, *command: object) -> None:
        ran = subprocess.run(
            [sys.executable, *map(str, command)],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"

    def command(self, root: object, into: Path, ranks: int, epochs: int) -> list[str]:
        """One rank is a plain process, as someone starts it who has one processor; more are started by torchrun."""
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        options = {"into": into, "epochs": epochs, "batch": BATCH, "width": 2, "workers": 0, "seed": SEED}
        told = [f"--{name}={value}" for name, value in {**options, "checkpoint-every": 4}.items()]
        return [*(launcher if ranks > 1 else ()), str(EXAMPLE), "train", str(root), *told]


def run_here(*arguments: object) -> None:
    """Run a command of the example in this process, which has imported torch."""
    ran = CliRunner().invoke(
        runpy.run_path(str(EXAMPLE))["main"], [*map(str, arguments)], catch_exceptions=False
    )
    assert ran.exit_code == 0, ran.output


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("resnet")
    with private_home() as home:
        place = Place(folder, home)
        run_here("images", folder / "cifar", "--train", IMAGES, "--val", 20)
        put = ["put", "-q", "-r", "--chunk-size", "64KiB", f"{folder}/cifar/", "dl://cifar/"]
        place.run("-m", "dieselfs_tools.dlcmd", *put)
        yield place


@pytest.fixture(scope="module")
def mountpoint(place: Place) -> Iterator[Path]:
    path = place.folder / "mnt"
    path.mkdir()
    control.mount("cifar", path, MountOptions(home=str(place.home)))
    try:
        yield path
    finally:
        control.unmount(path)


@pytest.fixture(scope="module")
def killed(place: Place, mountpoint: Path) -> Path:
    """The folder of a run on two ranks. All its processes were killed after the first checkpoint."""
    into = place.folder / "killed"
    process = subprocess.Popen(
        [sys.executable, *place.command(mountpoint, into, 2, ENDLESS)],
        env=place.environment(),
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: len(steps_of(into, 0)) >= 6 or process.poll() is not None, "steps", TIMEOUT_S)
        assert process.poll() is None, "it ended by itself"
    finally:
        # Ranks have sessions of their own, and would continue without torchrun.
        ranks = children_of(process.pid)
        for pid in (process.pid, *ranks):
            kill(pid)
        process.wait(30)
    assert len(ranks) == 2
    return into


def children_of(process: int) -> list[int]:
    threads = Path(f"/proc/{process}/task").iterdir()
    return [int(pid) for thread in threads for pid in (thread / "children").read_text().split()]


def kill(process: int) -> None:
    """Return when it has ended: it writes nothing any more."""
    descriptor = os.pidfd_open(process)
    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    select.select([descriptor], [], [], 30)
    os.close(descriptor)


def steps_of(into: Path, rank: int) -> list[dict[str, Any]]:
    file = into / f"steps-{rank}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def order_of(into: Path, ranks: int) -> dict[tuple[int, int], list[str]]:
    """The samples of each step, of all ranks."""
    order: dict[tuple[int, int], list[str]] = {}
    for rank in range(ranks):
        for told in steps_of(into, rank):
            order.setdefault((told["epoch"], told["end"]), []).extend(told["samples"])
    return order


def expected_order(place: Place, epochs: int) -> dict[tuple[int, int], list[str]]:
    """What a run that nobody stops reads: the plan, cut into steps."""
    order: dict[tuple[int, int], list[str]] = {}
    with dieselfs.connect("cifar", home=place.home) as data:
        for epoch in range(epochs):
            paths = list(data.plan(seed=SEED, epoch=epoch, folder="train").share(0, 1).paths)
            for end in range(BATCH, IMAGES + 1, BATCH):
                order[epoch, end] = paths[end - BATCH : end]
    return order


def test_a_killed_run_read_the_order(place: Place, killed: Path) -> None:
    done = order_of(killed, 2)
    *whole, _ = done  # only one rank may have said the last one
    expected = expected_order(place, 1 + len(whole) // (IMAGES // BATCH))
    assert [done[step] for step in whole] == [expected[step] for step in whole]


@pytest.mark.parametrize(("ranks", "is_mounted"), [(1, False), (3, True)])
def test_it_goes_on_with_other_ranks(
    place: Place, killed: Path, mountpoint: Path, ranks: int, is_mounted: bool
) -> None:
    into = place.folder / f"resumed-{ranks}"
    into.mkdir()
    shutil.copy(killed / "checkpoint.pt", into)
    cursor = Cursor.parse(torch.load(into / "checkpoint.pt", weights_only=True)["sampler"]["cursor"])
    epochs = cursor.spec.epoch + 2
    place.run(*place.command(mountpoint if is_mounted else "dl://cifar", into, ranks, epochs))
    left = {
        step: samples
        for step, samples in expected_order(place, epochs).items()
        if step > (cursor.spec.epoch, cursor.position)
    }
    assert order_of(into, ranks) == left
    if find_spec("matplotlib") is not None:  # it is no package of the tests
        run_here("plot", into)
        assert (into / "plots.png").stat().st_size > 0
