"""What a new chunk may cost: folders above its entries, depth, shared bytes, the header of an attached chunk."""

import pytest

from dieselfs.chunk.builder import ChunkBuilder, SealedChunk
from dieselfs.chunk.cost import check_attached, check_cost, folders_above
from dieselfs.chunk.format import ChunkHeader, Preamble, decode_chunk, decode_stored
from dieselfs.errors import InvalidInput
from dieselfs.limits import (
    ATTACHED_HEADER_BYTES_MAX,
    CHUNK_FOLDER_BYTES_MAX,
    CHUNK_FOLDERS_BASE,
    CHUNK_FOLDERS_MAX,
    CHUNK_FOLDERS_PER_ENTRY_MAX,
    NEW_PATH_DEPTH_MAX,
    PATH_DEPTH_MAX,
)
from tests.support.chunks import CHUNK_ID, DATASET_ID


def decoded(sealed: SealedChunk) -> tuple[Preamble, ChunkHeader]:
    data = b"".join(sealed.encode(CHUNK_ID, "pets", DATASET_ID, 1))
    return decode_stored(data, "chunk")


def deep_path(number: int, depth: int) -> bytes:
    """A path of `depth` parts that shares no folder with that of another number."""
    return b"/".join([b"%x" % number, *[b"d"] * (depth - 1)])


def chunk_of_folders(folders: int) -> SealedChunk:
    """A chunk whose entries have this number of folders above them."""
    builder, number = ChunkBuilder(is_of_old=True), 0
    while folders:
        depth = min(folders, NEW_PATH_DEPTH_MAX - 1)
        builder.add_directory(deep_path(number, depth + 1), 0o755, 0)
        folders, number = folders - depth, number + 1
    return builder.seal()


def test_a_chunk_has_so_many_folders_above_its_entries_and_no_more() -> None:
    entries = -(-CHUNK_FOLDERS_BASE // (NEW_PATH_DEPTH_MAX - 1))
    entries += -(-CHUNK_FOLDERS_PER_ENTRY_MAX * entries // (NEW_PATH_DEPTH_MAX - 1))
    most = CHUNK_FOLDERS_BASE + CHUNK_FOLDERS_PER_ENTRY_MAX * entries
    fits, exceeds = chunk_of_folders(most - CHUNK_FOLDERS_PER_ENTRY_MAX), chunk_of_folders(most + 999)
    check_cost(*decoded(fits), "chunk")
    with pytest.raises(InvalidInput, match=r"chunk: its \d+ entries have too many folders above them"):
        check_cost(*decoded(exceeds), "chunk")


def test_a_chunk_of_many_entries_has_a_bounded_number_of_folders() -> None:
    """So the time is bounded for which a server writes them, and others wait."""
    for each, is_allowed in ((3, True), (4, False)):
        builder = ChunkBuilder(is_of_old=True)
        for number in range(CHUNK_FOLDERS_MAX // 4 + 1):
            builder.add_directory(b"%x" % number + b"/d" * each, 0o755, 0)
        if is_allowed:
            check_cost(*decoded(builder.seal()), "chunk")
        else:
            with pytest.raises(InvalidInput, match="more than 65,536"):
                check_cost(*decoded(builder.seal()), "chunk")


def test_the_paths_of_folders_are_bounded_also_where_the_folders_are_few() -> None:
    builder, part = ChunkBuilder(is_of_old=True), b"x" * 250
    for number in range(CHUNK_FOLDER_BYTES_MAX // (250 * 120) + 1):
        builder.add_directory(b"/".join([b"%0250d" % number, *[part] * 15]), 0o755, 0)
    with pytest.raises(InvalidInput, match="bytes of their paths"):
        check_cost(*decoded(builder.seal()), "chunk")


def test_a_builder_is_full_before_its_chunk_costs_too_much() -> None:
    builder, chunks = ChunkBuilder(), 0
    for number in range(300):
        builder.add_file(deep_path(number, NEW_PATH_DEPTH_MAX), b"", 0o644, 0)
        if builder.is_full:
            assert builder.room_bytes == 0
            check_cost(*decoded(builder.seal()), "chunk")
            chunks += 1
    assert chunks == 4
    check_cost(*decoded(builder.seal()), "chunk")


def test_new_entries_are_not_deeper_than_allowed_but_old_ones_are_deleted_and_copied() -> None:
    deepest, deeper = deep_path(1, NEW_PATH_DEPTH_MAX), deep_path(1, PATH_DEPTH_MAX)
    builder = ChunkBuilder()
    builder.add_file(deepest, b"x", 0o644, 0)
    with pytest.raises(InvalidInput, match="path of 1024 parts, limit 128"):
        builder.add_file(deeper, b"x", 0o644, 0)
    builder.add_delete(deeper)
    check_cost(*decoded(builder.seal()), "chunk")
    old = ChunkBuilder(is_of_old=True)
    old.add_file(deeper, b"x", 0o644, 0)
    chunk = decoded(old.seal())
    with pytest.raises(InvalidInput, match="path of 1024 parts, limit 128"):
        check_cost(*chunk, "chunk")


def test_files_share_the_bytes_of_a_payload_twice_and_not_more_often() -> None:
    for count, is_allowed in ((2, True), (3, False)):
        builder = ChunkBuilder()
        for number in range(count):
            builder.add_file(b"%d" % number, b"bytes", 0o644, 0, offset=0)
        preamble, header, _ = decode_chunk(
            b"".join(builder.seal(b"bytes").encode(CHUNK_ID, "pets", DATASET_ID, 1)), "chunk"
        )
        if is_allowed:
            check_cost(preamble, header, "chunk")
        else:
            with pytest.raises(InvalidInput, match="its files share bytes: 15 bytes in a payload of 5"):
                check_cost(preamble, header, "chunk")


def test_folders_are_counted_once_and_the_root_never() -> None:
    found = folders_above([b"", b"a", b"b/c", b"b/d", b"b/e/f"], 5)
    assert found.paths == {b"b", b"b/e"} and found.path_bytes == 4


def test_the_header_of_an_attached_chunk_is_short() -> None:
    def preamble(header_length: int, is_attached: bool) -> Preamble:
        return Preamble(CHUNK_ID, header_length, 5, bytes(32), bytes(32), is_attached)

    check_attached(preamble(ATTACHED_HEADER_BYTES_MAX, True), "chunk")
    check_attached(preamble(ATTACHED_HEADER_BYTES_MAX + 1, False), "chunk")
    with pytest.raises(
        InvalidInput, match="header of 4,194,305 bytes, limit 4,194,304 for an attached chunk"
    ):
        check_attached(preamble(ATTACHED_HEADER_BYTES_MAX + 1, True), "chunk")
