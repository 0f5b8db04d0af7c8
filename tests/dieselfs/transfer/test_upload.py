"""Uploading trees: all that a tree can hold, going on after an interruption, failures in the middle."""

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from operator import attrgetter
from pathlib import Path

import pytest

from dieselfs.chunk import builder as builder_module
from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.dataset import Dataset
from dieselfs.digests import Buffer
from dieselfs.errors import DieselfsError, SourceChanged, StorageFull, Unavailable
from dieselfs.limits import KIB, MIB
from dieselfs.snapshot.reader import Snapshot
from dieselfs.transfer.equal_extents import EqualExtents
from dieselfs.transfer.report import TransferReport
from dieselfs.transfer.sender import ChunkSender
from dieselfs.transfer.upload import Failed, SourceEntry, TreeUpload, walk_source


def upload(
    data: Dataset, source: Path, stored: Snapshot | None = None, chunk_bytes: int = MIB
) -> TransferReport:
    run = TreeUpload(data.client, data.create(), stored, chunk_bytes=chunk_bytes)
    report = run.run(lambda failed: walk_source(os.fsencode(source), b"", failed))
    assert report.found_files == report.done_files + report.skipped_files + report.failed_files
    return report


def share(data: Dataset, source: Path, stored: Snapshot | None = None) -> TransferReport:
    def newest() -> Snapshot:
        data.refresh()
        return data.snapshot

    equals = EqualExtents(newest)
    run = TreeUpload(data.client, data.create(), stored, chunk_bytes=MIB, equals=equals)
    report = run.run(lambda failed: walk_source(os.fsencode(source), b"", failed))
    assert not report.failures and report.found_files == report.done_files + report.skipped_files
    assert report.done_bytes + report.skipped_bytes == report.found_bytes
    return report


def make_tree(root: Path, files: int = 40) -> Path:
    (root / "empty folder").mkdir(parents=True)
    (root / "deep" / "er" / "still").mkdir(parents=True)
    for n in range(files):
        (root / "deep" / f"{n}.bin").write_bytes(os.urandom(n * 1000))
    odd = os.fsencode(root) + b"/deep/er/\xff\xfe name\n"
    Path(os.fsdecode(odd)).write_bytes(b"odd")
    (root / "link").symlink_to("deep/1.bin")
    (root / "dangling").symlink_to("/nowhere/at all")
    (root / "large.bin").write_bytes(os.urandom(3 * MIB + 17))
    (root / "deep" / "er" / "mode").write_bytes(b"x")
    (root / "deep" / "er" / "mode").chmod(0o4751)
    os.utime(root / "deep" / "0.bin", ns=(0, 123_456_789_987_654_321))
    os.utime(root / "empty folder", ns=(0, 5))
    return root


def assert_same(data: Dataset, root: Path) -> None:
    snapshot = data.snapshot
    found = {b""}
    for entry in walk_source(os.fsencode(root), b"", lambda *failure: pytest.fail(str(failure))):
        node = snapshot.require(entry.path)
        status, stored = entry.status, snapshot.stat(node)
        assert (stored.mode, stored.mtime_ns) == (status.st_mode, status.st_mtime_ns), entry
        if stored.is_file:
            assert data.get(entry.path) == Path(os.fsdecode(entry.source)).read_bytes()
        if stored.is_link:
            assert snapshot.target(node) == os.readlink(entry.source)
        found.add(entry.path)
    assert {snapshot.path(node) for node in snapshot.walk()} | {b""} == found


def test_everything_in_a_tree_arrives(data: Dataset, tmp_path: Path) -> None:
    root = make_tree(tmp_path / "source")
    report = upload(data, root)
    assert not report.failures and report.is_all_found
    assert report.done_files == report.found_files
    assert report.done_bytes == report.found_bytes
    assert report.generation == data.record().generation
    data.refresh()
    assert_same(data, root)


