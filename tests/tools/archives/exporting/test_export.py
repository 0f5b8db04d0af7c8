"""The order of an export, in batches that are fetched ahead."""

import pytest

from dieselfs.dataset import Dataset
from dieselfs_tools.archives.exporting import export
from dieselfs_tools.archives.exporting.export import EntryReader
from tests.support.server import RunningServer


@pytest.mark.parametrize("batch_files", [1, 2, 100])
def test_files_of_a_folder_come_before_its_folders(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, batch_files: int
) -> None:
    monkeypatch.setattr(export, "BATCH_FILES", batch_files)
    with Dataset(server.settings(), f"ordered-{batch_files}", must_exist=False) as dataset:
        dataset.create()
        for path in ("b/x", "a.jpg", "a/y", "a.cls", "c", "a/b/z"):
            dataset.put(path, path.encode())
        dataset.flush()
        dataset.refresh()
        found = list(EntryReader(dataset, dataset.snapshot.require(b"")).entries())
        assert [(entry.path, entry.content) for entry in found if entry.content is not None] == [
            (path, path) for path in (b"a.cls", b"a.jpg", b"c", b"a/y", b"a/b/z", b"b/x")
        ]
        below = EntryReader(dataset, dataset.snapshot.require(b"a")).entries()
        assert [entry.path for entry in below] == [b"y", b"b", b"b/z"]
