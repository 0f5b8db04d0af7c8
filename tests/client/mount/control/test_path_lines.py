import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.mount.control.path_lines import LINES_PER_BLOCK, NEWLINE, NUL, PathLines, unwritable
from tests.support.snapshots import SOURCE, file_of, snapshot_bytes

FILES = 3 * LINES_PER_BLOCK + 7
TREE = {b"folder/" + b"n" * (number % 37) + b"%d" % number: file_of() for number in range(FILES)}
SNAPSHOT = Snapshot(snapshot_bytes(TREE), SOURCE)
NODES = np.array(random.Random(5).sample([SNAPSHOT.require(path) for path in TREE], FILES), np.uint32)
TEXT = b"".join(SNAPSHOT.path(node) + b"\n" for node in NODES.tolist())
LINES = PathLines(SNAPSHOT, NODES, NEWLINE)


def test_the_text_is_a_line_for_each_path() -> None:
    assert LINES.size_bytes == len(TEXT)
    assert LINES.read(0, len(TEXT)) == TEXT
    assert LINES.read(0, 1 << 30) == TEXT


@given(st.integers(0, len(TEXT) + 100), st.integers(0, 100_000))
def test_any_part_can_be_read(offset: int, size: int) -> None:
    assert LINES.read(offset, size) == TEXT[offset : offset + size]


def test_parts_at_the_edges_of_blocks() -> None:
    edge = sum(len(line) + 1 for line in TEXT.split(b"\n")[:LINES_PER_BLOCK])
    for offset in range(edge - 3, edge + 3):
        for size in (1, 2, 3, 70):
            assert LINES.read(offset, size) == TEXT[offset : offset + size]


def test_nul_instead_of_newline() -> None:
    lines = PathLines(SNAPSHOT, NODES[:3], NUL)
    assert lines.read(0, lines.size_bytes).split(b"\0") == [*map(SNAPSHOT.path, NODES[:3].tolist()), b""]


def test_no_paths_at_all() -> None:
    lines = PathLines(SNAPSHOT, NODES[:0], NEWLINE)
    assert (lines.size_bytes, lines.read(0, 100)) == (0, b"")


def test_the_first_file_of_a_dataset() -> None:
    snapshot = Snapshot(snapshot_bytes({b"a": file_of()}), SOURCE)
    assert PathLines(snapshot, np.array([1], np.uint32), NEWLINE).read(0, 10) == b"a\n"


def test_a_name_that_cannot_stand_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dieselfs_client.mount.control.path_lines.SCAN_BYTES", 7)
    tree = {path: file_of() for path in (b"a", b"b\nb/c", b"plain", b"z\n")}
    snapshot = Snapshot(snapshot_bytes(tree), SOURCE)

    def unwritable_of(*paths: bytes) -> bytes | None:
        return unwritable(snapshot, np.array([snapshot.require(path) for path in paths], np.uint32))

    assert unwritable_of(b"a", b"plain") is None
    assert unwritable_of(b"plain", b"z\n", b"a") == b"z\n"
    assert unwritable_of(b"plain", b"b\nb/c") == b"b\nb/c", "a newline in a folder counts too"
