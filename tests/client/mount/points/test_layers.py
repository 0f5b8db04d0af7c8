"""The layers of a mount: its base, what covers it, and what is left of it."""

import json
import os
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dieselfs.errors import AccessDenied, MountError
from dieselfs.settings.table import FUSE, OVERLAY
from dieselfs.snapshot.erofs_image import ImageOwner, ImagePlan
from dieselfs_client.daemon import control
from dieselfs_client.mount.points import layers, mounting
from dieselfs_client.mount.points.layers import (
    Layers,
    bases_folder,
    cover,
    detach,
    make_base,
    remove_base,
    remove_bases,
)
from dieselfs_client.mount.points.mount_table import (
    MOUNTINFO,
    dieselfs_mounts,
    is_stale,
    mount_at,
    parse_mountinfo,
)
from dieselfs_client.mount.points.mounting import prepare_mountpoint, unmount
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.mount.points.view_choice import Choice
from dieselfs_client.mount.views.image import mount_image
from dieselfs_client.mount.views.view import open_view
from lab.network import clear
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries
from tests.support.erofs import image_bytes
from tests.support.mounted import RunningMount, mounted
from tests.support.users import as_nobody

pytestmark = [
    pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse"),
    pytest.mark.skipif(os.getuid() != 0, reason="only root can mount other views"),
]


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    entries = [TreeEntry(b"file", 0o100644, 0, b"content"), TreeEntry(b"more/file", 0o100644, 0, b"other")]
    return pack_entries(entries, name="pets")


