"""docs/guide/training.md is right to the letter: its commands and programs are run, on images of digits."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.utils.data import DataLoader

import dieselfs
from bench.papers.digits import write_digits
from dieselfs.errors import MountError
from dieselfs.samples.source import LibrarySource
from dieselfs.snapshot.subtree import files_below
from dieselfs.torch import ChunkShuffleBatchSampler, FolderDataset
from dieselfs_client.daemon import control
from dieselfs_tools.cli.private_home import private_home
from tests.support import warm
from tests.support.documents import DOCUMENTS
from tests.support.job_daemons import end_job_daemons
from tests.support.server import free_port

TIMEOUT_S = 240.0
PROGRAMS = {"dlcmd": "dieselfs_tools.dlcmd", "torchrun": "torch.distributed.run"}

TOKENS: dict[str, npt.NDArray[Any]] = {
    "web": np.arange(200_000, dtype=np.uint32),
    "books": np.arange(30_000, dtype=np.uint16),
}

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this machine has no /dev/fuse")


@dataclass(frozen=True)
class Page:
    """What stands on the page, and a folder to try it in."""

    folder: Path
    home: Path

    @property
    def mountpoint(self) -> Path:
        return self.folder / "mnt/imagenet"

    def blocks(self, language: str) -> list[str]:
        text = (DOCUMENTS / "guide/training.md").read_text(encoding="utf-8")
        return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)

    def program(self, name: str) -> str:
        """The one block of Python in which this is defined."""
        (block,) = (block for block in self.blocks("python") if f"def {name}(" in block)
        return block

    def shell(self, commands: str, **variables: str) -> str:
        """Run commands as on the page, but for where the mount is, and how many ranks there are; returns the output."""
        commands = commands.replace("/mnt/imagenet", str(self.mountpoint)).replace("per-node 8", "per-node 2")
        ran = subprocess.run(
            ["/bin/bash", "-eu", "-o", "pipefail", "-c", commands],
            cwd=self.folder,
            env={**self.environment(), **variables},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert ran.returncode == 0, f"{commands}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def environment(self) -> dict[str, str]:
        """Of a user with another home; but a daemon is found by this process, too."""
        pinned = {name: os.environ[name] for name in ("XDG_RUNTIME_DIR",) if name in os.environ}
        return {
            **pinned,
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "HOME": str(self.folder),
            "DIESELFS_HOME": str(self.home),
            "OMP_NUM_THREADS": "1",
        }


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("page")
    (folder / "bin").mkdir()
    for name, module in PROGRAMS.items():
        program = folder / "bin" / name
        program.write_text(warm.script(module))
        program.chmod(0o755)
    write_digits(folder / "imagenet")
    os.rename(folder / "imagenet/test", folder / "imagenet/val")
    (folder / "imagenet/tokens").mkdir()
    for name, tokens in TOKENS.items():
        np.save(folder / f"imagenet/tokens/{name}.npy", tokens)
    with private_home() as home:
        page = Page(folder, home)
        page.mountpoint.mkdir(parents=True)
        # The first epoch is for one process alone, through the library, as the text says that it may be.
        (folder / "train.py").write_text(page.program("main").replace("EPOCHS, ", "EPOCHS = 1\n_, "))
        try:
            yield page
        finally:
            with suppress(MountError):
                control.unmount(page.mountpoint, lazily=True)


def test_from_put_to_two_ranks_that_take_up_the_training_of_one(page: Page) -> None:
    first, *_ = page.blocks("sh")
    put_and_mount, _, torchrun = first.strip().rpartition("\n")
    page.shell(put_and_mount)
    assert page.shell(f"{sys.executable} train.py imagenet@v1/train").startswith("rank 0: epoch 0, loss ")

    (page.folder / "train.py").write_text(page.program("main"))
    told = sorted(page.shell(torchrun).splitlines())
    assert [line.partition(", loss")[0] for line in told] == ["rank 0: epoch 1", "rank 1: epoch 1"]


def test_the_library_shares_memory(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    (commands,) = (block for block in page.blocks("sh") if "dlcmd cache" in block)
    page.shell(commands)
    try:
        monkeypatch.setenv("DIESELFS_HOME", str(page.home))
        with FolderDataset("imagenet@v1/train", loader=bytes) as dataset:
            assert len(dataset.__getitems__(range(len(dataset)))) == len(dataset)
            assert isinstance(dataset.source, LibrarySource)
            assert dataset.source.dataset.statistics()["chunk_cache"]["shared_chunks"] > 0
    finally:
        page.shell(f"{commands.strip()} --stop")


def test_two_nodes_that_pool_their_memory(page: Page) -> None:
    make_secret, train = (block for block in page.blocks("sh") if "job.secret" in block)
    page.shell(make_secret)
    program = (
        page.program("main").replace("EPOCHS, ", "EPOCHS = 1\n_, ").replace("num_workers=4", "num_workers=1")
    )
    folder = page.folder / "job"
    folder.mkdir()
    (folder / "train.py").write_text(program)
    train = train.replace("per-node 8", "per-node 1").replace("node-1:29400", f"127.0.0.1:{free_port()}")
    train = f"cd {folder}\n" + train.replace("--nnodes", "--local-addr 127.0.0.1 --nnodes")
    runtime = Path(tempfile.mkdtemp(prefix="job-"))

    def run(node: str) -> str:
        return page.shell(
            train, DIESELFS_JOB_NODE=node, XDG_RUNTIME_DIR=str(runtime), GLOO_SOCKET_IFNAME="lo"
        )

    try:
        with ThreadPoolExecutor(2) as nodes:
            told = sorted("".join(nodes.map(run, ["rack-1", "rack-2"])).splitlines())
        assert [line.partition(", loss")[0] for line in told] == ["rank 0: epoch 0", "rank 1: epoch 0"]
        logs = {
            log.name: log.read_text() for log in (page.folder / ".local/state/dieselfs").glob("job-*.log")
        }
        assert sorted(logs) == ["job-torchrun-resnet-rack-1.log", "job-torchrun-resnet-rack-2.log"]
        assert all("job torchrun-resnet: 2 nodes" in log for log in logs.values()), logs
    finally:
        end_job_daemons(runtime)
        shutil.rmtree(runtime)


def test_the_list_of_an_order(page: Page) -> None:
    (commands,) = (block for block in page.blocks("sh") if ".dieselfs/shuffle" in block)
    listed = page.shell(commands).splitlines()
    assert len(listed) == 3
    with FolderDataset(page.mountpoint / "train", loader=bytes) as dataset:
        sampler = ChunkShuffleBatchSampler(dataset, 256, seed=1, rank=0, world=8)
        assert [dataset.path(index) for index in next(iter(sampler))[:3]] == listed


def test_stored_in_mixed_order(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIESELFS_HOME", str(page.home))
    (commands,) = (block for block in page.blocks("sh") if "names.txt" in block)
    page.shell(commands)
    with dieselfs.connect("mixed") as data:
        snapshot = data.snapshot
    nodes = files_below(snapshot)
    places = [(extent.chunk, extent.offset) for node in nodes for extent in snapshot.extents(int(node))]
    folders = [
        snapshot.parent(int(nodes[index])) for index in sorted(range(len(nodes)), key=places.__getitem__)
    ]
    assert len(folders) == 1797 + len(TOKENS)
    assert sum(one == following for one, following in pairwise(folders)) < 0.2 * len(folders)


def function(page: Page, name: str) -> Callable[..., Any]:
    defined: dict[str, Any] = {}
    exec(compile(page.program(name), "docs/guide/training.md", "exec"), defined)
    found: Callable[..., Any] = defined[name]
    return found


def test_a_step_that_is_skipped(page: Page) -> None:
    with FolderDataset(page.mountpoint / "train", loader=bytes) as dataset:
        before = ChunkShuffleBatchSampler(dataset, 100, seed=1)
        expected = [index for batch in before for index in batch]
        sampler = function(page, "resumed_without")(dataset, before.state_dict(), 0, 3, 4, 100)
        found = [index for batch in sampler for index in batch]
        assert found == expected[:300] + expected[500:]


def test_the_order_of_the_memory(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIESELFS_HOME", str(page.home))
    seen: list[int] = []
    state = function(page, "train_near")(
        "imagenet@v1/train", len, lambda sizes, labels: seen.extend(sizes.tolist())
    )
    with FolderDataset(page.mountpoint / "train", loader=len) as dataset:
        assert sorted(seen) == sorted(2 * [dataset[index][0] for index in range(len(dataset))])
    assert {*state} == {"opportunistic", "log"}


def test_contents_in_order_from_the_library(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIESELFS_HOME", str(page.home))
    with FolderDataset(page.mountpoint / "train", loader=bytes) as dataset:
        share = [*ChunkShuffleBatchSampler(dataset, 8, seed=1, rank=0, world=8)]
        contents = list(function(page, "contents")("imagenet@v1"))
        assert contents == [dataset[index][0] for batch in share for index in batch]


def test_parts_of_pairs(page: Page) -> None:
    torch.manual_seed(3)
    loader, sampler = function(page, "loader_of_part")(page.mountpoint / "train", "train")
    keys = [item["__key__"] for batch in sampler.consumed(loader) for item in batch]
    assert len(keys) == len(set(keys)) > 1000


def test_a_view_of_a_dataset_of_ones_own(page: Page) -> None:
    folder = page.folder / "imagenet/train"
    names = sorted(str(path.relative_to(folder)) for path in folder.glob("*/*"))
    block = page.program("captions_view").replace("0/0000.png", names[0]).replace("1/0001.png", names[-1])
    defined: dict[str, Any] = {}
    exec(compile(block, "docs/guide/training.md", "exec"), defined)
    view = defined["captions_view"](page.mountpoint / "train")
    sampler = ChunkShuffleBatchSampler(view, 3, seed=1, rank=0, world=1)
    (batch,) = DataLoader(view, batch_sampler=sampler, collate_fn=list)
    assert sorted(caption for _, caption in batch) == ["a circle", "a one", "a zero"]


def test_tokens_on_the_mount_and_from_the_library(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIESELFS_HOME", str(page.home))
    batches = []
    for root in (f"{page.mountpoint}/tokens", "imagenet@v1/tokens"):
        loader, sampler = function(page, "language_loader")(f"{root}/web.npy", f"{root}/books.npy", 128)
        batches.append([batch.tolist() for batch in sampler.consumed(loader)])
        sampler.dataset.close()
    assert batches[0] == batches[1]
    rows = [row for batch in batches[0] for row in batch]
    assert all(row == [*range(row[0], row[0] + 129)] and row[0] % 128 == 0 for row in rows)
    assert len(rows) == 199_999 // 128 + 29_999 // 128
