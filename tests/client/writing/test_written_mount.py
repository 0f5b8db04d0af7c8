"""Mounts that programs write to: what they have written is stored, whatever is killed, full or away meanwhile."""

import errno
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.dataset import Dataset
from dieselfs.errors import DieselfsError, InvalidInput, MountError
from dieselfs.settings.table import AUTO, IMAGE
from dieselfs.transfer.report import TransferReport
from dieselfs.transfer.upload import TreeUpload
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.writing.changes import Found
from dieselfs_client.writing.rounds import SUSPECT, sync
from dieselfs_client.writing.upper import UpperEntry, WriteFolder
from lab.mount_processes import kill_all
from tests.client.conftest import needs_root
from tests.support.dlcmd import wait_until
from tests.support.server import RunningServer, running_server
from tests.support.small_disk import disk_image, small_disk

pytestmark = needs_root
LARGE = os.urandom(9_000_000)
"""It spans chunks."""
_NUMBERS = count()


@pytest.fixture
def data(server: RunningServer) -> Iterator[Dataset]:
    """A dataset with files in the folder `old`."""
    with Dataset(server.settings(), f"runs-{os.getpid()}-{next(_NUMBERS)}", must_exist=False) as dataset:
        for name in "exp1/old/a", "exp1/old/b", "exp1/old/deep/c", "exp1/config", "exp2/kept":
            dataset.put(name, name.encode())
        dataset.flush()
        yield dataset


@pytest.fixture
def writing(options: MountOptions) -> MountOptions:
    """No round but those that a test asks for."""
    return replace(options, view=AUTO, write=True, write_every_s=3600.0)


def shown(folder: Path) -> dict[str, bytes | None]:
    """Paths and contents; of a folder None."""
    return {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes()
        for path in folder.rglob("*")
        if not path.is_socket()
    }


def stored(dataset: Dataset, folder: str = "exp1") -> dict[str, bytes | None]:
    dataset.refresh()
    snapshot, head = dataset.snapshot, f"{folder}/".encode()
    paths = [snapshot.path(node) for node in snapshot.walk(snapshot.find(folder.encode()))]
    return {
        os.fsdecode(path.removeprefix(head)): None
        if snapshot.stat(snapshot.find(path)).is_folder
        else dataset.get(path)
        for path in paths
    }


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_programs_write_and_delete_is_in_the_dataset(
    data: Dataset, writing: MountOptions, mountpoint: Path
) -> None:
    control.mount(f"{data.name}/exp1", mountpoint, writing)
    assert shown(mountpoint) == stored(data)
    tensors = {"weights": torch.arange(100.0)}
    torch.save(tensors, mountpoint / "model.pt")
    save_distributed(tensors, checkpoint_id=mountpoint / "step-1.tmp")
    os.rename(mountpoint / "step-1.tmp", mountpoint / "step-1")
    (mountpoint / "large").write_bytes(LARGE)
    os.rename(mountpoint / "old/a", mountpoint / "moved")
    shutil.rmtree(mountpoint / "old/deep")
    (mountpoint / "old/deep").mkdir()  # opaque
    (mountpoint / "old/deep/new").write_bytes(b"new")
    (mountpoint / "link").symlink_to("moved")
    (mountpoint / "config").unlink()
    (mountpoint / "config").mkdir()
    with (mountpoint / "log").open("a") as log:
        log.write("step 1\n")
    outcome = sync(str(mountpoint))
    assert not outcome.waiting and not outcome.conflicts
    assert shown(mountpoint) == stored(data)
    assert data.get("exp2/kept") == b"exp2/kept"

    with (mountpoint / "log").open("a") as log:
        log.write("step 2\n")
    shutil.rmtree(mountpoint / "old")
    (mountpoint / "old").write_bytes(b"a file now")
    shutil.rmtree(mountpoint / "step-1")  # which the generation of the mount does not have
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(mountpoint / "socket"))
    data.put("exp1/log", b"of another writer")
    data.put("exp1/other", b"of another writer")
    data.flush()
    outcome = sync(str(mountpoint))
    assert (outcome.conflicts, outcome.refused) == (["log"], ["socket"])
    assert stored(data) == shown(mountpoint) | {"other": b"of another writer"}
    assert sync(str(mountpoint)).stored == 0

    (mountpoint / "last").write_bytes(b"stored by umount")
    last = shown(mountpoint)
    control.unmount(mountpoint)
    assert stored(data) == last | {"other": b"of another writer"}
    control.mount(f"{data.name}/exp1", mountpoint, writing)
    assert torch.load(mountpoint / "model.pt")["weights"].equal(tensors["weights"])
    assert (mountpoint / "log").read_text() == "step 1\nstep 2\n"


