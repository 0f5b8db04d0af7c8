import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dieselfs.errors import MountError
from dieselfs.limits import KIB
from dieselfs.settings.table import FUSE, IMAGE
from dieselfs_client.mount.points import mount_table, mounting
from dieselfs_client.mount.points.mount_table import MOUNTINFO, STAGED, is_stale, mount_at, parse_mountinfo
from dieselfs_client.mount.points.mounting import (
    ReadAhead,
    facts,
    has_dead_mount,
    image_read_aheads,
    limit_image_read_ahead,
    mount_device,
    mount_kernel_file_system,
    prepare_mountpoint,
    put_in_place,
    read_aheads,
    replace_dead,
    resolved_mountpoint,
    uncover,
    unmount,
    unmount_dead,
)
from dieselfs_client.mount.points.options import MountOptions
from lab.network import clear
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries
from tests.support.mounted import mounted

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    return pack_entries([TreeEntry(b"file", 0o100644, 0, b"content")], name="pets")


def test_an_empty_folder_will_do(tmp_path: Path) -> None:
    prepare_mountpoint(str(tmp_path))


def test_a_mount_point_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MountError, match="there is no such folder; make it first: mkdir -p"):
        prepare_mountpoint(str(tmp_path / "missing"))


def test_a_mount_point_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(MountError, match="not a folder"):
        prepare_mountpoint(str(tmp_path / "file"))


def test_a_mount_point_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(MountError, match="not empty"):
        prepare_mountpoint(str(tmp_path))


def test_a_mount_point_in_use(tmp_path: Path, packed: PackedDataset) -> None:
    with mounted(packed, tmp_path) as running:
        with pytest.raises(
            MountError, match=f"dl://pets is mounted there already.*dlcmd umount {running.path}"
        ):
            prepare_mountpoint(str(running.path))
        assert (running.path / "file").read_bytes() == b"content"


def test_links_to_a_mount_point_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real/inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "direct").symlink_to("real/inner")
    assert resolved_mountpoint(tmp_path / "link/inner") == str(tmp_path / "real/inner")
    assert resolved_mountpoint(tmp_path / "direct") == str(tmp_path / "real/inner")
    assert resolved_mountpoint(tmp_path / "link/../link/inner/") == str(tmp_path / "real/inner")


def test_a_dead_mount_is_replaced(tmp_path: Path, packed: PackedDataset) -> None:
    with mounted(packed, tmp_path) as killed:
        assert not is_stale(str(killed.path))
        killed.send(signal.SIGKILL)
        killed.wait()
        assert is_stale(str(killed.path))
        with mounted(packed, tmp_path) as running:
            assert (running.path / "file").read_bytes() == b"content"
            assert not is_stale(str(running.path))


def test_two_dead_mounts_on_top_of_each_other(tmp_path: Path) -> None:
    try:
        for _ in range(2):
            os.close(mount_device(str(tmp_path), "dl://pets"))
        prepare_mountpoint(str(tmp_path))
        assert has_dead_mount(str(tmp_path)), "it stays until another mount takes its place"
        unmount_dead(str(tmp_path))
        assert mount_at(str(tmp_path)) is None
    finally:
        clear(tmp_path)


@pytest.mark.skipif(not facts().may_mount_beneath, reason="needs root, and Linux 6.5")
def test_dead_mounts_are_replaced_in_one_step(tmp_path: Path) -> None:
    place, staged = tmp_path / "mount", tmp_path / STAGED
    place.mkdir()
    staged.mkdir()
    try:
        for _ in range(2):
            os.close(mount_device(str(place), "dl://pets"))
        device = mount_device(str(staged), "dl://cats")
        replace_dead(str(staged), str(place))
        records = [*parse_mountinfo(MOUNTINFO.read_bytes())]
        assert [one.source for one in records if one.mountpoint == str(place)] == ["dl://cats"]
        assert mount_at(str(staged)) is None
        os.close(device)
    finally:
        clear(staged)
        clear(place)


