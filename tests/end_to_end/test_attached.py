"""Attached archives through a mount and the library: shuffled reads, and a source that breaks while others are read."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import Damaged
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_tools.cli.private_home import private_home
from tests.support.dlcmd import Dlcmd
from tests.support.server import RunningServer, running_server
from tests.tools.commands.test_import_ import tar_of

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="this machine has no /dev/fuse")

FILES = {
    f"{shard}/{number:04}.bin": os.urandom(2000 + number) for shard in range(4) for number in range(300)
} | {"0/large": os.urandom(9 << 20)}


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archives")
    for shard in range(4):
        members = {name: content for name, content in FILES.items() if name.startswith(f"{shard}/")}
        (folder / f"{shard}.tar").write_bytes(tar_of(members))
    return folder


@pytest.fixture(scope="module")
def server(archives: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("server")
    with running_server(folder, ("--attach-roots", str(archives))) as running:
        names = [f"{shard}.tar" for shard in range(4)]
        with private_home() as home:
            dlcmd = Dlcmd(home, archives, {"DIESELFS_SERVER": running.unix})
            dlcmd("attach", "--chunk-size", "256K", *names, "dl://pets/")
        yield running


@pytest.mark.parametrize("view", ["image", "fuse"])
def test_a_mount_reads_all_of_it_but_what_broke(
    archives: Path, server: RunningServer, tmp_path: Path, view: str
) -> None:
    place = tmp_path / "mount"
    place.mkdir()
    options = MountOptions(server=server.unix, log_file=str(tmp_path / "log"), view=view)
    times = os.stat(archives / "2.tar")
    control.mount("pets", place, options)
    try:
        assert sum(1 for _ in place.rglob("*.bin")) == 1200
        os.utime(archives / "2.tar", ns=(0, 1))
        for name, content in FILES.items():
            if name.startswith("2/"):
                with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                    (place / name).read_bytes()
            else:
                assert (place / name).read_bytes() == content
        assert f"{archives}/2.tar: it has changed since it was attached" in (tmp_path / "log").read_text()
    finally:
        control.unmount(place)
        os.utime(archives / "2.tar", ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_mount_keeps_what_is_detached(archives: Path, server: RunningServer, tmp_path: Path) -> None:
    place = tmp_path / "mount"
    place.mkdir()
    with private_home() as home:
        dlcmd = Dlcmd(home, archives, {"DIESELFS_SERVER": server.unix})
        dlcmd("attach", "0.tar", "1.tar", "dl://mounted/")
        control.mount("mounted", place, MountOptions(server=server.unix, log_file=str(tmp_path / "log")))
        try:
            dlcmd("detach", "0.tar", "dl://mounted")
            dlcmd("purge", "--grace", "0s", "dl://mounted")
            for name, content in FILES.items():
                if name[0] in "01":
                    assert (place / name).read_bytes() == content
        finally:
            control.unmount(place)
        dlcmd("purge", "--grace", "0s", "dl://mounted")
        assert dlcmd("info", "--json", "dl://mounted").objects[0]["files"] == 300


@pytest.mark.parametrize("has_shared_memory", [True, False])
def test_the_library_reads_shuffled(archives: Path, server: RunningServer, has_shared_memory: bool) -> None:
    """Through memory of a server of this user, and through its replies over TCP."""
    key = None if has_shared_memory else server.user("ann", pets="read")
    with Dataset(server.settings(key), "pets") as data:
        order = [str(path) for path in data.shuffle(seed=1, epoch=0)]
        assert sorted(order) == sorted(FILES)
        for path, content in zip(order, data.get_many(order), strict=True):
            assert content == FILES[path]
    times = os.stat(archives / "1.tar")
    os.utime(archives / "1.tar", ns=(0, 1))
    try:
        with Dataset(server.settings(key), "pets") as data:
            assert data.get("3/0000.bin") == FILES["3/0000.bin"]
            if not has_shared_memory:  # memory has what was verified before
                with pytest.raises(Damaged, match=r"1\.tar: it has changed since it was attached"):
                    data.get("1/0000.bin")
    finally:
        os.utime(archives / "1.tar", ns=(times.st_atime_ns, times.st_mtime_ns))
