"""Compressed chunks are read as all others, by the offsets of their plain payloads."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.format import PREAMBLE_BYTES, decode_preamble
from dieselfs.chunk.frames import Compression
from dieselfs.errors import Damaged, NotFound
from dieselfs_server.datasets.commit import check_size, commit_chunk, read_chunk, read_header
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.reading.executor import open_ahead, open_payload
from dieselfs_server.store.attached import Sources
from dieselfs_server.store.compressed import CompressedStore
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.posix import PosixStore
from tests.conformance.chunk_store_suite import ChunkStoreSuite
from tests.support.chunks import CHUNK_ID, DATASET_ID

FILES = [b"text of some kind, %d\n" % n * (n * 7) for n in range(200)] + [os.urandom(9000), b"x" * 600_000]
NOW_NS = 1_800_000_000 * 10**9


class TestCompressedStore(ChunkStoreSuite):
    """Of ordinary chunks, nothing differs."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        return CompressedStore(MemoryStore())


def object_of(is_compressed: bool) -> bytes:
    builder = ChunkBuilder()
    for number, content in enumerate(FILES):
        builder.add_file(b"%04d" % number, content, 0o644, 0)
    sealed = builder.seal()
    if is_compressed:
        sealed = sealed.compressed(Compression())
    return b"".join(sealed.encode(CHUNK_ID, "pets", DATASET_ID, 1))


PACKED = object_of(is_compressed=True)
PREAMBLE = decode_preamble(PACKED, "chunk")
WHOLE = PACKED[: PREAMBLE.payload_start] + b"".join(FILES)


def made(below: ObjectStore, data: bytes = PACKED) -> CompressedStore:
    store = CompressedStore(below)
    store.put(DATASET_ID, CHUNK_ID, [data])
    return store


@pytest.mark.parametrize("is_known", [False, True])
def test_every_range_of_the_whole_chunk(is_known: bool) -> None:
    store = made(MemoryStore())
    begin, end = PREAMBLE.payload_start, len(WHOLE)
    spans = [(0, 112), (0, 5), (0, 0), (0, end), (50, begin), (begin - 9, begin + 1), (begin, end)]
    spans += [(begin + 10_007, end - 9), (begin + 700_000, begin + 700_001), (end, end)]
    for first, last in spans:
        reader = store if is_known else CompressedStore(store.store)
        assert reader.get_range(DATASET_ID, CHUNK_ID, first, last - first) == WHOLE[first:last]
    for offset, length in ((begin, end - begin + 1), (end, 1), (end + 5, 1)):
        with pytest.raises(Damaged, match="of a payload of"):
            store.get_range(DATASET_ID, CHUNK_ID, offset, length)


def test_a_range_reads_its_frames_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    below = MemoryStore()
    store, read, asked = made(below), below.get_range, list[int]()
    plain_start = PREAMBLE.payload_start + sum(map(len, FILES[:150]))
    store.get_range(DATASET_ID, CHUNK_ID, plain_start, 1)

    def counted(dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        asked.append(length)
        return read(dataset_id, chunk_id, offset, length)

    monkeypatch.setattr(below, "get_range", counted)
    assert store.get_range(DATASET_ID, CHUNK_ID, plain_start, len(FILES[150])) == FILES[150]
    assert len(asked) == 1 and asked[0] < len(FILES[150]) / 4


def test_the_chunk_as_the_server_sees_it(tmp_path: Path) -> None:
    store, metadata = CompressedStore(PosixStore(tmp_path)), SqliteMetadata(":memory:")
    metadata.create_dataset("pets", DATASET_ID)
    commit_chunk(store, metadata, DATASET_ID, CHUNK_ID, PACKED, NOW_NS)
    assert store.size(DATASET_ID, CHUNK_ID) == len(PACKED) < len(WHOLE) / 4
    check_size(store, DATASET_ID, PREAMBLE)
    _, header, payload = read_chunk(store, DATASET_ID, CHUNK_ID)
    assert bytes(payload) == b"".join(FILES) and len(header.paths) == len(FILES)
    plain, _ = read_header(made(MemoryStore(), object_of(is_compressed=False)), DATASET_ID, CHUNK_ID)
    assert plain.payload_digest == PREAMBLE.payload_digest
    assert open_payload(store, DATASET_ID, CHUNK_ID, Sources()) is None, "its file has frames"
    assert open_ahead(store, DATASET_ID, [CHUNK_ID]) == []
    frames, stored = store.stored_payload(DATASET_ID, CHUNK_ID) or (None, b"")
    assert frames is not None and stored == PACKED[PREAMBLE.payload_start :]
    store.delete(DATASET_ID, CHUNK_ID)
    with pytest.raises(NotFound):
        store.get_range(DATASET_ID, CHUNK_ID, PREAMBLE.payload_start, 1)


@pytest.mark.parametrize("is_remembered", [False, True])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:-20] + bytes(20),
        lambda data: data[:PREAMBLE_BYTES] + bytes(9) + data[PREAMBLE_BYTES + 9 :],
    ],
    ids=["shorter", "last frame", "header"],
)
def test_damage_is_an_error_never_other_bytes(damage: Callable[[bytes], bytes], is_remembered: bool) -> None:
    below = MemoryStore()
    store = made(below, damage(PACKED))
    if is_remembered:
        store.get_range(DATASET_ID, CHUNK_ID, 0, PREAMBLE_BYTES)
    with pytest.raises(Damaged):
        store.get_range(DATASET_ID, CHUNK_ID, len(WHOLE) - 5, 5)
    with pytest.raises(Damaged):
        read_chunk(store, DATASET_ID, CHUNK_ID)
    with pytest.raises(Damaged):
        commit_chunk(store, SqliteMetadata(":memory:"), DATASET_ID, CHUNK_ID, damage(PACKED), NOW_NS)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dieselfs_server.store.compressed.TABLES_BYTES_MAX", 1)
    store = made(MemoryStore())
    for _ in range(2):
        assert store.get_range(DATASET_ID, CHUNK_ID, len(WHOLE) - 5, 5) == b"x" * 5
