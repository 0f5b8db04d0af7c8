"""Uploads: what is refused, from which bytes, and that one user does not take all places."""

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from dieselfs.cache.policy import LARGE_EXTENT_BYTES
from dieselfs.chunk import format as chunk_format
from dieselfs.chunk.blocks import block_checksums
from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.format import PREAMBLE_BYTES, decode_preamble
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.chunk.source import AttachedSource
from dieselfs.errors import AccessDenied, InvalidInput
from dieselfs.limits import ATTACHED_HEADER_BYTES_MAX
from dieselfs.telemetry.registry import Registry
from dieselfs_server.access.accounts import Caller
from dieselfs_server.access.identity import Identity
from dieselfs_server.access.users import UserStore
from dieselfs_server.admission.quotas import Quotas
from dieselfs_server.call import Access, Call
from dieselfs_server.datasets.catalog import Catalog
from dieselfs_server.datasets.commit import verified_chunk
from dieselfs_server.datasets.dataset_keys import DatasetKeys
from dieselfs_server.datasets.mirrors import Mirrors
from dieselfs_server.datasets.refresh import Refresh
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.handlers import writing
from dieselfs_server.handlers.writing import STORE_WRITES_OF_USER_MAX, WriteCalls
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.reading.kept_checksums import KeptChecksums
from dieselfs_server.store.attached import AttachedStore, Sources
from dieselfs_server.store.memory import MemoryStore

DATASET_ID = bytes(range(16))
IDS = ChunkIdSource()
WAIT_S = 60.0


async def build_nothing(name: str) -> None:
    pass


class Rig:
    """The handlers of writes over stores in memory; all callers may write."""

    def __init__(self, metadata: SqliteMetadata, roots: tuple[str, ...] = ()) -> None:
        self.metadata, self.below, self.sources = metadata, MemoryStore(), Sources(roots)
        self.store, users = AttachedStore(self.below, self.sources), UserStore(self.below)
        self.access = Access(users, Catalog(self.store, metadata))
        metrics = Registry()
        quotas = Quotas(metadata, users, metrics)
        refresh, keys = Refresh(build_nothing), DatasetKeys(self.store)
        mirrors = Mirrors(self.store, metadata, TagStore(self.store, Identity.generate()))
        parts = IDS, quotas, refresh, metrics, self.sources, keys, KeptChecksums(), mirrors
        self.calls = WriteCalls(self.store, metadata, *parts)

    def call(self, bulk: bytes, user: str = "ann") -> Call:
        arguments = SimpleNamespace(dataset="data", chunk_id=bulk[24:40], bulk_length=len(bulk), key_id=b"")
        return Call(self.access, Caller(user, "", True), "put_chunk", arguments, bulk)


@pytest.fixture
def metadata() -> Iterator[SqliteMetadata]:
    with closing(SqliteMetadata(":memory:")) as store:
        store.create_dataset("data", DATASET_ID)
        yield store


def encoded(
    builder: ChunkBuilder, payload: bytes | None = None, source: AttachedSource | None = None
) -> bytes:
    return b"".join(builder.seal(payload, source).encode(IDS.next(), "data", DATASET_ID, 1))


def attached(path: Path, entries: int = 1) -> bytes:
    status, builder = os.stat(path), ChunkBuilder()
    builder.add_file(b"a", b"x", 0o644, 0, offset=0)
    for number in range(1, entries):
        builder.add_directory(b"%0200d" % number, 0o755, 0)
    return encoded(
        builder, b"x", AttachedSource(os.fsencode(path), status.st_size, f"mtime_ns={status.st_mtime_ns}")
    )


