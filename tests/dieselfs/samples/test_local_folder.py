import os
from pathlib import Path

import pytest

from dieselfs.errors import NotFound
from dieselfs.samples.local_folder import snapshot_of
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.spec import PlanSpec


def test_what_lies_below_a_folder(tmp_path: Path) -> None:
    (tmp_path / "b/deep").mkdir(parents=True)
    (tmp_path / "b/deep/file").write_bytes(b"12345")
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    snapshot = snapshot_of(str(tmp_path))
    assert [snapshot.path(node) for node in snapshot.walk(0)] == [
        b"a",
        b"b",
        b"b/deep",
        b"b/deep/file",
        b"empty",
    ]
    assert snapshot.size(snapshot.require(b"b/deep/file")) == 5
    assert snapshot.stat(snapshot.require(b"empty")).is_folder
    assert sorted(Plan(snapshot, PlanSpec(1)).share().paths) == ["a", "b/deep/file"]


def test_an_empty_folder_and_none(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="the folder is empty, and no dataset is mounted there"):
        snapshot_of(str(tmp_path))
    with pytest.raises(NotFound, match="no such folder"):
        snapshot_of(str(tmp_path / "nowhere"))
