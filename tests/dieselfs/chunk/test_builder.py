"""The builder: whatever it takes can be decoded, and what could not is refused without a trace."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.chunk import builder as builder_module
from dieselfs.chunk.builder import ChunkBuilder, SealedChunk
from dieselfs.chunk.format import VERSION_MAX, ChunkHeader, Op, decode_chunk
from dieselfs.errors import InvalidInput
from dieselfs.limits import (
    CHUNK_PAYLOAD_BYTES_MAX,
    CHUNK_TARGET_BYTES,
    FILE_BYTES_MAX,
    NEW_PATH_DEPTH_MAX,
    PATH_BYTES_MAX,
)
from tests.support.chunks import CHUNK_ID, DATASET_ID


def decoded(sealed: SealedChunk, first_version: int = 1) -> tuple[ChunkHeader, bytes]:
    _, header, payload = decode_chunk(
        b"".join(sealed.encode(CHUNK_ID, "pets", DATASET_ID, first_version)), "built"
    )
    return header, bytes(payload)


def test_an_empty_chunk_is_a_chunk() -> None:
    header, payload = decoded(ChunkBuilder().seal())
    assert (len(header), payload) == (0, b"")


def test_files_lie_one_behind_the_other() -> None:
    builder = ChunkBuilder()
    for name, data in ((b"a", b"one"), (b"b", b""), (b"c", b"three")):
        builder.add_file(name, data, 0o100644, 5)
    assert (len(builder), builder.payload_bytes) == (3, 8)
    header, payload = decoded(builder.seal())
    assert payload == b"onethree"
    assert header.offsets.tolist() == [0, 3, 3]
    assert header.lengths.tolist() == header.sizes.tolist() == [3, 0, 5]
    assert header.modes.tolist() == [0o644] * 3
    assert len(builder) == builder.payload_bytes == 0


def test_files_at_given_offsets_of_a_payload() -> None:
    payload = b"..one..three"
    builder = ChunkBuilder()
    for path, start, end in ((b"three", 7, 12), (b"one", 2, 5), (b"hre", 8, 11)):
        builder.add_file(path, memoryview(payload)[start:end], 0o644, 5, offset=start)
    assert builder.payload_bytes == 12
    header, found = decoded(builder.seal(payload))
    assert found == payload
    assert header.offsets.tolist() == [7, 2, 8]


def test_files_share_equal_bytes_as_often_as_a_chunk_may() -> None:
    builder = ChunkBuilder(target_bytes=8, is_sharing=True)
    for name, data in ((b"a", b"same"), (b"b", b"same"), (b"c", b"same"), (b"d", b""), (b"e", b"")):
        builder.add_file(name, data, 0o644, 5)
    assert builder.is_full and builder.has_room(b"same") and not builder.has_room(b"else")
    builder.add_file(b"f", memoryview(b"same"), 0o644, 5)
    assert not builder.has_room(b"same"), "16 bytes in a payload of 8 are the limit"
    sealed = builder.seal()
    header, payload = decoded(sealed)
    assert payload == b"samesame" and sealed.extents_bytes == 16
    assert header.offsets.tolist() == [0, 0, 4, 8, 8, 4]
    builder.add_file(b"next", b"same", 0o644, 5)
    assert builder.seal().payload == b"same", "a chunk has nothing of the one before"


def test_extents_of_a_file_that_spans_chunks() -> None:
    data = bytes(range(256)) * 5
    builder = ChunkBuilder(500)
    places = []
    place = 0
    while place < len(data):
        content = data[place : place + builder.room_bytes]
        builder.add_file(b"big", content, 0o644, 5, len(data), place, version=77)
        place += len(content)
        assert builder.is_full == (place < len(data))
        header, payload = decoded(builder.seal(), first_version=1000)
        assert header.versions.tolist() == [77]
        assert header.sizes.tolist() == [len(data)]
        places.append((int(header.places[0]), payload))
    assert b"".join(payload for _, payload in places) == data
    assert [place for place, _ in places] == [0, 500, 1000]


def test_versions_run_on_but_for_those_given() -> None:
    builder = ChunkBuilder()
    builder.add_delete(b"a")
    builder.add_file(b"b", b"", 0, 0, version=5)
    builder.add_directory(b"", 0o700, 0)
    header, _ = decoded(builder.seal(), first_version=100)
    assert header.versions.tolist() == [100, 5, 102]
    assert header.ops.tolist() == [Op.DELETE, Op.FILE, Op.DIRECTORY]


def test_encoding_twice_changes_only_id_and_versions() -> None:
    builder = ChunkBuilder()
    builder.add_file(b"a", b"data", 0o644, 1)
    sealed = builder.seal()
    head, payload = sealed.encode(CHUNK_ID, "pets", DATASET_ID, 1)
    assert sealed.encode(CHUNK_ID, "pets", DATASET_ID, 1) == (head, payload)
    again, same_payload = sealed.encode(bytes(16), "pets", DATASET_ID, 2)
    assert (again != head, same_payload == payload) == (True, True)


@pytest.mark.parametrize(
    ("mtime_ns", "kept_ns"), [(1 << 80, (1 << 63) - 1), (-(1 << 80), -(1 << 63)), (-1, -1)]
)
def test_times_beyond_64_bits_are_kept_as_the_nearest(mtime_ns: int, kept_ns: int) -> None:
    builder = ChunkBuilder()
    builder.add_directory(b"d", 0o755, mtime_ns)
    assert decoded(builder.seal())[0].mtimes_ns.tolist() == [kept_ns]


REFUSED: dict[str, Callable[[ChunkBuilder], None]] = {
    "bad path": lambda builder: builder.add_file(b"a/../b", b"", 0, 0),
    "bad path of a folder": lambda builder: builder.add_directory(b"/", 0, 0),
    "bad path of a delete": lambda builder: builder.add_delete(b"a\0"),
    "root as a file": lambda builder: builder.add_file(b"", b"x", 0, 0),
    "root as a link": lambda builder: builder.add_symlink(b"", b"x", 0, 0),
    "root deleted": lambda builder: builder.add_delete(b""),
    "empty target": lambda builder: builder.add_symlink(b"l", b"", 0, 0),
    "target with NUL": lambda builder: builder.add_symlink(b"l", b"a\0", 0, 0),
    "target too long": lambda builder: builder.add_symlink(b"l", b"t" * (PATH_BYTES_MAX + 1), 0, 0),
    "extent past the end": lambda builder: builder.add_file(b"f", b"abc", 0, 0, 5, 3),
    "extent before the start": lambda builder: builder.add_file(b"f", b"abc", 0, 0, 5, -1),
    "empty extent": lambda builder: builder.add_file(b"f", b"", 0, 0, 5, 3),
    "size too large": lambda builder: builder.add_file(b"f", b"abc", 0, 0, FILE_BYTES_MAX + 1),
    "size negative": lambda builder: builder.add_file(b"f", b"", 0, 0, -1),
    "version negative": lambda builder: builder.add_file(b"f", b"", 0, 0, version=-1),
    "version of a delete": lambda builder: builder.add_delete(b"f", version=1 << 64),
    "version too large": lambda builder: builder.add_file(b"f", b"", 0, 0, version=VERSION_MAX + 1),
    "no room": lambda builder: builder.add_file(b"f", bytes(CHUNK_PAYLOAD_BYTES_MAX + 1), 0, 0),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_leaves_no_trace(case: str) -> None:
    builder = ChunkBuilder()
    builder.add_file(b"before", b"1", 0o644, 0)
    with pytest.raises(InvalidInput):
        REFUSED[case](builder)
    builder.add_symlink(b"behind", b"before", 0o777, 0)
    header, payload = decoded(builder.seal())
    assert (header.paths, payload, header.target(1)) == ([b"before", b"behind"], b"1", b"before")


def test_the_path_of_each_entry_of_a_folder_is_checked() -> None:
    builder = ChunkBuilder()
    for folder in (b"", b"a", b"a/b"):
        head = folder + b"/" if folder else b""
        builder.add_file(head + b"good", b"x", 0o644, 0)
        for name in (b".", b"..", b"n" * 256, b"nul\0", b"c//d"):
            with pytest.raises(InvalidInput):
                builder.add_file(head + name, b"x", 0o644, 0)
    deep = b"/".join([b"d"] * NEW_PATH_DEPTH_MAX)
    builder.add_delete(deep + b"/gone")
    with pytest.raises(InvalidInput, match="parts"):
        builder.add_file(deep + b"/new", b"x", 0o644, 0)
    assert [entry[0] for entry in builder.seal().entries] == [
        b"good",
        b"a/good",
        b"a/b/good",
        deep + b"/gone",
    ]


@pytest.mark.parametrize("first_version", [0, -1, VERSION_MAX, VERSION_MAX + 1])
def test_versions_out_of_range_are_refused(first_version: int) -> None:
    builder = ChunkBuilder()
    builder.add_delete(b"a")
    with pytest.raises(InvalidInput, match="out of range"):
        builder.seal().encode(CHUNK_ID, "pets", DATASET_ID, first_version)


@pytest.mark.parametrize("target_bytes", [0, -1, CHUNK_PAYLOAD_BYTES_MAX + 1])
def test_chunk_sizes_that_cannot_be(target_bytes: int) -> None:
    with pytest.raises(InvalidInput, match="chunk size"):
        ChunkBuilder(target_bytes)


def test_full_by_payload() -> None:
    builder = ChunkBuilder()
    builder.add_file(b"a", bytes(CHUNK_TARGET_BYTES - 1), 0, 0)
    assert (builder.is_full, builder.room_bytes) == (False, 1)
    builder.add_file(b"b", b"12", 0, 0)
    assert (builder.is_full, builder.room_bytes) == (True, 0)


def test_full_by_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder_module, "CHUNK_ENTRIES_MAX", 3)
    builder = ChunkBuilder()
    for name in (b"a", b"b", b"c"):
        assert not builder.is_full
        builder.add_delete(name)
    assert builder.is_full
    with pytest.raises(InvalidInput, match="the chunk is full"):
        builder.add_delete(b"d")
    assert len(builder) == 3


def test_full_by_paths_and_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The builder says that it is full while the longest link there can be still fits."""
    monkeypatch.setattr(builder_module, "CHUNK_PATH_BYTES_MAX", 4 * PATH_BYTES_MAX)
    long_path = b"/".join([b"p" * 255] * 15)
    builder = ChunkBuilder()
    while not builder.is_full:
        builder.add_symlink(long_path, b"t" * PATH_BYTES_MAX, 0, 0)
    with pytest.raises(InvalidInput, match="the chunk is full"):
        for _ in range(3):
            builder.add_symlink(long_path, b"t" * PATH_BYTES_MAX, 0, 0)
    decoded(builder.seal())


parts = st.binary(min_size=1, max_size=255).filter(
    lambda part: not set(part) & set(b"/\0") and part not in (b".", b"..")
)


@given(st.lists(st.tuples(st.lists(parts, min_size=1, max_size=3), st.binary(max_size=50)), max_size=20))
def test_names_of_any_bytes_round_trip(entries: list[tuple[list[bytes], bytes]]) -> None:
    builder = ChunkBuilder()
    for path, data in entries:
        builder.add_file(b"/".join(path), data, 0o644, 0)
    header, payload = decoded(builder.seal())
    assert header.paths == [b"/".join(path) for path, _ in entries]
    contents = [
        payload[offset : offset + length]
        for offset, length in zip(header.offsets, header.lengths, strict=True)
    ]
    assert contents == [data for _, data in entries]
