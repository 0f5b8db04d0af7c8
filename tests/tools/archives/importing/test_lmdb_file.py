"""Values of LMDB, as `lmdb` wrote them."""

import os
from pathlib import Path

import pytest

from dieselfs.errors import Damaged
from tests.support.importing import contents, read_all

lmdb = pytest.importorskip("lmdb", reason="the extra 'import' is not installed")

CONTENT = {f"train/{n:05}.jpg": os.urandom(n * 100) for n in range(60)} | {"48 bytes": bytes(48)}


def write(path: Path, is_folder: bool = True) -> Path:
    with (
        lmdb.open(str(path), subdir=is_folder, map_size=16 << 20, max_dbs=2, lock=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        for name, content in CONTENT.items():
            transaction.put(name.encode(), content)
    return path


@pytest.mark.parametrize("is_folder", [True, False])
def test_all_values_by_their_keys(tmp_path: Path, is_folder: bool) -> None:
    path = write(tmp_path / "x.lmdb", is_folder)
    file = path / "data.mdb" if is_folder else path
    os.utime(file, ns=(0, 1_600_000_000_123_456_789))
    assert contents(path) == CONTENT
    assert contents(file) == CONTENT
    assert {record.mtime_ns for record in read_all(path)} == {1_600_000_000_123_456_789}


def test_a_named_database_is_a_folder(tmp_path: Path) -> None:
    path = write(tmp_path / "x")
    with lmdb.open(str(path), map_size=16 << 20, max_dbs=2, lock=False) as environment:
        labels = environment.open_db(b"labels")
        with environment.begin(write=True, db=labels) as transaction:
            transaction.put(b"a", b"1")
    assert contents(path) == CONTENT | {"labels/a": b"1"}


def test_an_environment_that_is_cut_off(tmp_path: Path) -> None:
    file = write(tmp_path / "x", is_folder=False)
    os.truncate(file, 5 * 4096)
    with pytest.raises(Damaged, match="cut off: it has 20480 of"):
        read_all(file)


def test_damaged_meta_pages(tmp_path: Path) -> None:
    file = write(tmp_path / "x", is_folder=False)
    content = file.read_bytes()
    file.write_bytes(content[:8] + bytes(2 * 4096 - 8) + content[2 * 4096 :])
    with pytest.raises(Damaged, match="cannot be read as LMDB"):
        read_all(file, "lmdb")
