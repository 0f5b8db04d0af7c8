"""Downloading trees: each chunk once, going on, damage, and nothing outside the destination."""

import os
import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import Damaged, Unavailable
from dieselfs.limits import MIB
from dieselfs.snapshot.reader import ExtentRef
from dieselfs.sources.server import ServerSource
from dieselfs.transfer.download import TreeDownload
from dieselfs.transfer.report import TransferReport
from dieselfs.transfer.spreading import in_threads
from dieselfs.transfer.upload import TreeUpload, walk_source
from dieselfs_tools.transfers.comparison import compare_trees
from tests.support.trees import odd_tree


class WatchedReader(ServerSource):
    """Counts what is fetched; chunks in `bad` are damaged, of which only the extents in `whole` are not."""

    def __init__(self, data: Dataset, bad: Sequence[int] = ()) -> None:
        super().__init__(data.client, data.snapshot)
        self.bad = bad
        self.bad_places: set[tuple[int, int]] = set()
        self.fetched: Counter[int] = Counter()
        self.lock = threading.Lock()

    def fetch_chunk(self, chunk: int) -> bytearray:
        with self.lock:
            self.fetched[chunk] += 1
        if chunk in self.bad:
            raise Damaged(f"chunk {chunk} is damaged")
        return super().fetch_chunk(chunk)

    def fetch_extents(self, chunk: int, extents: Sequence[ExtentRef]) -> list[bytes]:
        if any((chunk, extent.offset) in self.bad_places for extent in extents):
            raise Damaged(f"chunk {chunk} is damaged")
        return super().fetch_extents(chunk, extents)


def upload(data: Dataset, source: Path, chunk_bytes: int = MIB) -> None:
    run = TreeUpload(data.client, data.create(), None, jobs=1, chunk_bytes=chunk_bytes)
    run.run(lambda failed: walk_source(os.fsencode(source), b"", failed))
    data.refresh()


def download(
    reader: ServerSource, folder: Path, path: bytes = b"", name: bytes = b"", is_forced: bool = False
) -> TransferReport:
    node = reader.snapshot.require(path)
    report = TreeDownload(reader, node, os.fsencode(folder), name, is_forced=is_forced).run()
    assert report.found_files == report.done_files + report.skipped_files + report.failed_files
    return report


def assert_same(first: Path, second: Path) -> None:
    assert compare_trees(os.fsencode(first), os.fsencode(second)).shown == []


def files_tree(folder: Path, files: int = 30) -> Path:
    folder.mkdir()
    for number in range(files):
        (folder / f"{number:03}").write_bytes(os.urandom(100_000 + number))
    (folder / "large").write_bytes(os.urandom(3 * MIB + 17))
    return folder