def test_what_was_written_before_a_crash_is_stored_by_the_next_mount(
    data: Dataset, writing: MountOptions, mountpoint: Path
) -> None:
    """Into a dataset that does not exist before; all processes of the mount are killed."""
    name = f"{data.name}-new"
    control.mount(f"{name}/run", mountpoint, writing)
    with (mountpoint / "checkpoint").open("wb") as file:
        file.write(LARGE)
        os.fsync(file.fileno())
    kill_all(mountpoint)
    with (mountpoint / "checkpoint").open("ab"), pytest.raises(MountError, match="busy"):
        control.mount(f"{name}/run", mountpoint, writing)
    control.mount(f"{name}/run", mountpoint, writing)
    assert (mountpoint / "checkpoint").read_bytes() == LARGE
    control.unmount(mountpoint)


def test_a_write_folder_stays_while_a_mount_elsewhere_uses_it(
    data: Dataset, writing: MountOptions, mountpoint: Path, tmp_path: Path
) -> None:
    """The mount is only in another mount namespace, as those of `dlcmd run`."""
    used = replace(writing, write_folder=str(tmp_path / "written"))
    control.mount(f"{data.name}/exp1", mountpoint, used)
    with subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "cat"], stdin=subprocess.PIPE
    ) as other:
        wait_until(lambda: os.readlink(f"/proc/{other.pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt"))
        (mountpoint / "new").write_bytes(b"new")
        subprocess.run(["umount", "--lazy", mountpoint], check=True)
        sync(str(tmp_path / "written"))
        assert stored(data)["new"] == b"new"
        assert (tmp_path / "written/upper/new").exists()
        (elsewhere := tmp_path / "elsewhere").mkdir()
        with pytest.raises(MountError, match="writes there"):
            control.mount(f"{data.name}/exp2", elsewhere, used)
        other.communicate()


def test_the_daemon_stores_at_the_interval(data: Dataset, writing: MountOptions, mountpoint: Path) -> None:
    control.mount(f"{data.name}/exp1", mountpoint, replace(writing, write_every_s=0.05))
    with (mountpoint / "events").open("ab") as events:  # as TensorBoard: it stays open
        for line in b"first\n", b"second\n":
            events.write(line)
            events.flush()
            while not (stored(data).get("events") or b"").endswith(line):
                pass
    control.unmount(mountpoint)


IN_NAMESPACE = ("unshare", "--user", "--map-root-user")


def add_large(data: Dataset) -> None:
    """A file that spans chunks, in a folder, and two that differ in bytes alone."""
    data.put("exp1/old/large", LARGE)
    for name in "x", "y":
        data.put(f"exp1/{name}/same", name.encode(), mtime_ns=1_700_000_000_000_000_000)
    data.flush()


def test_stored_folders_are_renamed_and_the_servers_move_them(
    data: Dataset, writing: MountOptions, mountpoint: Path
) -> None:
    add_large(data)
    control.mount(f"{data.name}/exp1", mountpoint, writing)
    old, new = mountpoint / "old", mountpoint / "new"
    os.rename(old, new)
    with pytest.raises(OSError) as refused:
        os.rename(new, new / "deep/below")
    assert refused.value.errno == errno.EINVAL
    old.mkdir()
    (old / "a").write_bytes(b"another file of the old name")
    (new / "b").write_bytes(b"changed")
    os.rename(new / "deep", mountpoint / "deepest")
    os.rename(mountpoint / "deepest/c", mountpoint / "deepest/d")
    expected = shown(mountpoint)
    assert expected["new/large"] == LARGE and expected["deepest/d"] == b"exp1/old/deep/c"
    outcome = sync(str(mountpoint))
    assert not outcome.waiting and not outcome.conflicts and outcome.stored_bytes < 1000
    assert stored(data) == expected
    assert sync(str(mountpoint)).stored == 0

    os.rename(new, mountpoint / "deepest/newer")  # it is at another place in the dataset than in the base
    for name, to in ("x", "aside"), ("y", "x"), ("aside", "y"):
        os.rename(mountpoint / name, mountpoint / to)
    expected = shown(mountpoint)
    assert (expected["x/same"], expected["y/same"]) == (b"y", b"x")
    outcome = sync(str(mountpoint))
    assert not outcome.waiting and not outcome.conflicts and outcome.stored_bytes < 1000
    assert stored(data) == expected

    shutil.rmtree(old)
    os.rename(mountpoint / "deepest/newer", old)
    os.rename(mountpoint / "deepest", old / "deep")
    shutil.rmtree(mountpoint / "x")
    expected = shown(mountpoint)
    control.unmount(mountpoint)
    assert stored(data) == expected
    assert expected["old/large"] == LARGE


