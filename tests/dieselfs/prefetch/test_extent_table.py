from collections import defaultdict

import numpy as np
import pytest

from dieselfs import arrays
from dieselfs.prefetch.extent_table import PAGE_BYTES, ExtentTable
from dieselfs.shuffle.order import Layout
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries

CHUNK_BYTES = 16 * 1024


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    """Files of one extent, of none and of several; a folder and a link among them."""
    sizes = [0, 1, 4095, 4096, 4097, 50_000, 100, 7000, 0, 33_000, 5]
    entries = [TreeEntry(b"folder", 0o40755, 0), TreeEntry(b"link", 0o120777, 0, b"0")]
    entries += [TreeEntry(b"%02d" % n, 0o100644, 0, bytes([n]) * size) for n, size in enumerate(sizes)]
    return pack_entries(entries, chunk_bytes=CHUNK_BYTES)


def files(packed: PackedDataset) -> list[int]:
    return [node for node in range(len(packed.snapshot)) if packed.snapshot.stat(node).is_file]


def test_the_extents_of_files_are_in_order(packed: PackedDataset) -> None:
    nodes = files(packed)[::-1]
    extents = ExtentTable(packed.snapshot).of_files(np.array(nodes))
    assert extents.extents() == [extent for node in nodes for extent in packed.snapshot.extents(node)]
    assert extents.nodes.tolist() == [node for node in nodes for _ in packed.snapshot.extents(node)]
    assert extents.sizes.tolist() == [packed.snapshot.size(node) for node in extents.nodes.tolist()]


def test_the_extents_of_a_chunk_are_all_that_lie_in_it(packed: PackedDataset) -> None:
    by_chunk = defaultdict(list)
    for node in files(packed):
        for extent in packed.snapshot.extents(node):
            by_chunk[extent.chunk].append((extent.offset, node, extent))
    table = ExtentTable(packed.snapshot)
    assert packed.snapshot.chunk_count > 3
    for chunk in range(packed.snapshot.chunk_count):
        extents = table.of_chunk(chunk)
        expected = sorted(by_chunk[chunk], key=lambda entry: entry[0])
        assert [(e.offset, n, e) for n, e in zip(extents.nodes.tolist(), extents.extents(), strict=True)] == [
            entry for entry in expected if entry[2].length
        ]


def test_tables_in_blocks_are_the_same(packed: PackedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> list[object]:
        table, layout = ExtentTable(packed.snapshot), Layout.of(packed.snapshot)
        chunks = range(packed.snapshot.chunk_count)
        extents = [table.of_chunk(chunk).extents() for chunk in chunks]
        files = layout.files_of(np.arange(len(layout.counts))).tolist()
        return [extents, files, layout.counts.tolist(), table.chunk_page_bytes.tolist()]

    whole = found()
    monkeypatch.setattr(arrays, "AT_ONCE", 3)
    assert found() == whole


def test_extents_by_chunk_begin_with_the_chunk_that_is_wanted_first(packed: PackedDataset) -> None:
    nodes = files(packed)[::-1]
    extents = ExtentTable(packed.snapshot).of_files(np.array(nodes))
    groups = list(extents.by_chunk())
    assert [chunk for chunk, _ in groups] == list(dict.fromkeys(extents.chunks.tolist()))
    for chunk, of_chunk in groups:
        assert set(of_chunk.chunks.tolist()) == {chunk}
        assert of_chunk.offsets.tolist() == sorted(of_chunk.offsets.tolist())
    assert sum(len(of_chunk) for _, of_chunk in groups) == len(extents)
    assert list(extents[np.zeros(len(extents), np.bool_)].by_chunk()) == []


def test_what_files_take_in_the_page_cache(packed: PackedDataset) -> None:
    table, nodes = ExtentTable(packed.snapshot), np.array(files(packed))
    each = [-(-packed.snapshot.size(node) // PAGE_BYTES) * PAGE_BYTES for node in nodes.tolist()]
    assert table.page_bytes(nodes).tolist() == each
    assert table.total_page_bytes == sum(each)
    assert table.of_files(nodes).page_bytes() >= sum(each)
