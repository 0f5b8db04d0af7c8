"""Members of zip and npz archives: against `zipfile`, `zip` and NumPy, cut off and damaged."""

import io
import os
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dieselfs.errors import Damaged
from dieselfs_tools.archives.importing import zip_file
from tests.support.importing import contents, parts_of, read_all

CONTENT = {f"train/{n:05}.jpg": os.urandom(n * 37) for n in range(30)}


def write(path: Path, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.mkdir("empty")
        for name, content in CONTENT.items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 9, 13, 12, 26, 40)), content, compression)
    return path


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_all_members_with_their_bytes(tmp_path: Path, compression: int) -> None:
    path = write(tmp_path / "a.zip", compression)
    assert contents(path) == CONTENT
    records = read_all(path)
    assert {one.mtime_ns for one in records[1:]} == {1_600_000_000 * 10**9}
    assert records[0].is_folder and records[0].name == b"empty/"


def test_parts_have_each_member_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zip_file, "PART_BYTES", 1000)
    path = write(tmp_path / "a.zip")
    parts = parts_of(path, jobs=3)
    assert len(parts) == 3
    members = [(one.name, one.content) for part in parts for one in read_all(path, part=part)]
    assert members == [(one.name, one.content) for one in read_all(path)]


def test_links_and_modes(tmp_path: Path) -> None:
    link, mode = zipfile.ZipInfo("link"), zipfile.ZipInfo("mode")
    link.external_attr, mode.external_attr = (stat.S_IFLNK | 0o777) << 16, (stat.S_IFREG | 0o4751) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(link, b"../target")
        archive.writestr(mode, b"x")
    found = read_all(tmp_path / "a.zip")
    assert (found[0].target, found[1].mode) == (b"../target", stat.S_IFREG | 0o751)


def test_arrays_of_numpy(tmp_path: Path) -> None:
    images, labels = np.arange(24).reshape(2, 3, 4), np.array([1, 2], np.uint8)
    np.savez_compressed(tmp_path / "train.npz", images=images, labels=labels)
    found = contents(tmp_path / "train.npz")
    assert found.keys() == {"images.npy", "labels.npy"}
    for name, array in (("images", images), ("labels", labels)):
        loaded = np.load(io.BytesIO(found[f"{name}.npy"]))
        assert loaded.dtype == array.dtype and (loaded == array).all()


def test_a_damaged_member_fails_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zip")
    whole = bytearray(path.read_bytes())
    whole[whole.index(CONTENT["train/00007.jpg"]) + 5] ^= 1
    path.write_bytes(whole)
    with pytest.raises(Damaged, match="CRC"):
        read_all(path)


def test_an_archive_that_is_cut_off(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zip")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(Damaged, match="damaged"):
        read_all(path)


def test_an_encrypted_member_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zip")
    whole = bytearray(path.read_bytes())
    place = whole.index(b"PK\x01\x02", whole.index(b"PK\x01\x02") + 1)  # of the first file
    whole[place + 8] |= 1
    path.write_bytes(whole)
    assert "encrypted" in read_all(path)[1].fault
