import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs_client.mount.points import utab

OTHER = "SRC=/dev/sda1 TARGET=/mnt/a ROOT=/ OPTS=user=me\n"
OURS = "SRC=dl://pets TARGET=/mnt/my\\040pets ROOT=/ OPTS=helper=dieselfs\n"


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(utab, "UTAB", tmp_path / "mount/utab")
    monkeypatch.setattr(utab, "HELPER", tmp_path)
    monkeypatch.setattr(os, "readlink", lambda path: "mnt:[1]")
    yield tmp_path / "mount/utab"


def test_entries_of_others_stay() -> None:
    assert utab.with_entry(OTHER, "dl://pets", "/mnt/my pets") == OTHER + OURS
    assert utab.with_entry(OURS + OTHER, "dl://pets", "/mnt/my pets") == OTHER + OURS
    assert utab.without_entry(OTHER + OURS, "/mnt/my pets") == OTHER
    assert utab.without_entry(OTHER + OURS, "/mnt/my") == OTHER + OURS
    assert utab.without_entry(OTHER, "/mnt/a") == OTHER


def test_a_mount_is_entered_and_removed(table: Path) -> None:
    utab.remove("/mnt/my pets")
    assert not table.exists()
    utab.enter("dl://pets", "/mnt/my pets")
    assert table.read_text() == OURS
    assert table.stat().st_mode & 0o777 == 0o644
    utab.remove("/mnt/my pets")
    assert table.read_text() == ""
    assert sorted(os.listdir(table.parent)) == ["utab", "utab.lock"]


def test_nothing_is_entered_without_the_helper(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utab, "HELPER", table)
    utab.enter("dl://pets", "/mnt/my pets")
    assert not table.parent.exists()


def test_the_wait_for_the_lock_is_bounded(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utab, "LOCK_TIMEOUT_S", 0.05)
    table.parent.mkdir()
    with open(f"{table}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            utab.enter("dl://pets", "/mnt/my pets")