def test_an_attached_chunk_is_refused_before_its_header_is_decoded(
    metadata: SqliteMetadata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(b"x")
    long = attached(path, ATTACHED_HEADER_BYTES_MAX // 200)

    def never(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(writing, "verified_chunk", never)
    call = Rig(metadata).call(attached(path))
    with pytest.raises(AccessDenied, match="this server attaches nothing"):
        trio.run(Rig(metadata).calls.put_chunk, call)
    assert call.audited == {"dataset": "data", "source": "not read"}
    rig = Rig(metadata, (str(tmp_path),))
    with pytest.raises(InvalidInput, match="limit 4,194,304 for an attached chunk"):
        trio.run(rig.calls.put_chunk, rig.call(long))


def test_a_chunk_is_decoded_once_and_not_by_the_thread_that_serves_all(
    metadata: SqliteMetadata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(b"x")
    rig, decoders = Rig(metadata, (str(tmp_path),)), []

    def decode(*arguments: object) -> object:
        decoders.append(threading.get_ident())
        return original(*arguments)  # type: ignore[arg-type]  # passed on as they are

    original = chunk_format._decode_columns
    monkeypatch.setattr(chunk_format, "_decode_columns", decode)
    call = rig.call(attached(path))
    assert trio.run(rig.calls.put_chunk, call) == 1
    assert call.audited == {"dataset": "data", "source": str(path)}
    assert len(decoders) == 1 and decoders[0] != threading.get_ident()


def test_a_stored_chunk_with_a_large_file_has_its_checksums_of_blocks(metadata: SqliteMetadata) -> None:
    rig = Rig(metadata)
    for content in (os.urandom(LARGE_EXTENT_BYTES), b"small"):
        builder = ChunkBuilder()
        builder.add_file(b"f", content, 0o644, 0)
        chunk = encoded(builder)
        trio.run(rig.calls.put_chunk, rig.call(chunk))
        kept = rig.calls.checksums.get(DATASET_ID, decode_preamble(chunk[:PREAMBLE_BYTES], "chunk").chunk_id)
        is_large = len(content) == LARGE_EXTENT_BYTES
        assert kept == (block_checksums(content).astype("<u8").tobytes() if is_large else None)


def test_a_chunk_that_costs_too_much_is_refused_and_not_stored(metadata: SqliteMetadata) -> None:
    rig, builder = Rig(metadata), ChunkBuilder(is_of_old=True)
    for number in range(2000):
        builder.add_file(b"%d/%s" % (number, b"/".join([b"d"] * 117)), b"", 0o644, 0)
    with pytest.raises(InvalidInput, match="its 2,000 entries have too many folders above them"):
        trio.run(rig.calls.put_chunk, rig.call(encoded(builder)))
    shared = ChunkBuilder()
    for number in range(3):
        shared.add_file(b"%d" % number, b"x", 0o644, 0, offset=0)
    with pytest.raises(InvalidInput, match="its files share bytes"):
        trio.run(rig.calls.put_chunk, rig.call(encoded(shared, b"x")))
    assert list(rig.below.list_chunks(DATASET_ID)) == []


def test_a_user_does_not_take_all_places_of_writes(
    metadata: SqliteMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One user uploads more chunks at once than there are places; another user's chunk is stored meanwhile."""
    rig, may_end, begun = Rig(metadata), threading.Event(), threading.Semaphore(0)

    def verify(*arguments: object) -> object:
        found = verified_chunk(*arguments)  # type: ignore[arg-type]  # passed on as they are
        if found[1].paths == [b"slow"]:
            begun.release()
            assert may_end.wait(WAIT_S)
        return found

    monkeypatch.setattr(writing, "verified_chunk", verify)

    def chunk(path: bytes) -> bytes:
        builder = ChunkBuilder()
        builder.add_file(path, b"x", 0o644, 0)
        return encoded(builder)

    async def scenario() -> None:
        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                for _ in range(2 * writing.STORE_WRITES_MAX):
                    nursery.start_soon(rig.calls.put_chunk, rig.call(chunk(b"slow"), "eve"))
                for _ in range(STORE_WRITES_OF_USER_MAX):
                    await trio.to_thread.run_sync(begun.acquire)
                assert await rig.calls.put_chunk(rig.call(chunk(b"quick"), "ann")) == 1
                may_end.set()

    trio.run(scenario)
    assert metadata.dataset("data").chunks == 2 * writing.STORE_WRITES_MAX + 1