def test_a_second_upload_stores_nothing_and_a_change_only_the_change(data: Dataset, tmp_path: Path) -> None:
    root = make_tree(tmp_path / "source")
    upload(data, root)
    data.refresh()
    chunks = data.record().chunks
    again = upload(data, root, data.snapshot)
    assert (again.done_files, data.record().chunks) == (0, chunks)
    assert again.skipped_files == again.found_files
    (root / "deep" / "7.bin").write_bytes(b"changed")
    (root / "link").unlink()
    (root / "link").symlink_to("deep/2.bin")
    changed = upload(data, root, data.snapshot)
    # The file, the link, and the root, whose time has changed with the link.
    assert changed.done_files == 3
    data.refresh()
    assert_same(data, root)


class Interrupted(Exception):
    """Stands for Ctrl-C."""


def test_an_interrupted_upload_goes_on_and_sends_nothing_twice(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dieselfs.transfer.upload.BATCH_ENTRIES", 10)
    root = make_tree(tmp_path / "source", files=60)
    seen = threading.Event()

    def interrupted(failed: object) -> Iterator[SourceEntry]:
        entries = list(walk_source(os.fsencode(root), b"", lambda *failure: pytest.fail(str(failure))))
        yield from entries[:40]
        seen.set()
        raise Interrupted

    run = TreeUpload(data.client, data.create(), None, jobs=1, chunk_bytes=100_000)
    with pytest.raises(Interrupted):
        run.run(interrupted)
    assert seen.is_set()
    stored_before = run.report.done_bytes
    data.refresh()
    total = upload(data, root, data.snapshot)
    assert total.skipped_files > 0
    assert total.done_bytes + total.skipped_bytes == total.found_bytes
    data.refresh()
    assert_same(data, root)
    assert stored_before >= total.skipped_bytes


def test_a_large_file_continues_at_its_first_missing_extent(data: Dataset, tmp_path: Path) -> None:
    source = tmp_path / "large"
    source.write_bytes(os.urandom(10 * MIB + 5))
    status = source.lstat()
    version = data.client.reserve_versions(data.name, 1)
    content = source.read_bytes()
    sender = ChunkSender(data.client, data.create())
    for place in (0, 2 * MIB, 5 * MIB):
        builder = ChunkBuilder()
        extent = content[place : place + MIB]
        builder.add_file(b"large", extent, status.st_mode, status.st_mtime_ns, len(content), place, version)
        sender.submit(builder.seal())
    sender.wait_stored()
    sender.close()
    data.refresh()
    assert not data.exists("large")  # never visible before it is whole
    run = TreeUpload(data.client, data.create(), data.snapshot, chunk_bytes=MIB)
    report = run.run(lambda failed: walk_source(os.fsencode(source), b"large", failed))
    assert report.done_bytes == 7 * MIB + 5  # eleven extents, three of which were there
    data.refresh()
    assert data.get("large") == content


def test_what_cannot_be_read_is_reported_and_the_rest_goes_through(data: Dataset, tmp_path: Path) -> None:
    root = make_tree(tmp_path / "source", files=5)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(root / "socket"))
    os.mkfifo(root / "pipe")

    def walk_and_remove(failed: object) -> Iterator[SourceEntry]:
        for entry in walk_source(os.fsencode(root), b"", failed):  # type: ignore[arg-type]  # the upload's own function
            if entry.path == b"deep/3.bin":
                os.unlink(entry.source)
            yield entry

    report = TreeUpload(data.client, data.create(), None).run(walk_and_remove)
    assert sorted(os.path.basename(path) for path, _ in report.failures) == ["3.bin", "pipe", "socket"]
    assert report.failed_files == 3
    assert report.done_files == report.found_files - 3
    data.refresh()
    assert data.get("deep/4.bin") == (root / "deep/4.bin").read_bytes()
    assert not data.exists("deep/3.bin") and not data.exists("pipe")


def test_a_missing_source_is_a_failure(data: Dataset, tmp_path: Path) -> None:
    report = upload(data, tmp_path / "none")
    assert report.failures == [(str(tmp_path / "none"), "No such file or directory")]


