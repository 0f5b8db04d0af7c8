"""Checksums of blocks on the disk of a server: they outlive it, are bounded, and no error of the disk is raised."""

from contextlib import closing
from pathlib import Path

import pytest

from dieselfs_server.reading.kept_checksums import KeptChecksums

DATASET_ID = b"\x01" * 16


def chunk_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_they_outlive_the_server_and_workers_share_them(tmp_path: Path) -> None:
    path = tmp_path / "state" / "blocks.db"
    with closing(KeptChecksums(path)) as first, closing(KeptChecksums(path)) as second:
        first.put(DATASET_ID, chunk_id(1), b"one")
        first.put(DATASET_ID, chunk_id(1), b"again")
        assert second.get(DATASET_ID, chunk_id(1)) == b"one"
        assert second.get(b"\x02" * 16, chunk_id(1)) is second.get(DATASET_ID, chunk_id(2)) is None
    with closing(KeptChecksums(path)) as later:
        assert later.get(DATASET_ID, chunk_id(1)) == b"one"


def test_the_oldest_are_dropped() -> None:
    with closing(KeptChecksums(kept_max=2)) as kept:
        for number in range(3):
            kept.put(DATASET_ID, chunk_id(number), b"%d" % number)
        assert [kept.get(DATASET_ID, chunk_id(number)) for number in range(3)] == [None, b"1", b"2"]


def test_without_a_usable_disk_nothing_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "blocks.db").write_bytes(b"no database" * 1000)
    (tmp_path / "file").touch()
    for path in (tmp_path / "blocks.db", tmp_path / "file" / "blocks.db"):
        with closing(KeptChecksums(path)) as kept:
            kept.put(DATASET_ID, chunk_id(1), b"one")
            assert kept.get(DATASET_ID, chunk_id(1)) is None
        assert f"{path}: " in caplog.text
