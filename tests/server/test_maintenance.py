"""Rebuild, fsck, tags, pins and purge, over a real server whose stores are spoilt on purpose."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.format import Op, decode_chunk
from dieselfs.chunk.ids import ChunkIdSource, chunk_name
from dieselfs.dataset import Dataset
from dieselfs.digests import digest_of, extent_digest_of
from dieselfs.errors import (
    AccessDenied,
    AlreadyExists,
    DieselfsError,
    InvalidInput,
    NotFound,
    Unavailable,
)
from dieselfs.shuffle.strata import strata_of_classes
from dieselfs_server.store.posix import PosixStore
from tests.support.server import RunningServer, running_server

FILES = {f"d{n % 3}/f{n:03d}": os.urandom(20_000 + n) for n in range(250)}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path / "server") as running:
        yield running


@pytest.fixture
def data(server: RunningServer) -> Iterator[Dataset]:
    """250 files in two chunks, a link, an empty folder, one file deleted, one replaced."""
    dataset = Dataset(server.settings(), "data", must_exist=False)
    for path, content in FILES.items():
        dataset.put(path, content)
    dataset.writer.put_link(b"link", b"d1/f001")
    dataset.writer.put_folder(b"empty")
    dataset.put("gone", b"deleted")
    dataset.put("d0/f000", b"replaced")
    dataset.flush()
    dataset.delete("gone")
    dataset.put("d0/f000", FILES["d0/f000"])
    dataset.flush()
    yield dataset
    dataset._end()


def contents(dataset: Dataset) -> dict[str, bytes]:
    dataset.refresh()
    return dict(zip(dataset.files(), dataset.get_many(dataset.files()), strict=True))


def chunk_files(server: RunningServer) -> list[Path]:
    return sorted(path for path in (server.folder / "chunks").glob("*/???/??/*") if path.is_file())


def forget_everything(server: RunningServer) -> None:
    """What FLUSHALL is to Redis."""
    with sqlite3.connect(server.folder / "metadata.db", timeout=30) as database:
        for table in ("dataset", "chunk", "entry", "tombstone", "piece", "assembly", "folder", "note"):
            database.execute(f"DELETE FROM {table}")
    database.close()


def test_all_metadata_lost_and_made_again(server: RunningServer, data: Dataset) -> None:
    assert contents(data) == FILES
    before = data.snapshot
    old_reader = Dataset(server.settings(), "data")
    old_reader.ls()
    forget_everything(server)
    # Who reads goes on reading; who needs metadata is told the way out.
    assert old_reader.get("d1/f001") == FILES["d1/f001"]
    with pytest.raises(Unavailable, match="dlcmd rebuild dl://data"):
        data.record()
    with pytest.raises(NotFound):
        data.client.dataset("never-was")
    report = data.client.rebuild("data")
    assert (report.files, report.damaged) == (250, ())
    assert contents(data) == FILES
    after = data.snapshot
    assert not data.exists("gone") and data.stat("link").is_link and data.stat("empty").is_folder
    for node in range(len(before)):
        assert (before.path(node), before.stat(node), before.extents(node)) == (
            after.path(node),
            after.stat(node),
            after.extents(node),
        )
    assert old_reader.get("d2/f002") == FILES["d2/f002"]
    data.put("new", b"after the loss")
    data.flush()
    assert data.get("new") == b"after the loss"
    old_reader.close()


def test_a_server_that_starts_without_metadata_says_so_and_serves_chunks(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    with running_server(folder) as first:
        writer = Dataset(first.settings(), "data", must_exist=False)
        writer.put("file", b"content")
        writer.flush()
        reader = Dataset(first.settings(), "data")
        reader.ls()
        writer._end()
    for name in ("metadata.db", "metadata.db-wal", "metadata.db-shm"):
        (folder / name).unlink(missing_ok=True)
    with running_server(folder) as second:
        reader.client.close()
        moved = Dataset(second.settings(), "data", must_exist=False)
        with pytest.raises(Unavailable, match="rebuild"):
            moved.ls()
        moved.client.rebuild("data")
        assert moved.get("file") == b"content"
        moved._end()


def test_a_rebuild_since_a_time_reads_only_what_it_must(server: RunningServer, data: Dataset) -> None:
    everything = data.client.rebuild("data")
    newest = data.client.rebuild("data", since_s=0xFFFF_FFFF)
    assert (newest.chunks, newest.files) == (0, 250)
    assert data.client.rebuild("data", since_s=0).chunks == everything.chunks
    assert contents(data) == FILES


def test_generations_go_on_after_a_rebuild(data: Dataset) -> None:
    before = data.record()
    data.client.rebuild("data")
    after = data.record()
    assert after.generation > before.generation and after.updated_ns > before.updated_ns
    assert (after.files, after.total_bytes, after.chunks) == (before.files, before.total_bytes, before.chunks)


def spoil(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x40
    path.chmod(0o600)
    path.write_bytes(content)


def test_fsck_of_a_healthy_dataset_is_clean(data: Dataset) -> None:
    for is_deep in (False, True):
        report = data.client.fsck("data", is_deep, is_repair=False)
        assert (report.problem_count, report.unmended_count, report.problems) == (0, 0, ())
        assert report.entries == 250 + 2 and report.total_bytes > sum(map(len, FILES.values()))


@pytest.mark.parametrize(("position", "needs_deep"), [(-1, True), (30, False), (200, False)])
def test_fsck_names_a_damaged_chunk_and_its_files(
    server: RunningServer, data: Dataset, position: int, needs_deep: bool
) -> None:
    largest = max(chunk_files(server), key=lambda path: path.stat().st_size)
    spoil(largest, position)
    quick = data.client.fsck("data", is_deep=False, is_repair=False)
    assert (quick.problem_count == 0) == needs_deep
    report = data.client.fsck("data", is_deep=True, is_repair=True)
    assert report.unmended_count == report.problem_count > 0
    said = [problem for problem in report.problems if problem.kind == "chunk"]
    assert largest.name in said[0].what
    lost = {problem.what.split(" needs")[0] for problem in report.problems if problem.kind == "file"}
    assert lost and lost < set(FILES)
    for path, content in FILES.items():  # all others still read
        if path not in lost:
            assert data.get(path) == content


def test_fsck_finds_every_altered_byte(server: RunningServer, data: Dataset) -> None:
    """In the preamble, the header and the payload, and one that is missing or too many."""
    for path in chunk_files(server):
        whole = path.read_bytes()
        step = max(len(whole) // 60, 1)
        altered = [whole[:-1], whole + b"\0"]
        for place in {*range(0, len(whole), step), *range(0, min(len(whole), 400), 7), len(whole) - 1}:
            changed = bytearray(whole)
            changed[place] ^= 1 << place % 8
            altered.append(bytes(changed))
        for content in altered:
            spoiled(path, content)
            assert data.client.fsck("data", is_deep=True, is_repair=False).problem_count > 0
        spoiled(path, whole)
    assert data.client.fsck("data", is_deep=True, is_repair=False).problem_count == 0


def spoiled(path: Path, content: bytes) -> None:
    path.chmod(0o600)
    path.write_bytes(content)


def test_fsck_names_a_missing_chunk(server: RunningServer, data: Dataset) -> None:
    data.ls()
    largest = max(chunk_files(server), key=lambda path: path.stat().st_size)
    largest.unlink()
    report = data.client.fsck("data", is_deep=False, is_repair=False)
    assert any("is missing" in problem.what and largest.name in problem.what for problem in report.problems)
    with pytest.raises(DieselfsError):
        contents(data)


def replaced(path: Path) -> bytes:
    """Replace a stored chunk by another valid one: one byte of a file differs, and all digests are right."""
    before = path.read_bytes()
    preamble, header, payload = decode_chunk(before, path.name)
    content = bytearray(payload)
    content[len(content) // 2] ^= 1
    digests = header.digests.copy()
    for entry in range(len(header)):
        if header.ops[entry] == Op.FILE:
            start, length = int(header.offsets[entry]), int(header.lengths[entry])
            digests[entry] = np.void(extent_digest_of(content[start : start + length]))
    encoded = replace(header, digests=digests).encode()
    forged = replace(preamble, payload_digest=digest_of(content), header_digest=digest_of(encoded))
    after = forged.encode() + encoded + content
    decode_chunk(after, path.name)
    path.chmod(0o600)
    path.write_bytes(after)
    return before


@pytest.mark.parametrize("is_deep", [False, True])
def test_fsck_finds_a_chunk_that_was_replaced_by_another_valid_one(
    server: RunningServer, data: Dataset, is_deep: bool
) -> None:
    largest = max(chunk_files(server), key=lambda path: path.stat().st_size)
    before = replaced(largest)
    report = data.client.fsck("data", is_deep, is_repair=True)
    said = [problem.what for problem in report.problems if problem.kind == "chunk"]
    assert said == [f"chunk {largest.name} is another one than the one that was applied"]
    assert report.unmended_count == report.problem_count
    with pytest.raises(DieselfsError):  # the repair has not made the forgery the truth
        contents(data)
    largest.write_bytes(before)
    assert contents(data) == FILES
    assert data.client.fsck("data", is_deep, is_repair=False).problem_count == 0


def test_fsck_finds_a_forged_chunk_of_a_tag_also_after_the_loss_of_all_metadata(
    server: RunningServer, data: Dataset
) -> None:
    data.client.put_tag("data", "v1")
    largest = max(chunk_files(server), key=lambda path: path.stat().st_size)
    replaced(largest)
    forget_everything(server)
    data.client.rebuild("data")
    report = data.client.fsck("data", is_deep=False, is_repair=False)
    said = [problem.what for problem in report.problems]
    assert said == [f"chunk {largest.name} is another one than the one that tag v1 needs"]


def alter(server: RunningServer, statement: str) -> None:
    with sqlite3.connect(server.folder / "metadata.db", timeout=30) as database:
        assert database.execute(statement).rowcount > 0
    database.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET size = size + 1 WHERE name = CAST('f007' AS BLOB)",
        "UPDATE entry SET offset = offset + 1 WHERE name = CAST('f007' AS BLOB)",
        "UPDATE entry SET digest_b = digest_b + 1 WHERE name = CAST('f007' AS BLOB)",
        "DELETE FROM entry WHERE name = CAST('f007' AS BLOB)",
        "UPDATE entry SET target = CAST('elsewhere' AS BLOB) WHERE name = CAST('link' AS BLOB)",
    ],
)
def test_altered_metadata_is_found_and_mended(server: RunningServer, data: Dataset, statement: str) -> None:
    assert contents(data) == FILES
    alter(server, statement)
    found = data.client.fsck("data", is_deep=False, is_repair=False)
    assert found.unmended_count > 0
    mended = data.client.fsck("data", is_deep=False, is_repair=True)
    assert mended.problem_count > 0 == mended.unmended_count
    assert data.client.fsck("data", is_deep=False, is_repair=False).problem_count == 0
    assert contents(data) == FILES


def test_chunks_that_are_not_applied_are_found_and_applied(server: RunningServer, data: Dataset) -> None:
    builder = ChunkBuilder()
    builder.add_file(b"unapplied", b"stored by a server that died just then", 0o644, 0)
    chunk_id, dataset_id = ChunkIdSource().next(), data.record().dataset_id
    version = data.client.reserve_versions("data", 1)
    parts = builder.seal().encode(chunk_id, "data", dataset_id, version)
    PosixStore(server.folder / "chunks").put(dataset_id, chunk_id, parts)
    assert data.client.fsck("data", is_deep=False, is_repair=False).problem_count > 0
    data.client.fsck("data", is_deep=False, is_repair=True)
    assert data.client.fsck("data", is_deep=False, is_repair=False).problem_count == 0
    assert contents(data) == FILES | {"unapplied": b"stored by a server that died just then"}


def test_a_tag_keeps_a_generation_through_purge_and_rebuild(server: RunningServer, data: Dataset) -> None:
    tag = data.client.put_tag("data", "v1")
    assert (tag.files, tag.generation) == (250, data.record().generation)
    for path in list(data.files()):
        data.delete(path)
    data.put("only", b"this is left")
    data.flush()
    data.client.purge("data", grace_s=0, is_dry_run=True)
    assert "no purge of a dataset yet" in str(data.client.check_server(True))
    data.client.purge("data", grace_s=0, is_dry_run=False)
    assert "last purge of a dataset" in str(data.client.check_server(True))
    data.client.purge("data", grace_s=0, is_dry_run=False)
    forget_everything(server)
    data.client.rebuild("data")
    assert contents(data) == {"only": b"this is left"}
    assert data.client.tags("data") == [tag]
    with Dataset(server.settings(), "data", tag="v1") as tagged:
        assert dict(zip(tagged.files(), tagged.get_many(tagged.files()), strict=True)) == FILES
    data.client.delete_tag("data", "v1")
    waiting = data.client.purge("data", grace_s=0, is_dry_run=False)
    assert waiting.chunks_removed > 0
    with Dataset(server.settings(), "data", tag="v1") as tagged, pytest.raises(NotFound, match="no tag"):
        tagged.ls()


def test_tags_do_not_change_their_meaning(data: Dataset) -> None:
    data.client.put_tag("data", "v1")
    with pytest.raises(AlreadyExists):
        data.client.put_tag("data", "v1")
    for name in ("", "a/b", "..", "x" * 65, "ä"):
        with pytest.raises(InvalidInput):
            data.client.put_tag("data", name)
    with pytest.raises(NotFound):
        data.client.put_tag("data", "v2", generation=999)
    with pytest.raises(NotFound):
        data.client.delete_tag("data", "v9")


def test_a_pin_keeps_what_its_reader_needs(server: RunningServer, data: Dataset) -> None:
    reader = Dataset(server.settings(), "data")
    header = reader.snapshot.header
    data.client.pin("data", "mount-1", header.generation, header.updated_ns, lease_s=600)
    for path in list(data.files())[::2]:
        data.delete(path)
    data.flush()
    for _ in range(2):
        report = data.client.purge("data", grace_s=0, is_dry_run=False)
        assert report.chunks_removed == 0
    assert {path: reader.get(path) for path in FILES} == FILES
    data.client.pin("data", "mount-1", header.generation, header.updated_ns, lease_s=0)
    assert data.client.purge("data", grace_s=0, is_dry_run=False).chunks_removed > 0
    with pytest.raises(NotFound):
        for chunk in range(reader.snapshot.chunk_count):
            reader.chunks.fetch_chunk(chunk)
    reader.close()


def test_pins_are_listed_until_they_end(server: RunningServer, data: Dataset) -> None:
    header = data.snapshot.header
    data.client.pin("data", "mount-1", header.generation, header.updated_ns, lease_s=600)
    data.client.pin("data", "mount-2", header.generation, header.updated_ns, lease_s=600)
    assert [(pin.holder, pin.generation) for pin in data.client.pins("data")] == [
        ("local/mount-1", header.generation),
        ("local/mount-2", header.generation),
    ]
    data.client.pin("data", "mount-1", header.generation, header.updated_ns, lease_s=0)
    (pin,) = data.client.pins("data")
    assert pin.holder == "local/mount-2" and pin.expires_ns > header.updated_ns
    with closing(server.client(server.user("guest", data="read"))) as guest:
        assert guest.pins("data") == []  # not the users, machines and folders of others
        guest.pin("data", "own", header.generation, header.updated_ns, lease_s=600)
        assert [pin.holder for pin in guest.pins("data")] == ["guest/own"]


def test_rights(server: RunningServer, data: Dataset) -> None:
    reader = server.client(server.user("reader", data="read"))
    writer = server.client(server.user("writer", data="write"))
    stranger = server.client(server.user("stranger", other="admin"))
    generation, strata = data.snapshot.generation, strata_of_classes(data.snapshot)
    calls: list[Callable[[], object]] = [
        lambda: reader.rebuild("data"),
        lambda: reader.fsck("data", False, False),
        lambda: reader.purge("data", 0, True),
        lambda: writer.rebuild("data"),
        lambda: writer.fsck("data", False, True),
        lambda: reader.put_tag("data", "t"),
        lambda: reader.delete_tag("data", "t"),
        lambda: writer.purge("data", 0, False),
        lambda: reader.repack("data", generation, strata, 0, True),
        lambda: writer.repack("data", generation, strata, 0, False),
    ]
    for call in calls:
        with pytest.raises(AccessDenied):
            call()
    for missing in (
        stranger.tags,
        stranger.pins,
        lambda name: stranger.fsck(name, False, False),
        stranger.rebuild,
    ):
        with pytest.raises(NotFound):
            missing("data")
    writer.fsck("data", False, False)
    writer.purge("data", 0, True)
    assert writer.repack("data", generation, strata, 0, True).generation == generation
    with pytest.raises(InvalidInput, match="seed -1 is out of range"):
        writer.repack("data", generation, strata, -1, True)
    with pytest.raises(InvalidInput, match="chunks of -1 bytes are out of range"):
        writer.repack("data", generation, strata, 0, True, chunk_bytes=-1)
    reader.pin("data", "mount", 1, 1, 60)
    for time_ns in (-1, data.snapshot.header.updated_ns + 1):
        with pytest.raises(InvalidInput, match="out of range"):
            reader.pin("data", "mount", 1, time_ns, 60)
    for client in (reader, writer, stranger):
        client.close()


def test_chunk_names_in_reports_are_those_of_the_files(server: RunningServer, data: Dataset) -> None:
    names = {chunk_name(data.snapshot.chunk_id(n)) for n in range(data.snapshot.chunk_count)}
    assert {path.name for path in chunk_files(server)} == names


@pytest.mark.parametrize("is_fifo", [True, False])
def test_what_is_no_chunk_file_is_reported_and_not_read(
    server: RunningServer, data: Dataset, is_fifo: bool
) -> None:
    chunk = chunk_files(server)[0]
    if is_fifo:
        chunk.unlink()
        os.mkfifo(chunk)
    else:
        os.truncate(chunk, 1 << 40)  # sparse
    report = data.client.fsck("data", is_deep=True, is_repair=False)
    assert any(problem.kind == "chunk" and chunk.name in problem.what for problem in report.problems)
    chunk.unlink()