def test_a_server_that_is_gone_ends_the_upload_with_one_error(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_tree(tmp_path / "source")
    run = TreeUpload(data.client, data.create(), None, chunk_bytes=50_000)

    def lost(*arguments: object) -> int:
        raise Unavailable("lost the server")

    monkeypatch.setattr(data.client, "put_chunk", lost)
    with pytest.raises(DieselfsError, match="lost the server"):
        run.run(lambda failed: walk_source(os.fsencode(root), b"", failed))
    assert run.report.done_files == 0


def test_equal_files_share_their_bytes_also_large_ones(data: Dataset, tmp_path: Path) -> None:
    root = make_tree(tmp_path / "source")
    large, small = (root / "large.bin").read_bytes(), (root / "deep/30.bin").read_bytes()
    for name, content in ("again", large), ("third", large), ("one", b"1" * 5000), ("two", b"1" * 5000):
        (root / name).write_bytes(content)
    (root / "changed").write_bytes(large[:-1] + bytes([large[-1] ^ 1]))
    for name in "small", "deep/er/small":
        (root / name).write_bytes(small)

    parts = {
        path.read_bytes()[start : start + MIB]
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
        for start in range(0, path.stat().st_size, MIB)
    }
    report = share(data, root)
    stored_bytes = report.done_bytes - report.shared_bytes
    assert 0 <= stored_bytes - sum(map(len, parts)) < 64 * KIB, (
        "of a chunk with fewer bytes, they are stored again"
    )
    data.refresh()
    assert_same(data, root)
    # All of it again, at other paths.
    root.rename(tmp_path / "moved")
    root.mkdir()
    (tmp_path / "moved").rename(root / "moved")
    report = share(data, root, data.snapshot)
    assert report.done_bytes - report.shared_bytes < 64 * KIB
    for path in [b"large.bin", *(b"deep/%d.bin" % number for number in range(40))]:
        data.delete(path)
    data.flush()
    data.refresh()
    content = (root / "moved/large.bin").read_bytes()
    assert data.get("moved/large.bin") == content == data.get("third")


class Seen(TreeUpload):
    """Notes what is visible whenever a chunk is stored."""

    def __init__(self, data: Dataset) -> None:
        self.data, self.states = data, set[frozenset[str]]()
        super().__init__(data.client, data.create(), None, progressed=self.look, at_once=True)

    def look(self) -> None:
        with Dataset(self.data.client.settings, self.data.name) as now:
            self.states.add(frozenset(now.files()))


@pytest.mark.parametrize("is_large", [True, False])
def test_an_upload_at_once_is_visible_whole_or_not_at_all(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    root = make_tree(tmp_path / "source")
    (root / "large.bin").write_bytes(os.urandom(9 * MIB))
    for number in range(5):
        (root / f"{number}.bin").write_bytes(os.urandom(MIB + number))
    data.put("old", b"old")
    data.flush()
    if is_large:  # more than a chunk holds
        monkeypatch.setattr(builder_module, "CHUNK_ENTRIES_MAX", 20)
    run = Seen(data)
    report = run.run(lambda failed: walk_source(os.fsencode(root), b"", failed), [b"old"])
    data.refresh()
    assert not report.failures and report.done_bytes == report.found_bytes
    assert not data.exists("old")
    assert_same(data, root)
    is_whole = run.states == {frozenset(["old"]), frozenset(data.files())}
    assert is_whole != is_large


def test_an_upload_at_once_deletes_nothing_if_an_entry_is_not_stored(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of more files than a chunk holds was renamed, and the server has no room for the last one."""
    root = tmp_path / "source"
    root.mkdir()
    for number in range(50):
        data.put(f"old/{number}", b"old")
        (root / f"{number:02}").write_bytes(b"no room" if number == 49 else b"new")
    data.flush()
    put_chunk = data.client.put_chunk

    def put(dataset: str, chunk_id: bytes, parts: Sequence[Buffer], key_id: bytes = b"") -> int:
        if b"no room" in b"".join(parts):
            raise StorageFull("full")
        return put_chunk(dataset, chunk_id, parts, key_id)

    def walk(failed: Failed) -> Iterator[SourceEntry]:
        yield from sorted(walk_source(os.fsencode(root), b"new", failed), key=attrgetter("path"))

    monkeypatch.setattr(data.client, "put_chunk", put)
    monkeypatch.setattr(builder_module, "CHUNK_ENTRIES_MAX", 20)
    deleted = iter([b"old/%d" % number for number in range(50)])
    with pytest.raises(StorageFull):
        TreeUpload(data.client, data.create(), None, at_once=True).run(walk, deleted)
    data.refresh()
    assert {f"old/{number}" for number in range(50)} <= {*data.files()}
    assert len([*deleted]) > 30  # only those were taken that share a chunk with the last file


@pytest.mark.parametrize("at_once", [True, False])
def test_an_upload_has_nothing_of_an_earlier_version_of_a_file(
    data: Dataset, tmp_path: Path, at_once: bool
) -> None:
    """Neither size nor time show the change, and the server has the first extent of the version before."""
    source = tmp_path / "large"
    source.write_bytes(bytes(2 * MIB + 5))
    source.chmod(0o644)
    before = source.lstat()
    sender = ChunkSender(data.client, data.create())
    builder, version = ChunkBuilder(), sender.reserve_version()
    builder.add_file(b"large", bytes(MIB), before.st_mode, before.st_mtime_ns, before.st_size, 0, version)
    sender.submit(builder.seal())
    sender.wait_stored()
    sender.close()
    source.write_bytes(os.urandom(before.st_size))
    source.chmod(0o600)
    os.utime(source, ns=(0, before.st_mtime_ns))
    run = TreeUpload(data.client, data.create(), None, chunk_bytes=MIB, at_once=at_once)
    report = run.run(lambda failed: walk_source(os.fsencode(source), b"large", failed))
    assert report.done_bytes == before.st_size
    data.refresh()
    assert data.get("large") == source.read_bytes()
    assert data.stat("large").mode == source.lstat().st_mode


def test_a_streamed_file_that_was_replaced_is_stored_by_the_second_run(data: Dataset, tmp_path: Path) -> None:
    """Only its third extent differs from what an interrupted upload has stored."""
    source = tmp_path / "large"
    source.write_bytes(content := os.urandom(4 * MIB))
    status = source.lstat()
    sender = ChunkSender(data.client, data.create())
    builder, version = ChunkBuilder(), sender.reserve_version()
    for place in 0, 2 * MIB:
        extent = bytes(MIB) if place else content[:MIB]
        builder.add_file(b"large", extent, status.st_mode, status.st_mtime_ns, status.st_size, place, version)
    sender.submit(builder.seal())
    sender.wait_stored()
    sender.close()

    def streamed(failed: Failed) -> Iterator[SourceEntry]:
        for entry in walk_source(os.fsencode(source), b"large", failed):
            yield entry._replace(is_streamed=True)

    first = TreeUpload(data.client, data.create(), None, chunk_bytes=MIB).run(streamed)
    assert [reason for _, reason in first.failures] == ["other bytes of it were stored before; run it again"]
    assert not data.exists("large")
    second = TreeUpload(data.client, data.create(), None, chunk_bytes=MIB).run(streamed)
    assert not second.failures and second.done_bytes == 2 * MIB
    data.refresh()
    assert data.get("large") == content


def test_a_file_that_is_written_in_place_while_it_is_read_is_not_stored(
    data: Dataset, tmp_path: Path
) -> None:
    """The program gives it back its time, as rsync does."""
    source = tmp_path / "large"
    source.write_bytes(bytes(3 * MIB))
    status = source.lstat()

    def write() -> None:
        with source.open("r+b") as file:
            file.seek(2 * MIB)
            file.write(b"new")
        os.utime(source, ns=(0, status.st_mtime_ns))

    (entry,) = walk_source(os.fsencode(source), b"large", lambda *failure: pytest.fail(str(failure)))
    with closing(entry.contents([(0, MIB), (2 * MIB, MIB)])) as contents:
        assert next(contents) == bytes(MIB)
        write()
        with pytest.raises(SourceChanged):
            next(contents)