@pytest.mark.parametrize("is_before", [True, False])
def test_a_folder_that_was_renamed_before_a_crash_is_stored_whole(
    data: Dataset,
    writing: MountOptions,
    mountpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_before: bool,
) -> None:
    """The round is killed before its upload, or when it has all done but to note it; then the folder is renamed once
    more, and the generation of the mount is purged.
    """
    add_large(data)
    control.mount(f"{data.name}/exp1", mountpoint, writing)
    os.rename(mountpoint / "old", mountpoint / "new")
    run = TreeUpload.run

    def killed(*arguments: Any) -> TransferReport:
        if not is_before:
            run(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TreeUpload, "run", killed)
        sync(str(mountpoint))
    os.rename(mountpoint / "new", mountpoint / "newest")
    expected = shown(mountpoint)
    kill_all(mountpoint)
    for pin in data.client.pins(data.name):
        data.client.pin(data.name, pin.holder.partition("/")[2], pin.generation, 0, 0)
    data.purge(grace_s=0)
    control.mount(f"{data.name}/exp1", mountpoint, writing)
    assert shown(mountpoint) == stored(data) == expected
    control.unmount(mountpoint)


def test_root_without_rights_stores_nothing_as_renamed_folders_look_empty(
    data: Dataset, writing: MountOptions, mountpoint: Path, tmp_path: Path
) -> None:
    """In a container, or a user namespace, say. Then the next mount stores it."""
    folder = str(tmp_path / "writes")
    used = replace(writing, write_folder=folder)
    control.mount(f"{data.name}/exp1", mountpoint, used)
    os.rename(mountpoint / "old", mountpoint / "new")
    before, expected = stored(data), shown(mountpoint)
    kill_all(mountpoint)
    subprocess.run(["umount", "--lazy", mountpoint], check=True)
    store = "import sys; from dieselfs_client.writing.rounds import sync; sync(sys.argv[1])"
    give_up = "from dieselfs_client import capabilities as of; of.keep_only(of.DAC_OVERRIDE, of.FOWNER)"
    for words in (
        [sys.executable, "-c", f"{give_up}; {store}"],
        [*IN_NAMESPACE, sys.executable, "-c", store],
    ):
        done = subprocess.run([*words, folder], capture_output=True, text=True)
        assert stored(data) == before
        assert done.returncode == 1 and "CAP_SYS_ADMIN" in done.stderr, done
    control.mount(f"{data.name}/exp1", mountpoint, used)
    assert stored(data) == expected
    control.unmount(mountpoint)


def test_a_renamed_folder_of_which_another_writer_deletes_files(
    data: Dataset, writing: MountOptions, mountpoint: Path
) -> None:
    control.mount(f"{data.name}/exp1", mountpoint, writing)
    os.rename(mountpoint / "old", mountpoint / "new")
    expected = shown(mountpoint)
    data.delete("exp1/old/a")
    data.put("exp1/old/b", b"of another writer")
    data.put("exp1/old/more", b"of another writer")
    data.flush()
    outcome = sync(str(mountpoint))
    assert outcome.conflicts == ["old/b"]
    assert stored(data) == expected | {"old": None, "old/more": b"of another writer"}
    control.unmount(mountpoint)


