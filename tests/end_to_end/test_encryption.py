"""An encrypted dataset as users have it: dlcmd, and a mount in each view, over a home of its own."""

import os
import random
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.errors import EXIT_REFUSED, EXIT_USAGE
from tests.client.conftest import needs_root
from tests.support.dlcmd import Dlcmd


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "pets"
    (folder / "train/cat").mkdir(parents=True)
    for number in range(30):
        (folder / f"train/cat/{number}.jpg").write_bytes(os.urandom(3000 + number))
    (folder / "large.bin").write_bytes(os.urandom(5_000_000))
    (folder / "empty").touch()
    (folder / "void").mkdir()
    (folder / "link").symlink_to("train/cat/1.jpg")
    return folder


@pytest.fixture(scope="module")
def dlcmd(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Iterator[Dlcmd]:
    folder = tmp_path_factory.mktemp("user")
    run = Dlcmd(folder / "home", folder)
    run("put", "-r", "--encrypt", f"{source}/", "dl://pets/")
    yield run


def test_what_was_put_comes_back(dlcmd: Dlcmd, source: Path, tmp_path: Path) -> None:
    assert dlcmd("verify", "dl://pets").lines[0].split()[0] == dlcmd("verify", source).lines[0].split()[0]
    dlcmd("check", f"{source}/", "dl://pets/")
    assert dlcmd("ls", "dl://pets").lines == ["empty", "large.bin", "link", "train/", "void/"]
    assert dlcmd("ls", "dl://pets/train/cat/1.jpg").lines == ["1.jpg"]
    assert dlcmd("cat", "dl://pets/link").stdout == (source / "train/cat/1.jpg").read_bytes()
    dlcmd("sync", "dl://pets/", tmp_path / "copy")
    dlcmd("check", f"{tmp_path}/copy/", "dl://pets/")
    assert dlcmd("put", "-r", "--json", f"{source}/", "dl://pets/").summary["stored"] == 0
    assert dlcmd("fsck", "--deep", "dl://pets").exit_code == 0
    stored = [path.read_bytes() for path in (dlcmd.home / "chunks").rglob("*") if path.is_file()]
    assert stored and not any(b".jpg" in content or b"train" in content for content in stored)


@needs_root
def test_a_write_mount_uploads_a_renamed_folder_as_servers_cannot_copy_it(
    dlcmd: Dlcmd, source: Path, tmp_path: Path
) -> None:
    copy, place = tmp_path / "copy", tmp_path / "mount"
    shutil.copytree(source, copy, symlinks=True)
    place.mkdir()
    dlcmd("sync", "--encrypt", f"{copy}/", "dl://renamed/")
    dlcmd("mount", "--write", "dl://renamed", place)
    for root in place, copy:
        os.rename(root / "train/cat", root / "dog")
        (root / "deep").mkdir()
        os.rename(root / "large.bin", root / "deep/large.bin")
    dlcmd("umount", place)
    dlcmd("check", f"{copy}/", "dl://renamed/")


@pytest.mark.parametrize("verb", ["sync", "import"])
def test_sync_and_import_make_an_encrypted_dataset(
    dlcmd: Dlcmd, source: Path, tmp_path: Path, verb: str
) -> None:
    given, dataset = f"{source}/", f"dl://by-{verb}/"
    if verb == "import":
        given = str(tmp_path / "pets.tar")
        with tarfile.open(given, "w") as archive:
            archive.add(source, arcname=".")
    dlcmd(verb, "--encrypt", given, dataset)
    digests = [dlcmd("verify", each).lines[0].split()[0] for each in (f"dl://by-{verb}", source)]
    assert digests[0] == digests[1]
    assert dlcmd(verb, "--json", given, dataset).summary["stored"] == 0
    assert dlcmd("key", "ls", dataset).text
    stored = [path.read_bytes() for path in (dlcmd.home / "chunks").rglob("*") if path.is_file()]
    assert not any(b".jpg" in content or b"train" in content for content in stored)


def test_a_local_folder_is_not_encrypted(dlcmd: Dlcmd, tmp_path: Path) -> None:
    ran = dlcmd("sync", "--encrypt", "dl://pets/", tmp_path / "copy", exit_code=EXIT_USAGE)
    assert "--encrypt is for a dataset" in ran.stderr
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("view", ["fuse", "overlay", "image"])
def test_a_mount_shows_plain_files(dlcmd: Dlcmd, source: Path, tmp_path: Path, view: str) -> None:
    if os.geteuid():
        pytest.skip("only root has all views")
    mount = tmp_path / "mount"
    mount.mkdir()
    dlcmd("mount", "--view", view, "dl://pets", mount)
    try:
        large, draw = (source / "large.bin").read_bytes(), random.Random(1)
        with open(mount / "large.bin", "rb", buffering=0) as file:
            for _ in range(20):
                place = draw.randrange(len(large))
                assert os.pread(file.fileno(), 5000, place) == large[place : place + 5000]
        assert dlcmd("verify", mount).lines[0].split()[0] == dlcmd("verify", source).lines[0].split()[0]
    finally:
        dlcmd("umount", mount)


def test_what_cannot_be_encrypted_is_refused(dlcmd: Dlcmd, source: Path) -> None:
    for arguments in (
        ["cp", "dl://pets/empty", "dl://pets/copy"],
        ["mv", "dl://pets/empty", "dl://pets/moved"],
        ["cp", "-r", "dl://pets/train/", "dl://cats/"],
    ):
        ran = dlcmd(*arguments, exit_code=EXIT_USAGE)
        assert "is encrypted, and servers do not have its key" in ran.stderr
    (source.parent / "plain").mkdir()
    (source.parent / "plain/f").write_bytes(b"text")
    dlcmd("put", "-r", f"{source.parent}/plain/", "dl://plain/")
    ran = dlcmd("put", "-r", "--encrypt", f"{source}/", "dl://plain/", exit_code=EXIT_USAGE)
    assert "has files that are not encrypted" in ran.stderr


def test_a_saved_snapshot_has_encrypted_names_and_is_mounted_by_who_has_the_key(
    dlcmd: Dlcmd, source: Path, tmp_path: Path
) -> None:
    saved, mount = tmp_path / "saved.snapshot", tmp_path / "mount"
    dlcmd("snapshot", "save", "dl://pets", saved)
    assert b"large" not in saved.read_bytes() and b"train" not in saved.read_bytes()
    mount.mkdir()
    dlcmd("mount", "--view", "fuse", saved, mount)
    try:
        assert (mount / "train/cat/2.jpg").read_bytes() == (source / "train/cat/2.jpg").read_bytes()
    finally:
        dlcmd("umount", mount)


def test_another_user_of_the_same_store_has_no_key(dlcmd: Dlcmd, tmp_path: Path) -> None:
    other = Dlcmd(dlcmd.home, tmp_path)
    for arguments in (
        ["ls", "dl://pets"],
        ["get", "-r", "dl://pets", tmp_path / "x"],
        ["rm", "dl://pets/empty"],
    ):
        assert "not wrapped for you" in other(*arguments, exit_code=EXIT_REFUSED).stderr