@pytest.mark.skipif(not facts().may_mount_beneath, reason="needs root, and Linux 6.5")
@pytest.mark.parametrize("is_staged", [True, False])
def test_a_live_mount_below_a_dead_one_is_not_covered(
    tmp_path: Path, packed: PackedDataset, is_staged: bool
) -> None:
    staged = tmp_path / STAGED
    staged.mkdir()
    with mounted(packed, tmp_path) as running:
        place = str(running.path)
        os.close(mount_device(place, "dl://cats"))
        prepare_mountpoint(place)  # which sees only the dead one
        device = mount_device(str(staged), "dl://dogs")
        try:
            with pytest.raises(MountError, match="dl://pets is mounted there already"):
                if is_staged:
                    replace_dead(str(staged), place)
                else:
                    unmount_dead(place)
            assert (running.path / "file").read_bytes() == b"content"
        finally:
            os.close(device)
            clear(staged)


@pytest.mark.skipif(not facts().may_mount_beneath, reason="needs root, and Linux 6.5")
def test_a_dead_mount_in_a_covered_folder_is_not_one_below(tmp_path: Path) -> None:
    """It has the same path, but no path reaches it."""
    folder, staged = tmp_path / "folder", tmp_path / STAGED
    place = folder / "mount"
    place.mkdir(parents=True)
    staged.mkdir()
    try:
        os.close(mount_device(str(place), "dl://pets"))
        mount_kernel_file_system("none", str(folder), "tmpfs", is_writable=True)
        place.mkdir()
        os.close(mount_device(str(place), "dl://pets"))
        device = mount_device(str(staged), "dl://cats")
        replace_dead(str(staged), str(place))
        record = mount_at(str(place))
        assert record is not None and record.source == "dl://cats"
        os.close(device)
    finally:
        for each in (staged, place, folder, place):
            clear(each)


def test_nobody_waits_for_a_mount_that_is_cut_off(tmp_path: Path) -> None:
    device = mount_device(str(tmp_path), "dl://pets")  # which nobody serves

    def ask() -> None:
        with suppress(OSError):
            os.statvfs(tmp_path)

    asking = threading.Thread(target=ask, daemon=True)
    try:
        asking.start()
        unmount(str(tmp_path), lazily=True, is_cut_off=True)
        asking.join(30)
        assert not asking.is_alive()
    finally:
        os.close(device)
        clear(tmp_path)


def test_a_mount_tells_what_it_is(tmp_path: Path, packed: PackedDataset) -> None:
    with mounted(packed, tmp_path, options=MountOptions(view=FUSE)) as running:
        record = mount_at(str(running.path))
        assert record is not None
        assert (record.source, record.filesystem) == ("dl://pets", "fuse.dieselfs")
        assert {"ro", "nosuid", "nodev", "noatime", "default_permissions"} <= set(record.options)
        assert "allow_other" not in record.options


def test_a_mount_with_open_files_is_not_unmounted(tmp_path: Path, packed: PackedDataset) -> None:
    with mounted(packed, tmp_path) as running:
        with open(running.path / "file", "rb"), pytest.raises(MountError, match="busy"):
            unmount(str(running.path))
        unmount(str(running.path))
        assert running.wait() == 0


def test_what_is_not_mounted_cannot_be_unmounted(tmp_path: Path) -> None:
    with pytest.raises(MountError, match="cannot be unmounted"):
        unmount(str(tmp_path))


def bdi(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    (folder / name / "read_ahead_kb").write_text("128")
    return folder / name / "read_ahead_kb"


def test_the_read_ahead_of_the_new_image_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounting, "BDIS", tmp_path)
    old = bdi(tmp_path, "erofs-1")
    before = image_read_aheads()
    new, other = bdi(tmp_path, "erofs-2"), bdi(tmp_path, "0:41")
    assert limit_image_read_ahead(before)
    assert [place.read_text() for place in (old, new, other)] == ["128", "64", "128"]


