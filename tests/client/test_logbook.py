import os
from pathlib import Path

import pytest

from dieselfs.errors import InvalidInput
from dieselfs.shuffle.order import Layout
from dieselfs.shuffle.plan import Plan
from dieselfs_client.logbook import Entries, Logbook, Reading
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    return pack_entries([TreeEntry(b"f/%d" % n, 0o100644, 0, b"x") for n in range(500)], chunk_bytes=20)


@pytest.mark.parametrize("folder", [b"", b"f"])
def test_the_next_daemon_reads_what_this_one_wrote(packed: PackedDataset, folder: bytes) -> None:
    layout = Layout.of(packed.snapshot, folder)
    share = Plan(packed.snapshot, 3, 1, 5, [range(4, 9)], layout).share(1, 2, 64, 100, 1, 3, drop_last=True)
    book = Logbook()
    book.write(Entries([Reading.of(share, 321)], [3, 5]))
    found = Logbook(os.dup(book.descriptor)).read()
    assert found.kept == [3, 5]
    again, position = found.readings[0].resumed(packed.snapshot, layout)
    assert position == 321
    assert again.positions().tolist() == share.positions().tolist()
    assert again.nodes().tolist() == share.nodes().tolist()


def test_a_book_is_replaced_by_a_shorter_one(packed: PackedDataset) -> None:
    book = Logbook()
    book.write(Entries([], list(range(1000))))
    book.write(Entries([], [1]))
    assert book.read() == Entries([], [1], [])


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"readings": [{}], "kept": []}', b"\xff", b'{"kept": [1]}']
)
def test_half_a_book_is_none(content: bytes) -> None:
    book = Logbook()
    os.pwrite(book.descriptor, content, 0)
    assert book.read() == Entries()


def test_a_book_of_another_snapshot_is_refused(packed: PackedDataset, tmp_path: Path) -> None:
    reading = Reading.of(Plan(packed.snapshot).share(), 7)
    other = pack_entries([TreeEntry(b"other", 0o100644, 0, b"x")]).snapshot
    with pytest.raises(InvalidInput, match="snapshot"):
        reading.resumed(other, Layout.of(other))
