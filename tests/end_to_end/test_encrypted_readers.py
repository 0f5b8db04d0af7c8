"""Readers of an encrypted dataset beside `get` and one mount: programs with `dlcmd cache`, workers of a DataLoader, a
mount that follows, and the verbs that compare, import and export.
"""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dieselfs.errors import EXIT_PARTIAL, EXIT_USAGE
from tests.support.dlcmd import Dlcmd, wait_until

FILES = 40


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "scans"
    (folder / "train").mkdir(parents=True)
    for number in range(FILES):
        (folder / f"train/{number}").write_bytes(number.to_bytes(4, "big") * (2000 + number))
    (folder / "large.bin").write_bytes(os.urandom(9_000_000))
    (folder / "empty").touch()
    (folder / "void").mkdir()
    for path in folder.rglob("*"):
        os.utime(path, (10**9, 10**9))  # whole seconds, as in a tar archive
    return folder


@pytest.fixture(scope="module")
def dlcmd(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Iterator[Dlcmd]:
    folder = tmp_path_factory.mktemp("user")
    (folder / "run").mkdir(0o700)
    run = Dlcmd(folder / "home", folder, {"XDG_RUNTIME_DIR": str(folder / "run")})
    run("put", "-r", "--encrypt", f"{source}/", "dl://scans/")
    yield run


def ran(dlcmd: Dlcmd, program: str, *arguments: str) -> Any:
    """What a program prints as JSON, which runs as the user of `dlcmd`."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(
        command, cwd=dlcmd.folder, env=dlcmd.environment(), capture_output=True, text=True, timeout=120
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


READ_ALL = """
import json, dieselfs
with dieselfs.connect("scans") as data:
    for path, content in zip(data.files(), data.get_many(data.files()), strict=True):
        number = path.rpartition("/")[2]
        assert not number.isdigit() or content == int(number).to_bytes(4, "big") * (2000 + int(number))
    assert len(data.get("large.bin")) == 9_000_000
    print(json.dumps(data.statistics()))
"""


def test_programs_map_what_the_cache_daemon_has_decrypted(dlcmd: Dlcmd) -> None:
    dlcmd("cache", "dl://scans")
    try:
        for _ in range(2):
            figures = ran(dlcmd, READ_ALL)
            assert figures["chunk_cache"]["shared_chunks"] > 0
            assert figures["chunk_cache"]["fetched_chunks"] == figures["requested"]["from_servers"] == 0
            assert figures["requested"]["from_node"] > 0
    finally:
        dlcmd("cache", "--stop", "dl://scans")
    assert ran(dlcmd, READ_ALL)["chunk_cache"]["shared_chunks"] == 0


LOADED = """
import json, sys
from itertools import islice
from torch.utils.data import DataLoader
from dieselfs.torch import ChunkShuffleBatchSampler, FileDataset

def batches(sampler, dataset, steps=None):
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=list, num_workers=int(sys.argv[2]),
                        multiprocessing_context=sys.argv[1])
    return [[int.from_bytes(content[:4], "big") for content in batch]
            for batch in islice(sampler.consumed(loader), steps)]

if __name__ == "__main__":
    dataset = FileDataset("dl://scans/train", loader=bytes)
    samplers = [ChunkShuffleBatchSampler(dataset, 5, seed=3) for _ in range(3)]
    whole, first = batches(samplers[0], dataset), batches(samplers[1], dataset, 3)
    samplers[2].load_state_dict(samplers[1].state_dict())
    print(json.dumps([whole, first + batches(samplers[2], dataset)]))