def test_the_read_ahead_of_other_images_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another mount was made at the same time."""
    monkeypatch.setattr(mounting, "BDIS", tmp_path)
    assert not limit_image_read_ahead(image_read_aheads())
    both = [bdi(tmp_path, name) for name in ("erofs-1", "erofs-2")]
    assert not limit_image_read_ahead(())
    assert [place.read_text() for place in both] == ["128", "128"]


def test_a_read_ahead_that_only_root_may_set_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounting, "BDIS", tmp_path)
    (tmp_path / "erofs-1").mkdir()  # without a file, as with one that cannot be written
    (tmp_path / "erofs-1" / "read_ahead_kb").mkdir()
    assert not limit_image_read_ahead(())
    monkeypatch.setattr(mounting, "BDIS", tmp_path / "missing")
    assert image_read_aheads() == set()


def test_the_read_ahead_of_mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image has it under a name that does not say whose it is: with a foreign EROFS mount none is listed."""
    monkeypatch.setattr(mounting, "BDIS", tmp_path)
    table = tmp_path / "mountinfo"
    for module in (mounting, mount_table):
        monkeypatch.setattr(module, "MOUNTINFO", table)
    lines = [
        "20 1 0:50 / /mnt/a ro - fuse.dieselfs dl://a ro",
        "21 1 0:51 / /mnt/b ro - erofs dl://b ro",
        "22 1 0:52 / /mnt/gone ro - fuse.dieselfs dl://c ro",
    ]
    table.write_text("\n".join(lines))
    bdi(tmp_path, "0:50")
    bdi(tmp_path, "erofs-4")
    of_fuse = ReadAhead("/mnt/a", FUSE, "0:50", 128 * KIB)
    assert read_aheads() == [of_fuse, ReadAhead("erofs-4", IMAGE, "erofs-4", 128 * KIB)]
    bdi(tmp_path, "erofs-5")  # of another mount namespace
    assert read_aheads() == [of_fuse]
    (tmp_path / "erofs-5/read_ahead_kb").unlink()
    (tmp_path / "erofs-5").rmdir()
    table.write_text("\n".join([*lines, "23 1 0:53 / /mnt/other ro - erofs /dev/loop1 ro"]))
    assert read_aheads() == [of_fuse]


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def exchange(one: Path, other: Path) -> None:
    """As the owner of the folder above can, although both have mounts below."""
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


@pytest.fixture
def exchanged(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Two folders of a user, each with a mount of dieselfs on `mount`."""
    folders = tmp_path / "pets", tmp_path / "cats"
    devices = []
    try:
        for folder in folders:
            (folder / "mount").mkdir(parents=True)
            devices.append(mount_device(str(folder / "mount"), f"dl://{folder.name}"))
        yield folders
    finally:
        for device in devices:
            os.close(device)
        for folder in folders:
            clear(folder / "mount")


def sources(folder: Path) -> dict[str, str]:
    records = parse_mountinfo(MOUNTINFO.read_bytes())
    return {one.mountpoint: one.source for one in records if one.mountpoint.startswith(f"{folder}/")}


@needs_root
def test_a_folder_that_was_exchanged_for_a_link_is_not_mounted_on(tmp_path: Path) -> None:
    """A user can do so after the path was checked."""
    (tmp_path / "real/inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(MountError, match="a folder above it may have just changed"):
        mount_device(str(tmp_path / "link/inner"), "dl://pets")
    (tmp_path / "real/direct").symlink_to("inner")
    with pytest.raises(MountError, match="a folder above it may have just changed"):
        mount_device(str(tmp_path / "real/direct"), "dl://pets")
    assert sources(tmp_path) == {}


@needs_root
def test_another_mount_is_not_detached_in_place_of_the_one_that_is_meant(
    exchanged: tuple[Path, Path], tmp_path: Path
) -> None:
    pets, cats = exchanged
    place = str(pets / "mount")
    record = mount_at(place)
    assert record is not None
    exchange(pets, cats)
    before = sources(tmp_path)
    assert before == {place: "dl://cats", str(cats / "mount"): "dl://pets"}
    staged = str(tmp_path / STAGED)
    attempts: list[Callable[[], None]] = [
        lambda: unmount(place, number=record.number),
        lambda: unmount(place, lazily=True, number=record.number),
        lambda: uncover(place, record.number),
        lambda: put_in_place(staged, place, record.number),
    ]
    for attempt in attempts:
        with pytest.raises(MountError, match="another mount is there now"):
            attempt()
    assert sources(tmp_path) == before


@needs_root
def test_a_path_that_is_exchanged_between_check_and_unmount_leads_to_the_same_mount(
    exchanged: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pets, cats = exchanged
    original = mounting._unmount

    def late(place: str, mountpoint: str, flags: int) -> None:
        exchange(pets, cats)
        original(place, mountpoint, flags)

    monkeypatch.setattr(mounting, "_unmount", late)
    uncover(str(pets / "mount"))
    assert sources(tmp_path) == {str(pets / "mount"): "dl://cats"}
