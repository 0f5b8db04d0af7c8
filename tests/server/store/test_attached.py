"""Attached chunks are read as all others, while their sources are what they were."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.format import Preamble, decode_preamble
from dieselfs.chunk.source import AttachedSource
from dieselfs.errors import AccessDenied, Damaged, InvalidInput, NotFound
from dieselfs_server.datasets.commit import check_size, commit_chunk, read_chunk, read_header
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.reading.executor import open_ahead, open_payload
from dieselfs_server.store.attached import AttachedStore, Sources
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.posix import PosixStore
from dieselfs_server.store.tiered import TieredStore
from tests.conformance.chunk_store_suite import ChunkStoreSuite
from tests.support.chunks import CHUNK_ID, DATASET_ID, sample_chunk

CONTENT = os.urandom(50_000)
BEGIN, END = 1000, 41_000
NOW_NS = 1_800_000_000 * 10**9


class TestAttachedStore(ChunkStoreSuite):
    """Of ordinary chunks, nothing differs."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return AttachedStore(PosixStore(tmp_path), Sources(None))


class Rig:
    """A source of which a range is attached as a chunk with two files."""

    def __init__(self, folder: Path, below: ObjectStore | None = None) -> None:
        self.below = below or PosixStore(folder / "store")
        self.store = AttachedStore(self.below, Sources(None))
        self.file = folder / "a.tar"
        self.file.write_bytes(CONTENT)
        self.chunk = self.encoded()

    def encoded(self) -> bytes:
        status = os.stat(self.file)
        builder, payload = ChunkBuilder(), CONTENT[BEGIN:END]
        for path, start, end in ((b"a", 0, 100), (b"b", 20_000, 40_000)):
            builder.add_file(path, payload[start:end], 0o644, 0, offset=start)
        location, mark = os.fsencode(self.file), f"mtime_ns={status.st_mtime_ns}"
        sealed = builder.seal(payload, AttachedSource(location, status.st_size, mark, BEGIN))
        return b"".join(sealed.encode(CHUNK_ID, "pets", DATASET_ID, 1))

    def put(self) -> None:
        self.store.put(DATASET_ID, CHUNK_ID, [self.chunk])

    def read(self, offset: int, length: int) -> bytes:
        return self.store.get_range(DATASET_ID, CHUNK_ID, offset, length)

    def damaged(self, match: str) -> None:
        """No way to read the payload, nor to call the chunk whole, succeeds; the header can be read."""
        begin = decode_preamble(self.chunk, "chunk").payload_start
        with pytest.raises(Damaged, match=match):
            self.read(begin, 1)
        with pytest.raises(Damaged, match=match):
            read_chunk(self.store, DATASET_ID, CHUNK_ID)
        read_header(self.store, DATASET_ID, CHUNK_ID)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.mark.parametrize("is_known", [False, True])
def test_every_range_of_the_whole_chunk(rig: Rig, is_known: bool) -> None:
    rig.put()
    whole = rig.chunk + CONTENT[BEGIN:END]
    begin, end = len(rig.chunk), len(whole)
    if is_known:
        rig.read(begin, 1)
    for first, last in ((0, 112), (0, end), (50, begin), (50, begin + 1), (begin, end), (begin + 7, end - 9)):
        store = rig.store if is_known else AttachedStore(rig.below, Sources(None))
        assert store.get_range(DATASET_ID, CHUNK_ID, first, last - first) == whole[first:last]
    for offset, length in ((begin, 40_001), (end, 1), (end + 5, 1)):
        with pytest.raises(Damaged, match="of a payload of 40000"):
            rig.read(offset, length)


def test_the_store_has_the_header_only(rig: Rig) -> None:
    rig.put()
    assert rig.store.size(DATASET_ID, CHUNK_ID) == len(rig.chunk) < 2000
    _, header, payload = read_chunk(rig.store, DATASET_ID, CHUNK_ID)
    assert bytes(payload) == CONTENT[BEGIN:END] and header.paths == [b"a", b"b"]