"""


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])  # a spawned one imports torch
def test_workers_of_a_loader_read_and_resume(dlcmd: Dlcmd, method: str, workers: int) -> None:
    pytest.importorskip("torch")
    program = dlcmd.folder / "loaded.py"
    program.write_text(LOADED)
    whole, resumed = ran(
        dlcmd, f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')", method, str(workers)
    )
    assert sorted(number for batch in whole for number in batch) == list(range(FILES))
    assert resumed == whole


@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")
@pytest.mark.parametrize("view", ["fuse", "image"])
def test_a_mount_follows_a_growing_dataset(dlcmd: Dlcmd, tmp_path: Path, view: str) -> None:
    if os.geteuid():
        pytest.skip("only root has all views")
    first, second, mount = (tmp_path / name for name in ("first", "second", "mount"))
    first.write_bytes(b"1" * 70_000)
    second.write_bytes(b"2" * 70_000)
    mount.mkdir()
    dlcmd("put", "--encrypt", first, f"dl://growing-{view}/")
    dlcmd("mount", "--view", view, "--follow", "200ms", f"dl://growing-{view}", mount)
    try:
        assert (mount / "first").read_bytes() == first.read_bytes()
        dlcmd("put", second, f"dl://growing-{view}/")
        wait_until((mount / "second").exists)
        assert (mount / "second").read_bytes() == second.read_bytes()
        assert "daemon" in dlcmd("why", "--since-start", mount).text
    finally:
        dlcmd("umount", mount)


def test_what_is_imported_is_compared_and_exported(dlcmd: Dlcmd, source: Path, tmp_path: Path) -> None:
    archive, target = tmp_path / "scans.tar", tmp_path / "out"
    with tarfile.open(archive, "w") as tar:
        tar.add(source, ".")
    assert dlcmd("import", "--json", archive, "dl://scans/tar/").summary["failed"] == 0
    assert not dlcmd("diff", "--json", "dl://scans/train", "dl://scans/tar/train").objects
    dlcmd("check", f"{source}/", "dl://scans/tar/")
    changed = tmp_path / "5"
    changed.write_bytes((source / "train/5").read_bytes()[:-1] + b"!")
    dlcmd("put", changed, "dl://scans/tar/train/")
    found = dlcmd("diff", "dl://scans/train", "dl://scans/tar/train", exit_code=EXIT_PARTIAL)
    assert found.lines == ["* 5"]
    dlcmd("export", "--format", "folder", "dl://scans/tar", target)
    assert dlcmd("verify", target).lines[0].split()[0] != dlcmd("verify", source).lines[0].split()[0]
    (target / "train/5").write_bytes((source / "train/5").read_bytes())
    assert dlcmd("verify", target).lines[0].split()[0] == dlcmd("verify", source).lines[0].split()[0]
    dlcmd("export", "dl://scans/train", tmp_path / "out.tar")
    with tarfile.open(tmp_path / "out.tar") as tar:
        member = tar.extractfile("7")
        assert member is not None and member.read() == (source / "train/7").read_bytes()


def test_a_tag_stays_readable_after_changes_and_a_purge(dlcmd: Dlcmd, source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    dlcmd("get", "-r", "dl://scans/train/", copy)
    dlcmd("put", "-r", "--encrypt", f"{copy}/", "dl://tagged/")
    dlcmd("tag", "add", "dl://tagged", "v1")
    (copy / "0").write_bytes(b"changed")
    (copy / "1").unlink()
    dlcmd("sync", "-y", "--delete", f"{copy}/", "dl://tagged/")
    dlcmd("purge", "--grace", "0s", "dl://tagged")
    assert dlcmd("cat", "dl://tagged/0").stdout == b"changed"
    assert dlcmd("cat", "dl://tagged@v1/0").stdout == (source / "train/0").read_bytes()
    assert dlcmd("cat", "dl://tagged@v1/1").stdout == (source / "train/1").read_bytes()
    assert dlcmd("diff", "dl://tagged@v1", "dl://tagged", exit_code=EXIT_PARTIAL).lines == ["* 0", "- 1"]
    dlcmd("sync", "-y", "--delete", "dl://tagged@v1/", copy)
    dlcmd("check", f"{source}/train/", "dl://tagged@v1/")
    dlcmd("cp", "dl://tagged@v1/0", "dl://tagged/2", exit_code=EXIT_USAGE)
    dlcmd("cp", "dl://tagged/0", tmp_path / "one")
    assert (tmp_path / "one").read_bytes() == b"changed"
