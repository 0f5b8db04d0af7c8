"""Mounts that programs write to: what they have written is stored, whatever is killed, full or away meanwhile."""

import errno
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from dieselfs.dataset import Dataset
from dieselfs.errors import DieselfsError, InvalidInput, MountError
from dieselfs.settings.table import AUTO, IMAGE
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.writing.rounds import sync
from lab.mount_processes import kill_all
from tests.client.conftest import needs_root
from tests.support.dlcmd import wait_until
from tests.support.server import RunningServer, running_server
from tests.support.small_disk import small_disk

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