def test_an_open_payload_is_the_source(rig: Rig) -> None:
    rig.put()
    opened = open_payload(rig.store, DATASET_ID, CHUNK_ID, Sources(None))
    assert opened is not None
    with opened:
        assert os.pread(opened.descriptor, opened.length, opened.start) == CONTENT[BEGIN:END]
    before = len(os.listdir("/proc/self/fd"))
    assert open_ahead(rig.store, DATASET_ID, [CHUNK_ID]) == [], "a source may take long"
    os.unlink(rig.file)
    with pytest.raises(Damaged, match="attached source"):
        open_payload(rig.store, DATASET_ID, CHUNK_ID, Sources(None))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(
    "change, match",
    [
        ("removed", "No such file"),
        ("truncated", "has changed since"),
        ("longer", "has changed since"),
        ("touched", "has changed since"),
        ("replaced", "has changed since"),
        ("folder", "not a regular file"),
    ],
)
def test_a_source_that_is_not_what_it_was(rig: Rig, change: str, match: str, is_known: bool) -> None:
    rig.put()
    if is_known:
        rig.read(len(rig.chunk), 10)
    if change in ("removed", "folder"):
        rig.file.unlink()
    if change == "folder":
        rig.file.mkdir()
    elif change == "truncated":
        os.truncate(rig.file, 30_000)
    elif change == "longer":
        os.truncate(rig.file, 60_000)
    elif change == "touched":
        os.utime(rig.file, ns=(0, 1))
    elif change == "replaced":
        rig.file.rename(rig.file.with_suffix(".old"))
        rig.file.write_bytes(CONTENT)
        os.utime(rig.file, ns=(0, 2))
    rig.damaged(f"{rig.file}.*{match}")
    preamble, _ = read_header(rig.store, DATASET_ID, CHUNK_ID)
    with pytest.raises(Damaged, match=match):
        check_size(rig.store, DATASET_ID, preamble)


def test_bytes_that_changed_in_secret_are_found_by_their_digest(rig: Rig) -> None:
    rig.put()
    times = os.stat(rig.file)
    with rig.file.open("r+b") as file:
        file.seek(BEGIN + 30_000)
        file.write(b"!!!!")
    os.utime(rig.file, ns=(times.st_atime_ns, times.st_mtime_ns))
    rig.damaged(f"{rig.file}, attached as chunk .* digest of the payload does not match")
    rig.file.write_bytes(CONTENT)
    os.utime(rig.file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert rig.read(len(rig.chunk), 100) == CONTENT[BEGIN : BEGIN + 100]  # nothing of the failure is kept


def test_a_put_needs_the_source(rig: Rig) -> None:
    os.utime(rig.file, ns=(0, 1))
    with pytest.raises(InvalidInput, match="has changed since"):
        rig.put()
    rig.file.unlink()
    with pytest.raises(NotFound, match="No such file"):
        rig.put()
    rig.file.write_bytes(CONTENT)
    with pytest.raises(AccessDenied, match="attach_roots"):
        AttachedStore(rig.below, Sources()).put(DATASET_ID, CHUNK_ID, [rig.encoded()])
    assert list(rig.below.list_chunks(DATASET_ID)) == []


def test_a_damaged_object_is_damage(rig: Rig, tmp_path: Path) -> None:
    rig.below.put(DATASET_ID, CHUNK_ID, [rig.chunk[:-1]])
    with pytest.raises(Damaged):
        rig.read(len(rig.chunk), 10)
    with pytest.raises(Damaged):
        read_header(rig.store, DATASET_ID, CHUNK_ID)


def test_a_commit_and_the_totals(rig: Rig) -> None:
    metadata = SqliteMetadata(":memory:")
    metadata.create_dataset("pets", DATASET_ID)
    for _ in range(2):  # the second is the repetition of a writer without a reply
        commit_chunk(rig.store, metadata, DATASET_ID, CHUNK_ID, rig.chunk, NOW_NS, "pets")
    record = metadata.dataset("pets")
    assert (record.files, record.total_bytes, record.chunks) == (2, 20_100, 1)
    metadata.close()


def test_behind_a_fast_tier(tmp_path: Path) -> None:
    """The tier copies what the store has: the header."""
    tiers = TieredStore(MemoryStore(), PosixStore(tmp_path / "slow"), 1 << 20, slow_share=1)
    try:
        rig = Rig(tmp_path, tiers)
        rig.put()
        for _ in range(3):
            assert rig.read(len(rig.chunk) - 5, 15) == rig.chunk[-5:] + CONTENT[BEGIN : BEGIN + 10]
    finally:
        tiers.close()


def test_a_deleted_chunk_is_forgotten(rig: Rig) -> None:
    rig.put()
    rig.read(len(rig.chunk), 10)
    rig.store.delete(DATASET_ID, CHUNK_ID)
    with pytest.raises(NotFound):
        rig.read(len(rig.chunk), 10)
    rig.store.put(DATASET_ID, CHUNK_ID, [sample_chunk()])
    assert rig.read(0, len(sample_chunk())) == sample_chunk()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "a.tar").write_bytes(b"0123456789")
    (tmp_path / "secret").write_bytes(b"0123456789")
    return tmp_path / "root"


