"""The digest of a tree: the same for a folder and for any dataset made of it, another for any other tree."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs.errors import Damaged, InvalidInput, NotFound
from dieselfs.snapshot.reader import ExtentRef
from dieselfs.transfer.tree_digest import digest_of_folder, digest_of_snapshot
from tests.support.dataset import MemoryChunkSource, PackedDataset, TreeEntry, pack_entries, pack_tree


class Chunks:
    """The chunks of a packed dataset, as the library reads them."""

    def __init__(self, packed: PackedDataset) -> None:
        self.source: MemoryChunkSource = packed.source()

    def fetch_chunk(self, chunk: int) -> bytes:
        return self.source.fetch_chunk(chunk)

    def fetch_extents(self, chunk: int, extents: list[ExtentRef]) -> list[bytes]:
        return [self.source.fetch_extent(extent) for extent in extents]


def digest_of(packed: PackedDataset, is_quick: bool = False) -> str:
    return digest_of_snapshot(packed.snapshot, Chunks(packed), is_quick).hex()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name, content in (
        ("b/c", b"x" * 5000),
        ("b.txt", b"dot sorts before slash"),
        ("b/a", b""),
        ("z", b"z"),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    (root / "empty").mkdir()
    (root / "link").symlink_to("b/c")
    return root


@pytest.mark.parametrize("chunk_bytes", [1, 7, 1000, 1 << 20])
def test_a_folder_and_datasets_made_of_it_have_one_digest(folder: Path, chunk_bytes: int) -> None:
    expected = digest_of_folder(str(folder))
    assert (expected.files, expected.folders, expected.links) == (4, 2, 1)
    packed = pack_tree(folder, chunk_bytes=chunk_bytes)
    assert digest_of(packed) == digest_of(packed, is_quick=True) == expected.hex()


def test_the_definition(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(b"meow\n")
    (tmp_path / "l").symlink_to("d")
    expected = blake3(b"dieselfs tree 1\0")
    expected.update(b"\2" + (1).to_bytes(4, "little") + bytes(8) + b"d")
    expected.update(b"\1" + (3).to_bytes(4, "little") + (5).to_bytes(8, "little") + b"d/f")
    expected.update(blake3(b"meow\n").digest(16))
    expected.update(b"\3" + (1).to_bytes(4, "little") + (1).to_bytes(8, "little") + b"l" + b"d")
    assert digest_of_folder(str(tmp_path)).hex() == expected.hexdigest()


def test_each_change_of_a_tree_changes_its_digest(folder: Path) -> None:
    seen = {digest_of_folder(str(folder)).hex()}

    def note() -> None:
        digest = digest_of_folder(str(folder)).hex()
        assert digest not in seen
        seen.add(digest)

    (folder / "z").write_bytes(b"y")
    note()
    (folder / "z").rename(folder / "y")
    note()
    (folder / "empty").rmdir()
    note()
    (folder / "empty").write_bytes(b"")
    note()
    (folder / "link").unlink()
    (folder / "link").symlink_to("b/a")
    note()


def test_modes_and_times_do_not_count(folder: Path) -> None:
    before = digest_of_folder(str(folder)).hex()
    (folder / "z").chmod(0o600)
    os.utime(folder / "b", ns=(1, 1))
    assert digest_of_folder(str(folder)).hex() == before


@settings(max_examples=50)
@given(
    st.dictionaries(
        st.sampled_from([b"a", b"b/c", b"b/d", b"b.e", b"f/g/h"]), st.binary(max_size=40), max_size=5
    ),
    st.integers(1, 50),
    st.randoms(use_true_random=False),
)
def test_no_order_of_writing_and_no_size_of_chunks_counts(
    files: dict[bytes, bytes], chunk_bytes: int, chance: object
) -> None:
    entries = [TreeEntry(path, 0o100644, 0, content) for path, content in files.items()]
    expected = digest_of(pack_entries(entries))
    getattr(chance, "shuffle")(entries)  # noqa: B009  # hypothesis gives a Random
    packed = pack_entries(entries, chunk_bytes=chunk_bytes)
    assert digest_of(packed) == digest_of(packed, is_quick=True) == expected


def test_an_altered_byte_is_found_in_every_chunk(folder: Path) -> None:
    packed = pack_tree(folder, chunk_bytes=1000)
    for chunk in range(packed.snapshot.chunk_count):
        chunks = Chunks(packed)
        payload = chunks.source.payloads[chunk]
        for place in range(0, len(payload), 97):
            payload[place] ^= 1
            with pytest.raises(Damaged):
                digest_of_snapshot(packed.snapshot, chunks)
            payload[place] ^= 1


def test_what_is_no_file_is_left_out_and_named(tmp_path: Path) -> None:
    empty = digest_of_folder(str(tmp_path)).hex()
    os.mkfifo(tmp_path / "pipe")
    tree = digest_of_folder(str(tmp_path))
    assert (tree.skipped, tree.hex()) == ([b"pipe"], empty)


def test_a_folder_nested_deeper_than_calls_of_python() -> None:
    # Not in `tmp_path`: shutil.rmtree, with which pytest removes that, does not reach so deep.
    root = tempfile.mkdtemp()
    try:
        place = os.open(root, os.O_RDONLY)
        for _ in range(1_200):
            os.mkdir("d", dir_fd=place)
            inside = os.open("d", os.O_RDONLY, dir_fd=place)
            os.close(place)
            place = inside
        os.close(place)
        assert digest_of_folder(root).folders == 1_200
    finally:
        subprocess.run(["rm", "-rf", root], check=True)


def test_what_cannot_be_read_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="none: no such file or folder"):
        digest_of_folder(str(tmp_path / "none"))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidInput, match="not a folder"):
        digest_of_folder(str(tmp_path / "file"))
