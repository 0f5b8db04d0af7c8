import re

import numpy as np
import pytest

from dieselfs.arrays import Nodes
from dieselfs.errors import InvalidInput
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.listed import ListedOrder
from dieselfs.shuffle.plan import Plan, Share
from dieselfs.shuffle.share_name import ShareName
from dieselfs.shuffle.skips import Skips
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec
from tests.support.dataset import TreeEntry, pack_entries

CURSOR = Cursor("ab" * 12, PlanSpec(1, 2, 3, Skips([range(7, 9)])), 4)
SNAPSHOT = pack_entries(
    [TreeEntry(b"a,b/%d" % n, 0o100644, n, b"x" * 30) for n in range(50)], chunk_bytes=200
).snapshot


class Drawn:
    """Draws the first file every time."""

    def drawn(self, spec: PlanSpec, files: Nodes) -> ListedOrder:
        return ListedOrder(SNAPSHOT, np.repeat(files[:1], len(files)))


def test_every_key() -> None:
    name = (
        b"seed=18446744073709551615,epoch=2,group=0,rank=3,world=8,batch=1024,start=77,worker=1,workers=2,"
        b"drop_last=1,null=1,log=1,skip=100-199+300-300,policy=chunkwise"
    )
    skips = Skips([range(100, 200), range(300, 301)])
    assert ShareName.parse(name) == ShareName(
        PlanSpec((1 << 64) - 1, 2, 0, skips, policy="chunkwise"),
        ReaderSpec(3, 8, 1024, 77, 1, 2, True),
        is_null=True,
        is_log=True,
    )


def test_a_folder_is_written_as_in_an_address() -> None:
    assert ShareName.parse(b"folder=train%2Fa%2C%3D%25%FF,seed=1").plan == PlanSpec(
        1, folder=b"train/a,=%\xff"
    )
    assert ShareName.parse(b"folder=").plan.folder == b""
    with pytest.raises(InvalidInput, match=r"folder=\.\.: "):
        ShareName.parse(b"folder=..")


def test_any_subset_in_any_order() -> None:
    expected = ShareName(PlanSpec(epoch=5), ReaderSpec(world=8))
    assert ShareName.parse(b"world=8,epoch=5") == ShareName.parse(b"epoch=5,world=8") == expected


def test_a_cursor_gives_the_order_and_the_start() -> None:
    assert ShareName.parse(f"rank=1,folder=f,world=2,cursor={CURSOR}".encode()) == ShareName(
        PlanSpec(1, 2, 3, CURSOR.spec.skips, b"f"), ReaderSpec(1, 2, start=4), cursor=CURSOR
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (b"sed=1", "'sed=1' is not a KEY=VALUE of a shuffle; the keys are seed"),
        (b"seed", "'seed' is not a KEY=VALUE"),
        (b"seed=1,", "'' is not a KEY=VALUE"),
        (b"seed=\xff", "write a number"),
        (b"seed=", "write a number"),
        (b"seed=-1", "write a number"),
        (b"seed= 1", "write a number"),
        ("seed=\N{ARABIC-INDIC DIGIT ONE}".encode(), "write a number"),
        (b"seed=" + b"1" * 100, "write a number"),
        (b"seed=18446744073709551616", "seed is 18446744073709551616: give a whole number from 0 to"),
        (b"rank=8,world=8", "rank is 8: give a whole number from 0 to 7"),
        (b"drop_last=true", "write 0 or 1"),
        (b"skip=5", "write the first and the last position"),
        (b"skip=1-2+", "write the first and the last position"),
        (b"skip=" + b"+".join(b"%d-%d" % (10 * i, 10 * i) for i in range(9)), "9 ranges"),
        (b"seed=1,seed=1", "seed is given twice"),
        (b"cursor=order1", "cursor=order1: 'order1' is not a cursor"),
        (
            f"cursor={CURSOR},start=4,seed=1".encode(),
            "the cursor already contains seed, start: leave out these keys",
        ),
    ],
)
def test_what_is_wrong_is_said(name: bytes, reason: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(reason)):
        ShareName.parse(name)


@pytest.mark.parametrize("folder", [b"", b"a,b"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_name_of_a_share_leads_to_it(folder: bytes, drop_last: bool) -> None:
    plan = Plan(SNAPSHOT, PlanSpec(1, 2, 3, Skips([range(2)]), folder))
    for reader in (ReaderSpec(1, 3, 7, 11, 1, 2, drop_last), ReaderSpec(drop_last=drop_last)):
        name = str(ShareName.of(plan.share(*_fields(reader))))
        share = ShareName.parse(name.encode()).share(lambda spec: Plan(SNAPSHOT, spec))
        assert share.plan.spec == plan.spec
        assert np.array_equal(share.positions(), plan.share(*_fields(reader)).positions())
    with pytest.raises(InvalidInput, match="the cursor is of snapshot"):
        asked = ShareName.parse(f"cursor={CURSOR}".encode())
        asked.share(lambda spec: Plan(SNAPSHOT, PlanSpec(spec.seed, spec.epoch, spec.group_chunks)))


def test_the_name_of_a_share_of_a_drawn_order_is_what_it_was_drawn_for() -> None:
    spec, reader = PlanSpec(1, 2, 3, folder=b"a,b", policy="importance"), ReaderSpec(1, 3, 7, 1)
    plan = Plan(SNAPSHOT, spec, losses=Drawn())
    assert not plan.has_cursors
    name = ShareName.parse(str(ShareName.of(Share(plan, reader))).encode())
    assert (name.plan, name.reader, name.cursor) == (spec, reader, None)


def _fields(reader: ReaderSpec) -> tuple[int, int, int | None, int, int, int, bool]:
    return (
        reader.rank,
        reader.world,
        reader.batch,
        reader.start,
        reader.worker,
        reader.workers,
        reader.drop_last,
    )


def test_the_nodes_of_a_local_assignment() -> None:
    name = ShareName.parse(b"rank=3,world=8,batch=8,nodes=node[01-03+07]")
    assert name.reader == ReaderSpec(3, 8, 8, nodes=("node01", "node02", "node03", "node07"))
    assert (
        name.plan.group_chunks == 100 and ShareName.parse(b"world=2,nodes=a,group=7").plan.group_chunks == 7
    )
    share = Share(Plan(SNAPSHOT, name.plan), name.reader)
    assert str(ShareName.of(share)).endswith("nodes=node[01-03]+node07,null=1")
    assert ShareName.parse(str(ShareName.of(share)).encode()).reader == name.reader
    with pytest.raises(InvalidInput, match="is not a list of nodes"):
        ShareName.parse(b"nodes=a[")