def test_a_tree_of_all_kinds_comes_back_as_it_was(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    source = odd_tree(tmp_path / "tree")
    upload(data, source, chunk_bytes=100_000)
    report = download(data.chunks, tmp_path / "back")
    assert report.failures == []
    assert_same(source, tmp_path / "back")
    assert report.found_bytes == report.done_bytes


def test_each_chunk_is_fetched_once(data: Dataset, tmp_path: Path) -> None:
    source = files_tree(tmp_path / "tree")
    upload(data, source)
    reader = WatchedReader(data)
    download(reader, tmp_path / "back")
    assert_same(source, tmp_path / "back")
    assert reader.fetched == Counter(range(data.snapshot.chunk_count))


def test_what_is_there_is_skipped_and_no_chunk_of_it_fetched(data: Dataset, tmp_path: Path) -> None:
    source = files_tree(tmp_path / "tree")
    upload(data, source)
    download(data.chunks, tmp_path / "back")
    reader = WatchedReader(data)
    report = download(reader, tmp_path / "back")
    assert reader.fetched == Counter()
    assert (report.done_files, report.skipped_files) == (0, 32)

    (tmp_path / "back" / "007").write_bytes(b"changed")
    (tmp_path / "back" / "large").unlink()
    report = download(WatchedReader(data), tmp_path / "back")
    assert report.done_files == 2
    report = download(WatchedReader(data), tmp_path / "back", is_forced=True)
    assert report.skipped_files == 1  # the folder
    os.utime(tmp_path / "back", ns=(0, (tmp_path / "tree").stat().st_mtime_ns))
    assert_same(source, tmp_path / "back")


def test_one_file_and_one_folder(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    source = files_tree(tmp_path / "tree" / "in")
    upload(data, source.parent)
    download(data.chunks, tmp_path / "folder", b"in")
    assert_same(source, tmp_path / "folder")
    reader = WatchedReader(data)
    download(reader, tmp_path, b"in/003", b"renamed")
    assert (tmp_path / "renamed").read_bytes() == (source / "003").read_bytes()
    assert reader.fetched == Counter()  # just the extent


def test_a_damaged_file_is_reported_and_the_rest_goes_on(data: Dataset, tmp_path: Path) -> None:
    source = files_tree(tmp_path / "tree")
    upload(data, source)
    snapshot = data.snapshot
    victims = [snapshot.extents(snapshot.require(path))[-1] for path in (b"004", b"large")]
    reader = WatchedReader(data, [extent.chunk for extent in victims])
    reader.bad_places = {(extent.chunk, extent.offset) for extent in victims}
    report = download(reader, tmp_path / "back")
    assert report.is_damaged
    assert {path for path, _ in report.failures} == {"004", "large"}
    expected = {path.name for path in source.iterdir()} - {"004", "large"}
    assert set(os.listdir(tmp_path / "back")) == expected
    for name in expected:
        assert (tmp_path / "back" / name).read_bytes() == (source / name).read_bytes()


def test_what_is_in_the_way_is_reported_and_the_rest_goes_on(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "tree" / "a").mkdir(parents=True)
    for name in ("a/f", "b", "c"):
        (tmp_path / "tree" / name).write_text(name)
    upload(data, tmp_path / "tree")
    outside, back = tmp_path / "outside", tmp_path / "back"
    for folder in (outside, back, back / "b"):
        folder.mkdir()
    (back / "a").symlink_to(outside)
    report = download(data.chunks, back)
    assert dict(report.failures) == {
        "a": "a link or a file exists where a folder must be",
        "a/f": "a link or a file exists where a folder must be",
        "b": "a folder with this name exists",
    }
    assert not report.is_damaged
    assert (os.listdir(outside), (back / "c").read_text()) == ([], "c")


def test_a_link_of_the_dataset_leads_nothing_out(data: Dataset, tmp_path: Path) -> None:
    """A dataset may hold a link and, stored later, files below the same name: neither is to be written through it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    data.writer.put_link(b"way", os.fsencode(outside))
    data.flush()
    data.put("way/out", b"bad")
    data.put("other", b"good")
    data.flush()
    for _ in range(2):  # the second time, what the first has written is there
        download(data.chunks, tmp_path / "back")
        assert os.listdir(outside) == []
        assert (tmp_path / "back" / "other").read_bytes() == b"good"


def test_a_lost_server_ends_it_and_the_next_run_continues(data: Dataset, tmp_path: Path) -> None:
    source = files_tree(tmp_path / "tree")
    upload(data, source)

    class LostReader(WatchedReader):
        def fetch_chunk(self, chunk: int) -> bytearray:
            if chunk >= 3:
                raise Unavailable("lost the server")
            return super().fetch_chunk(chunk)

    node, folder = data.snapshot.require(b""), os.fsencode(tmp_path / "back")
    with pytest.raises(Unavailable, match="lost the server"):
        TreeDownload(LostReader(data), node, folder, spread=partial(in_threads, jobs=1)).run()
    written = set(os.listdir(tmp_path / "back"))
    assert 0 < len(written) < 31
    assert all(not name.startswith(".dieselfs") for name in written)
    report = download(data.chunks, tmp_path / "back")
    assert report.skipped_files == len(written) + 1
    os.utime(tmp_path / "back", ns=(0, (tmp_path / "tree").stat().st_mtime_ns))
    assert_same(source, tmp_path / "back")