def test_a_name_is_deleted_only_when_the_new_one_is_stored(
    data: Dataset, writing: MountOptions, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control.mount(f"{data.name}/exp1", mountpoint, writing)
    (mountpoint / "log").write_bytes(b"first")
    sync(str(mountpoint))
    os.rename(mountpoint / "old/a", mountpoint / "renamed")
    (mountpoint / "config").unlink()
    (mountpoint / "log").write_bytes(b"second")
    before, expected = stored(data), shown(mountpoint)
    pack = UpperEntry.pack

    def failing(path: bytes) -> None:
        def packed(entry: UpperEntry, builder: ChunkBuilder) -> None:
            if entry.path == path:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            pack(entry, builder)

        monkeypatch.setattr(UpperEntry, "pack", packed)

    failing(b"exp1/renamed")
    outcome = sync(str(mountpoint))
    assert outcome.deleted == 0 and stored(data) == before | {"log": b"second"}
    assert {path for path, _ in outcome.waiting} == {"renamed", "old/a", "config"}
    (mountpoint / "log").write_bytes(b"third")
    failing(b"exp1/log")  # it had no other name, so nothing waits for it
    outcome = sync(str(mountpoint))
    assert [path for path, _ in outcome.waiting] == ["log"] and stored(data) == expected
    monkeypatch.undo()
    control.unmount(mountpoint)


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_file_that_is_renamed_during_a_round_is_never_missing(
    data: Dataset, writing: MountOptions, mountpoint: Path, monkeypatch: pytest.MonkeyPatch, is_listed: bool
) -> None:
    """The walk has seen the new name, which is then changed once more; or it has seen neither."""
    control.mount(f"{data.name}/exp1", mountpoint, writing)
    (mountpoint / "step-1").write_bytes(b"checkpoint")
    sync(str(mountpoint))
    os.rename(mountpoint / "step-1", mountpoint / "step-1.first")
    names, walk = iter(f"step-1.{number}" for number in range(100)), WriteFolder.walk

    def walked(folder: WriteFolder, times: dict[bytes, int] | None = None) -> Iterator[Found]:
        found = [*walk(folder, times)]
        os.rename(next(mountpoint.glob("step-1*")), mountpoint / next(names))
        yield from (each for each in found if is_listed or not each.path.startswith(b"step-1"))

    with monkeypatch.context() as patch:
        patch.setattr(WriteFolder, "walk", walked)
        outcome = sync(str(mountpoint))
    assert outcome.deleted == 0 and outcome.waiting
    assert stored(data)["step-1"] == b"checkpoint"
    sync(str(mountpoint))
    assert stored(data) == shown(mountpoint)
    control.unmount(mountpoint)


def test_an_error_of_the_disk_is_told_and_what_it_lost_is_not_stored(
    data: Dataset, writing: MountOptions, mountpoint: Path, tmp_path: Path
) -> None:
    """The disk of the write folder cannot write blocks, as it is larger than the memory in which it is; then it can."""
    with (
        small_disk(tmp_path / "memory", "24m") as memory,
        disk_image(memory / "image", "200m") as disk,
        ExitStack() as stack,
    ):
        control.mount(f"{data.name}/exp1", mountpoint, replace(writing, write_folder=str(disk / "writes")))
        stack.callback(lambda: subprocess.run(["umount", "--lazy", mountpoint], check=False))
        before = stored(data)
        with (mountpoint / "checkpoint").open("wb", buffering=0) as file:
            for _ in range(48):
                file.write(os.urandom(1 << 20))
            with pytest.raises(OSError):
                os.fsync(file.fileno())
        with pytest.raises(OSError):
            sync(str(mountpoint))
        subprocess.run(["mount", "-o", "remount,size=300m", str(memory)], check=True)

        def is_told() -> bool:  # once the kernel has tried to write
            with suppress(OSError):
                return dict(sync(str(mountpoint)).waiting) == {"checkpoint": SUSPECT}
            return False

        wait_until(is_told)
        (mountpoint / "later").write_bytes(b"written after the error")
        assert dict(sync(str(mountpoint)).waiting) == {"checkpoint": SUSPECT}
        assert stored(data) == before | {"later": b"written after the error"}
        (mountpoint / "checkpoint").unlink()
        assert not sync(str(mountpoint)).waiting
        control.unmount(mountpoint)


def test_a_full_disk_and_a_server_that_is_away_are_said_and_lose_nothing(
    tmp_path: Path, writing: MountOptions, mountpoint: Path
) -> None:
    with (
        small_disk(tmp_path / "disk", "4m") as disk,
        running_server(tmp_path / "server-of-test") as away,
    ):
        folder = disk / "writes"
        chosen = replace(writing, server=away.unix, write_folder=str(folder))
        control.mount("runs", mountpoint, chosen)
        with pytest.raises(OSError) as full, (mountpoint / "large").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
        assert full.value.errno == errno.ENOSPC
        outcome = sync(str(mountpoint))
        assert outcome.stored == 1 and "is full" in next(outcome.warnings())
        control.unmount(mountpoint)  # all is stored, so the full folder is emptied
        with Dataset(away.settings(), "runs") as dataset:
            assert len(dataset.get("large")) > 1 << 20
        control.mount("runs", mountpoint, chosen)
        (mountpoint / "large").unlink()
        (mountpoint / "small").write_bytes(b"kept")
        away.kill()
        with pytest.raises(DieselfsError, match=f"kept in {folder}"):
            control.unmount(mountpoint)
        with running_server(away.folder) as again:
            assert again.unix == away.unix
            assert sync(str(folder)).stored == 1
            with Dataset(again.settings(), "runs") as dataset:
                assert dataset.get("small") == b"kept"
        assert not folder.exists()


@pytest.mark.parametrize(
    ("dataset", "change"),
    [
        ("letters@tag", {}),
        ("letters", {"generation": 1}),
        ("letters", {"follow_s": 1.0}),
        ("letters", {"view": IMAGE}),
        ("letters", {"write_folder": "/a,b"}),
        ("letters", {"write": False, "write_folder": "/folder"}),
    ],
)
def test_what_cannot_be_written_is_refused(
    dataset: str, change: dict[str, object], writing: MountOptions, mountpoint: Path
) -> None:
    with pytest.raises(InvalidInput):
        control.mount(dataset, mountpoint, replace(writing, **change))  # type: ignore[arg-type]  # fields by name