@pytest.fixture(autouse=True)
def own_bases(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each mount of root removes the bases that nobody holds: tests beside this one those of its dead mounts."""
    folder = tmp_path_factory.mktemp("bases")
    monkeypatch.setattr(layers, "SYSTEM_BASES", folder)
    yield
    monkeypatch.setattr(layers, "SYSTEM_BASES", folder)
    remove_bases()
    assert os.listdir(folder) == []


@contextmanager
def overlay(packed: PackedDataset, folder: Path, **more: bool) -> Iterator[RunningMount]:
    options = MountOptions(view=OVERLAY, **more)  # type: ignore[arg-type]  # only switches
    with mounted(
        packed, folder, options=options, sabotage=partial(use_bases, layers.SYSTEM_BASES)
    ) as running:
        yield running


def use_bases(folder: Path) -> None:
    layers.SYSTEM_BASES = folder


def base_below(mountpoint: Path) -> Path:
    """The base of a mount with the view overlay."""
    record = mount_at(str(mountpoint))
    assert record is not None
    (lower,) = (option for option in record.options if option.startswith("lowerdir="))
    return Path(lower.removeprefix("lowerdir=").split(":")[0]).parent


def test_layers_are_handed_over_as_text() -> None:
    there = Layers("/mnt/\udcff", OVERLAY, "why", "/run/dieselfs/1", "0:40")
    assert Layers.decode(there.encode()) == there
    assert (there.fuse_place, Layers("/mnt").fuse_place) == ("/run/dieselfs/1/fuse", "/mnt")
    for content in (b"", b"[]", b'{"other": 1}'):
        with pytest.raises(ValueError):
            Layers.decode(content)


# -- what users see ---------------------------------------------------------------------------------------


def test_overlayfs_covers_a_private_fuse_mount(packed: PackedDataset, tmp_path: Path) -> None:
    with overlay(packed, tmp_path) as running:
        record = mount_at(str(running.path))
        assert record is not None
        assert (record.source, record.filesystem, record.view) == ("dl://pets", "overlay", OVERLAY)
        assert {"ro", "nosuid", "nodev", "noatime"} <= set(record.options)
        base = base_below(running.path)
        assert base.parent == bases_folder()
        assert stat.S_IMODE(base.stat().st_mode) == 0o700
        places = [found.mountpoint for found in dieselfs_mounts()]
        assert str(running.path) in places
        assert not [place for place in places if place.startswith(str(base)) or place.endswith(".dieselfs")]
        assert sorted(os.listdir(running.path)) == ["file", "more"]
        info = json.loads((running.path / ".dieselfs/info").read_text())
        assert (info["view"], info["view_reason"]) == (OVERLAY, "")
        assert json.loads((running.path / ".dieselfs/stats").read_text())["view"]["view"] == OVERLAY
        assert "view overlay" in running.log()
        unmount(str(running.path))
        assert running.wait() == 0
        assert not base.exists()


def test_files_and_folders_have_one_device_number(packed: PackedDataset, tmp_path: Path) -> None:
    with overlay(packed, tmp_path) as running:
        places = (running.path, running.path / "more", running.path / "file", running.path / "more/file")
        assert len({place.stat().st_dev for place in places}) == 1


def test_other_users_are_kept_out_unless_they_are_let_in(packed: PackedDataset, open_path: Path) -> None:
    with overlay(packed, open_path) as running:
        assert stat.S_IMODE(running.path.stat().st_mode) == 0o700
        for place in ("file", ".dieselfs/stats"):
            assert as_nobody("cat", str(running.path / place)).stdout == b""
        assert as_nobody("ls", str(running.path)).returncode != 0
    with overlay(packed, open_path, allow_other=True) as running:
        assert as_nobody("cat", str(running.path / "file")).stdout == b"content"
        assert as_nobody("cat", str(running.path / ".dieselfs/info")).returncode == 0


def test_the_owner_of_the_files_is_not_let_in_by_that(packed: PackedDataset, open_path: Path) -> None:
    with mounted(packed, open_path, options=MountOptions(view=OVERLAY, uid=65534)) as running:
        assert (running.path.stat().st_uid, (running.path / "file").stat().st_uid) == (0, 65534)
        assert as_nobody("cat", str(running.path / "file")).stdout == b""


def test_programs_are_not_run_with_noexec(packed: PackedDataset, tmp_path: Path) -> None:
    with overlay(packed, tmp_path, noexec=True) as running:
        record = mount_at(str(running.path))
        assert record is not None and "noexec" in record.options


# -- its end ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["umount", "-R"], ["umount", "-l"]])
def test_umount_ends_everything(packed: PackedDataset, tmp_path: Path, command: list[str]) -> None:
    with overlay(packed, tmp_path) as running:
        base = base_below(running.path)
        subprocess.run([*command, str(running.path)], check=True)
        assert running.wait() == 0
        assert not base.exists()
    assert not [
        one for one in parse_mountinfo(MOUNTINFO.read_bytes()) if one.mountpoint.startswith(str(base))
    ]


def test_a_mount_in_use_keeps_its_control_files(packed: PackedDataset, tmp_path: Path) -> None:
    with overlay(packed, tmp_path) as running:
        with open(running.path / "file", "rb"), pytest.raises(MountError, match="busy"):
            unmount(str(running.path))
        with open(running.path / ".dieselfs/stats", "rb"), pytest.raises(MountError, match="busy"):
            unmount(str(running.path))
        assert json.loads((running.path / ".dieselfs/info").read_text())["dataset"] == "pets"
        unmount(str(running.path))
        assert running.wait() == 0


def test_what_is_open_is_served_after_a_lazy_unmount(packed: PackedDataset, tmp_path: Path) -> None:
    with overlay(packed, tmp_path) as running:
        base = base_below(running.path)
        with open(running.path / "file", "rb") as file:
            unmount(str(running.path), lazily=True)
            with overlay(packed, tmp_path) as second:
                assert (second.path / "file").read_bytes() == b"content"
                assert file.read() == b"content"
                assert base_below(second.path) != base
                file.close()
                assert running.wait() == 0
                assert (second.path / "more/file").read_bytes() == b"other"
                assert (second.path / ".dieselfs/info").read_bytes()


def test_a_bind_mount_stays_whole_after_a_lazy_unmount(packed: PackedDataset, tmp_path: Path) -> None:
    inside = tmp_path / "container"
    inside.mkdir()
    with overlay(packed, tmp_path) as running:
        subprocess.run(["mount", "--rbind", str(running.path), str(inside)], check=True)
        try:
            unmount(str(running.path), lazily=True)
            assert (inside / "file").read_bytes() == b"content"
            assert json.loads((inside / ".dieselfs/info").read_text())["dataset"] == "pets"
            assert not is_stale(str(inside))
        finally:
            clear(inside)
        assert running.wait() == 0


def test_a_mount_is_detached_unless_it_is_another_one(packed: PackedDataset, tmp_path: Path) -> None:
    with mounted(packed, tmp_path, options=MountOptions(view=FUSE)) as running:
        place = str(running.path)
        detach(Layers(place, number="0:0"))
        assert mount_at(place) is not None, "the mount of a later generation"
        detach(Layers(place))  # its daemon died before the number was known
        assert mount_at(place) is None and running.wait() == 0


def test_a_dead_mount_is_replaced_and_its_base_removed(packed: PackedDataset, tmp_path: Path) -> None:
    with overlay(packed, tmp_path) as killed:
        base = base_below(killed.path)
        killed.send(signal.SIGKILL)
        killed.wait()
        assert is_stale(str(killed.path))
        with overlay(packed, tmp_path) as running:
            assert (running.path / "file").read_bytes() == b"content"
            assert not is_stale(str(running.path))
            assert not base.exists()


def test_a_dead_mount_that_is_unmounted_leaves_no_base(packed: PackedDataset, tmp_path: Path) -> None:
    with overlay(packed, tmp_path) as killed:
        base = base_below(killed.path)
        killed.send(signal.SIGKILL)
        killed.wait()
        control.unmount(killed.path)
        assert mount_at(str(killed.path)) is None
        assert not base.exists()


def test_a_dead_mount_is_replaced_on_a_linux_that_cannot_mount_beneath(
    packed: PackedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = mounting.facts()
    monkeypatch.setattr(layers, "facts", lambda: replace(facts, linux=(6, 4)))
    with overlay(packed, tmp_path) as killed:
        base = base_below(killed.path)
        killed.send(signal.SIGKILL)
        killed.wait()
        covered = Layers(str(killed.path), OVERLAY, base=str(base))
        view = open_view(Choice(OVERLAY, ""), packed.snapshot, MountOptions(), None)
        with pytest.raises((MountError, OSError), match="not connected"):
            cover(covered, view.mount, "pets")  # what is below is dead, too
        assert mount_at(str(killed.path)) is None


# -- bases ------------------------------------------------------------------------------------------------


def test_a_base_is_kept_while_it_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "SYSTEM_BASES", tmp_path / "bases")
    held, descriptor = make_base()
    _left, other = make_base("dl:")
    os.close(other)
    remove_bases()
    assert [entry.path for entry in os.scandir(tmp_path / "bases")] == [held]
    assert sorted(os.listdir(held)) == ["empty", "fuse"]
    remove_base(Layers(str(tmp_path), base=held))
    assert not Path(held).exists()
    os.close(descriptor)
    remove_bases()


def test_a_folder_for_bases_must_be_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bases").mkdir()
    os.chmod(tmp_path / "bases", 0o777)
    monkeypatch.setattr(layers, "SYSTEM_BASES", tmp_path / "bases")
    with pytest.raises(AccessDenied, match="only this user can enter"):
        make_base()


# -- images -----------------------------------------------------------------------------------------------


def test_an_image_is_mounted_under_the_name_of_the_dataset(packed: PackedDataset, tmp_path: Path) -> None:
    image, place = written_image(packed, tmp_path), tmp_path / "mount"
    place.mkdir()
    folder = os.getcwd()
    mount_image(str(image), str(place), "dl://pets", str(tmp_path))
    try:
        record = mount_at(str(place))
        assert record is not None
        assert (record.source, record.filesystem) == ("dl://pets", "erofs")
        assert record.is_dieselfs
        assert (place / "more/file").read_bytes() == b"other"
        assert os.getcwd() == folder
        assert not (tmp_path / "dl:").exists()
        with pytest.raises(MountError, match="dl://pets is mounted there already"):
            prepare_mountpoint(str(place))
    finally:
        clear(place)


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(bytes(8192))
    (tmp_path / "mount").mkdir()
    with pytest.raises(MountError, match="cannot be mounted as erofs: Invalid argument"):
        mount_image(str(tmp_path / "image"), str(tmp_path / "mount"), "dl://pets", str(tmp_path))
    assert not (tmp_path / "dl:").exists()


def written_image(packed: PackedDataset, folder: Path) -> Path:
    image = folder / "image"
    image.write_bytes(image_bytes(packed, ImagePlan(packed.snapshot, ImageOwner(0, 0)).write()))
    return image


def test_no_base_is_needed_for_the_view_fuse(packed: PackedDataset, tmp_path: Path) -> None:
    with mounted(packed, tmp_path, options=MountOptions(view=FUSE)) as running:
        record = mount_at(str(running.path))
        assert record is not None
        below = [one for one in parse_mountinfo(MOUNTINFO.read_bytes()) if one.device == record.device]
        assert [one.mountpoint for one in below] == [str(running.path)]


def test_a_base_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "SYSTEM_BASES", tmp_path / "bases")
    made = []
    make = tempfile.mkdtemp

    def removed(*arguments: str) -> str:
        made.append(make(*arguments))
        if len(made) == 1:
            os.rmdir(made[0])
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", removed)
    base, descriptor = make_base()
    os.close(descriptor)
    assert [base] == made[1:]
