import os
from functools import partial

import pytest

from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.share_name import ShareName
from dieselfs.shuffle.skips import Skips
from dieselfs.shuffle.spec import PlanSpec
from dieselfs_client.supervision.handover_state import HandoverEntries, HandoverState, PlanProgress
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    return pack_entries([TreeEntry(b"f/%d" % n, 0o100644, 0, b"x") for n in range(500)], chunk_bytes=20)


@pytest.mark.parametrize("folder", [b"", b"f"])
def test_the_next_daemon_reads_what_this_one_wrote(packed: PackedDataset, folder: bytes) -> None:
    spec = PlanSpec(3, 1, 5, Skips([range(4, 9)]), folder)
    share = Plan(packed.snapshot, spec).share(1, 2, 64, 100, 1, 3, drop_last=True)
    book = HandoverState()
    book.write(HandoverEntries([PlanProgress(str(ShareName.of(share)), 321)], [3, 5]))
    found = HandoverState(os.dup(book.descriptor)).read()
    assert found.pinned == [3, 5]
    assert found.readings[0].position == 321
    again = ShareName.parse(found.readings[0].name.encode()).share(partial(Plan, packed.snapshot))
    assert again.positions().tolist() == share.positions().tolist()
    assert again.nodes().tolist() == share.nodes().tolist()


def test_a_book_is_replaced_by_a_shorter_one(packed: PackedDataset) -> None:
    book = HandoverState()
    book.write(HandoverEntries([], list(range(1000))))
    book.write(HandoverEntries([], [1]))
    assert book.read() == HandoverEntries([], [1], [])


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"readings": [{}], "pinned": []}', b"\xff", b'{"pinned": [1]}']
)
def test_half_a_book_is_none(content: bytes) -> None:
    book = HandoverState()
    os.pwrite(book.descriptor, content, 0)
    assert book.read() == HandoverEntries()