def source_of(path: Path, offset: int = 0) -> AttachedSource:
    status = os.stat(path)
    return AttachedSource(os.fsencode(path), status.st_size, f"mtime_ns={status.st_mtime_ns}", offset)


def test_files_below_a_root(root: Path) -> None:
    sources = Sources((str(root),))
    opened = sources.open(source_of(root / "a.tar"))
    assert opened.read(0, 10) == b"0123456789"
    opened.close()
    Sources(None).open(source_of(root.parent / "secret")).close()


def test_nothing_without_roots(root: Path) -> None:
    with pytest.raises(AccessDenied, match="this server attaches nothing"):
        Sources().open(source_of(root / "a.tar"))


def test_no_way_out_of_a_root(root: Path) -> None:
    secret = root.parent / "secret"
    (root / "link").symlink_to(secret)
    (root / "folder").symlink_to(root.parent)
    (root.parent / "root-2").mkdir()
    (root.parent / "root-2" / "file").write_bytes(b"0123456789")
    sources = Sources((str(root),))
    for path in (secret, root / "link", root / "folder" / "secret", root.parent / "root-2" / "file"):
        with pytest.raises(AccessDenied, match="not below attach_roots"):
            sources.open(source_of(path))
    with pytest.raises(AccessDenied, match="not below attach_roots"):
        sources.open(replace(source_of(secret), location=os.fsencode(root) + b"/../secret"))


def test_a_root_may_be_a_link(root: Path) -> None:
    (root.parent / "data").symlink_to(root)
    Sources((str(root.parent / "data"),)).open(source_of(root / "a.tar")).close()


def test_another_version_is_another_object(root: Path) -> None:
    source = source_of(root / "a.tar")
    for other in (replace(source, size_bytes=9), replace(source, mark="mtime_ns=1")):
        with pytest.raises(Damaged, match=r"a\.tar: it has changed since it was attached .*attach it again"):
            Sources(None).open(other)


def test_a_chunk_whose_source_cannot_be_read_is_damaged(root: Path) -> None:
    source = source_of(root / "a.tar")
    with pytest.raises(Damaged, match=r"attached source .* attaches nothing"):
        Sources().open_attached(source)
    os.unlink(root / "a.tar")
    with pytest.raises(Damaged, match=r"attached source .*a\.tar: No such file"):
        Sources(None).open_attached(source)
    with pytest.raises(NotFound):
        Sources(None).open(source)


def test_a_payload_is_a_range_of_the_open_file(root: Path) -> None:
    preamble = Preamble(bytes(16), 100, 5, bytes(32), bytes(32), is_attached=True)
    with Sources(None).open_payload(preamble, source_of(root / "a.tar", offset=3)) as opened:
        assert os.pread(opened.descriptor, opened.length, opened.start) == b"34567"
        assert opened.name.endswith("a.tar, attached as chunk ---------------------- from offset 3")
