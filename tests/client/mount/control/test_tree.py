import json
import random
import stat
from threading import Event
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.errors import InvalidInput, NotFound
from dieselfs.shuffle.plan import Plan, Share
from dieselfs.shuffle.share_name import ShareName
from dieselfs.shuffle.skips import Skips
from dieselfs.shuffle.spec import PlanSpec
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.mount.control.tree import (
    LINES_PER_BLOCK,
    NEWLINE,
    NUL,
    SHUFFLE_INODE,
    ControlTree,
    PathLines,
    unwritable,
)
from dieselfs_client.mount.reading.core import CONTROL_INODE, ROOT_INODE
from dieselfs_client.mount.reading.error_log import ErrorLog, Refused
from tests.support.control import SimpleContents
from tests.support.dataset import TreeEntry, pack_entries
from tests.support.snapshots import SOURCE, file_of, snapshot_bytes

SNAPSHOT = Snapshot(snapshot_bytes({b"f/%02d" % number: file_of() for number in range(50)}), SOURCE)
READ_BYTES = 1 << 20
PATIENCE_S = 10.0
AT_NS = 1_700_000_000_000_000_000


@pytest.fixture
def contents() -> SimpleContents:
    return SimpleContents(SNAPSHOT)


@pytest.fixture
def tree(contents: SimpleContents) -> ControlTree:
    return ControlTree(SNAPSHOT, contents, ErrorLog(), clock_ns=lambda: AT_NS)


def read(tree: ControlTree, name: bytes) -> bytes:
    found = tree.lookup(CONTROL_INODE, name)
    assert found is not None
    data = tree.at_once(found.inode, 0, READ_BYTES)
    assert data is not None and len(data) == found.size
    return data


# -- texts --------------------------------------------------------------------------------------------------


def test_texts_are_what_the_contents_say(tree: ControlTree, contents: SimpleContents) -> None:
    contents.counts["reads"] = 5
    contents.texts += ["one", "two"]
    tree.errors.note("train/a", "gone")
    assert json.loads(read(tree, b"stats")) == {"reads": 5}
    assert json.loads(read(tree, b"info")) == {"dataset": "pets"}
    assert read(tree, b"cursor") == b"one\ntwo\n"
    assert read(tree, b"errors").endswith(b"\ttrain/a\tgone\n")


def test_a_file_keeps_its_content_whatever_happens_meanwhile(
    tree: ControlTree, contents: SimpleContents
) -> None:
    before = tree.lookup(CONTROL_INODE, b"stats")
    contents.counts["reads"] = 1_000_000
    after = tree.lookup(CONTROL_INODE, b"stats")
    assert before is not None and after is not None
    assert before.inode != after.inode
    assert tree.at_once(before.inode, 0, READ_BYTES) == b"{}\n"
    assert tree.attributes(before.inode) == before
    assert json.loads(tree.at_once(after.inode, 0, READ_BYTES) or b"") == {"reads": 1_000_000}
    assert tree.at_once(after.inode, after.size - 2, READ_BYTES) == b"}\n"
    assert tree.at_once(after.inode, after.size, READ_BYTES) == b""


def test_attributes(tree: ControlTree) -> None:
    found = tree.lookup(CONTROL_INODE, b"info")
    errors = tree.lookup(CONTROL_INODE, b"errors")
    assert found is not None and errors is not None
    assert (found.mode, found.mtime_ns, found.blocks) == (stat.S_IFREG | 0o444, AT_NS, 1)
    assert (errors.mode, errors.size, errors.blocks) == (stat.S_IFREG | 0o400, 0, 0), "paths may be secret"
    for inode in (CONTROL_INODE, SHUFFLE_INODE):
        assert tree.attributes(inode).mode == stat.S_IFDIR | 0o555


# -- folders ------------------------------------------------------------------------------------------------


def test_names(tree: ControlTree) -> None:
    assert tree.lookup(CONTROL_INODE, b"nothing") is None
    for folder, name, inode in (
        (CONTROL_INODE, b"shuffle", SHUFFLE_INODE),
        (CONTROL_INODE, b".", CONTROL_INODE),
        (SHUFFLE_INODE, b".", SHUFFLE_INODE),
        (SHUFFLE_INODE, b"..", CONTROL_INODE),
    ):
        assert tree.lookup(folder, name) == tree.attributes(inode)


def test_a_listing(tree: ControlTree) -> None:
    nodes = tree.child_nodes(CONTROL_INODE)
    assert tree.listed(nodes) == nodes
    listed = tree.siblings(nodes)
    assert listed.names == [b"cursor", b"errors", b"info", b"stats", b"scores", b"shuffle", b"warm"]
    assert tree.name_lengths(nodes).tolist() == [6, 6, 4, 5, 6, 7, 4]
    assert not listed.is_cacheable, "or the kernel would never look one up again"
    assert len(set(listed.inodes.tolist())) == 7
    assert tree.siblings(nodes[5:]).names == [b"shuffle", b"warm"]
    assert len(tree.child_nodes(SHUFFLE_INODE)) == 0
    dots = tree.dots(CONTROL_INODE)
    assert (dots.names, dots.inodes.tolist()) == ([b".", b".."], [CONTROL_INODE, ROOT_INODE])


def test_what_the_type_does_not_allow(tree: ControlTree) -> None:
    found = tree.lookup(CONTROL_INODE, b"info")
    assert found is not None
    with pytest.raises(InvalidInput):
        tree.child_nodes(found.inode)
    with pytest.raises(InvalidInput):
        tree.lookup(found.inode, b"name")
    with pytest.raises(InvalidInput):
        tree.at_once(CONTROL_INODE, 0, READ_BYTES)


# -- inodes -------------------------------------------------------------------------------------------------


def test_what_the_kernel_forgets_is_gone(tree: ControlTree) -> None:
    found = tree.lookup(CONTROL_INODE, b"info")
    assert found is not None
    tree.forget(found.inode, 1)
    tree.forget(found.inode, 1)
    with pytest.raises(NotFound):
        tree.attributes(found.inode)
    with pytest.raises(NotFound):
        tree.at_once(found.inode, 0, READ_BYTES)
    tree.forget(CONTROL_INODE, 5)
    assert tree.attributes(CONTROL_INODE).inode == CONTROL_INODE


def test_only_so_many_files_live(contents: SimpleContents) -> None:
    tree = ControlTree(SNAPSHOT, contents, ErrorLog(), files_max=3)
    found = [tree.lookup(CONTROL_INODE, b"info") for _ in range(5)]
    inodes = [attributes.inode for attributes in found if attributes is not None]
    for inode in inodes[:2]:
        with pytest.raises(NotFound):
            tree.attributes(inode)
    assert [tree.attributes(inode) for inode in inodes[2:]] == found[2:]


def test_a_daemon_that_takes_over_gives_out_no_inode_again(contents: SimpleContents) -> None:
    """The kernel may still read the old one's."""
    inodes = set()
    for started_ns in (AT_NS, AT_NS + 1_000_000):
        tree = ControlTree(SNAPSHOT, contents, ErrorLog(), clock_ns=lambda now=started_ns: now)  # type: ignore[misc]  # a default argument is no part of the type
        inodes |= {found.inode for _ in range(100) if (found := tree.lookup(CONTROL_INODE, b"info"))}
    assert len(inodes) == 200
    assert max(inodes) < 1 << 63


async def test_a_daemon_that_takes_over_goes_on_with_the_files(contents: SimpleContents) -> None:
    told: list[int] = []
    tree = ControlTree(SNAPSHOT, contents, ErrorLog(), on_new_file=lambda: told.append(len(told)))
    text = tree.lookup(CONTROL_INODE, b"info")
    order = await tree.lookup_shuffle(b"seed=3,epoch=1")
    assert text is not None and len(told) == 2
    content = [await tree.fetch(found.inode, 0, READ_BYTES) for found in (text, order)]
    heir = ControlTree(SNAPSHOT, contents, ErrorLog())
    heir.inherit(tree.files())
    assert [heir.attributes(found.inode) for found in (text, order)] == [text, order]
    assert heir.at_once(text.inode, 0, READ_BYTES) == content[0]
    assert heir.at_once(order.inode, 0, 10) is None
    assert await heir.fetch(order.inode, 0, READ_BYTES) == content[1]
    assert heir.at_once(order.inode, 0, 10) == content[1][:10]
    heir.forget(order.inode, 1)
    with pytest.raises(NotFound):
        heir.attributes(order.inode)


# -- shuffles -----------------------------------------------------------------------------------------------


async def lines(tree: ControlTree, name: bytes) -> list[bytes]:
    found = await tree.lookup_shuffle(name)
    text = await tree.fetch(found.inode, 0, READ_BYTES)
    assert len(text) == found.size
    return text.splitlines()


def expected(plan: Plan, **share: Any) -> list[bytes]:
    return [path.encode() for path in plan.share(**share).paths]


async def test_a_shuffle_is_the_share_of_its_reader(tree: ControlTree) -> None:
    assert await lines(tree, b"seed=3,epoch=4,group=1,rank=1,world=4,batch=8,start=5") == expected(
        Plan(SNAPSHOT, PlanSpec(3, 4, 1)), rank=1, world=4, batch=8, start=5
    )
    assert await lines(tree, b"skip=0-9+20-29") == expected(
        Plan(SNAPSHOT, PlanSpec(skips=Skips([range(10), range(20, 30)])))
    )
    assert await lines(tree, b"worker=1,workers=2,batch=8,drop_last=1") == expected(
        Plan(SNAPSHOT, PlanSpec()), worker=1, workers=2, batch=8, drop_last=1
    )


async def test_a_shuffle_from_a_cursor(tree: ControlTree) -> None:
    plan = Plan(SNAPSHOT, PlanSpec(1, 2, 0, Skips([range(3)])))
    name = f"cursor={plan.cursor(11)},rank=1,world=2".encode()
    assert await lines(tree, name) == expected(plan, start=11, rank=1, world=2)


async def test_a_shuffle_of_a_folder() -> None:
    files = {b"%b/%02d" % (folder, number): file_of() for folder in (b"f", b"g") for number in range(20)}
    snapshot = Snapshot(snapshot_bytes(files), SOURCE)
    tree = ControlTree(snapshot, SimpleContents(snapshot), ErrorLog())
    plan = Plan(snapshot, PlanSpec(1, folder=b"g"))
    assert await lines(tree, b"folder=g,seed=1,start=2") == expected(plan, start=2)
    assert await lines(tree, f"folder=g,cursor={plan.cursor(3)}".encode()) == expected(plan, start=3)
    with pytest.raises(InvalidInput, match="the cursor is of snapshot"):
        await tree.lookup_shuffle(f"cursor={plan.cursor(3)}".encode())
    with pytest.raises(InvalidInput, match="nowhere: no such file or folder"):
        await tree.lookup_shuffle(b"folder=nowhere")
    assert tree.errors.text().count("folder=nowhere\t") == 1


async def test_a_cursor_of_another_dataset_is_refused(tree: ControlTree) -> None:
    other = Plan(Snapshot(snapshot_bytes({b"a": file_of()}), SOURCE), PlanSpec())
    with pytest.raises(InvalidInput, match="the cursor is of snapshot"):
        await tree.lookup_shuffle(f"cursor={other.cursor(0)}".encode())


async def test_the_reason_of_a_refusal_stands_in_errors(tree: ControlTree) -> None:
    with pytest.raises(InvalidInput):
        await tree.lookup_shuffle(b"sed=1")
    with pytest.raises(InvalidInput):
        await tree.lookup_shuffle(b"rank=8,world=8")
    first, second = tree.errors.text().splitlines()
    assert ".dieselfs/shuffle/sed=1\t'sed=1' is not a KEY=VALUE" in first
    assert ".dieselfs/shuffle/rank=8,world=8\trank is 8: " in second


async def test_only_reading_from_the_beginning_declares_and_only_once(
    tree: ControlTree, contents: SimpleContents
) -> None:
    found = await tree.lookup_shuffle(b"rank=1,world=2")
    tree.attributes(found.inode)
    tree.at_once(found.inode, 10, 100)
    assert contents.declared == []
    assert tree.at_once(found.inode, 0, 100) is None, "others have their turn when it was declared"
    for _ in range(2):
        await tree.fetch(found.inode, 0, 100)
    assert tree.at_once(found.inode, 0, 100)
    (share,) = contents.declared
    assert (share.rank, share.world, share.plan.spec.seed) == (1, 2, 0)


async def test_a_name_with_a_newline_wants_null(contents: SimpleContents) -> None:
    snapshot = Snapshot(snapshot_bytes({b"a": file_of(), b"b\nc": file_of()}), SOURCE)
    tree = ControlTree(snapshot, SimpleContents(snapshot), ErrorLog())
    with pytest.raises(InvalidInput, match=r"b\\nc contains a newline: add null=1"):
        await tree.lookup_shuffle(b"seed=1")
    found = await tree.lookup_shuffle(b"seed=1,null=1")
    assert sorted((await tree.fetch(found.inode, 0, READ_BYTES)).split(b"\0")) == [b"", b"a", b"b\nc"]


async def test_who_gives_up_leaves_no_file(contents: SimpleContents) -> None:
    tree = ControlTree(SNAPSHOT, contents, ErrorLog(), files_max=1)
    kept = tree.lookup(CONTROL_INODE, b"info")
    assert kept is not None
    with trio.CancelScope() as scope:
        scope.cancel()
        await tree.lookup_shuffle(b"seed=1")
    assert tree.attributes(kept.inode) == kept


async def test_orders_that_wait_leave_threads_to_others(
    contents: SimpleContents, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    released = Event()

    def share(asked: ShareName) -> Share:
        released.wait(PATIENCE_S)
        raise NotFound("no order")

    async def look(seed: int) -> None:
        with pytest.raises(InvalidInput, match="no order"):
            await control.lookup_shuffle(b"seed=%d" % seed)

    monkeypatch.setattr(contents, "share", share)
    control, threads = (
        ControlTree(SNAPSHOT, contents, ErrorLog()),
        trio.to_thread.current_default_thread_limiter(),
    )
    try:
        for seed in range(2 * int(threads.total_tokens)):
            nursery.start_soon(look, seed)
        await trio.testing.wait_all_tasks_blocked()
        assert threads.available_tokens == threads.total_tokens
    finally:
        released.set()


async def test_the_end_of_an_order_comes_when_its_first_files_can_be_read_fast(
    tree: ControlTree, contents: SimpleContents, nursery: trio.Nursery
) -> None:
    found = await tree.lookup_shuffle(b"seed=1")
    contents.is_ahead = trio.Event()
    await tree.fetch(found.inode, 0, found.size - 2)
    assert tree.at_once(found.inode, found.size - 2, 1) is None, "tasks have their turn meanwhile"
    assert tree.at_once(found.inode, found.size - 1, 1) is None
    received: list[bytes] = []

    async def read_end() -> None:
        received.append(await tree.fetch(found.inode, found.size - 1, 1))

    nursery.start_soon(read_end)
    await trio.testing.wait_all_tasks_blocked()
    assert received == []
    contents.is_ahead.set()
    await trio.testing.wait_all_tasks_blocked()
    assert received == [b"\n"]
    assert tree.at_once(found.inode, found.size - 2, 1) is not None


# -- how warm it is ------------------------------------------------------------------------------------------


async def test_reading_how_warm_it_is_starts_nothing(tree: ControlTree, contents: SimpleContents) -> None:
    assert tree.takes_time(CONTROL_INODE, b"warm")
    found = await tree.lookup_later(CONTROL_INODE, b"warm")
    assert json.loads(await tree.fetch(found.inode, 0, READ_BYTES)) == {"warmed": 0}
    assert contents.warmed == 0


async def test_a_read_of_warm_now_starts_warming_once(tree: ControlTree, contents: SimpleContents) -> None:
    assert tree.takes_time(CONTROL_INODE, b"warm-now")
    found = await tree.lookup_later(CONTROL_INODE, b"warm-now")
    assert contents.warmed == 0, "to look is not to read"
    data = await tree.fetch(found.inode, 0, READ_BYTES)
    assert json.loads(data) == {"warmed": 0} and len(data) == found.size
    tree.at_once(found.inode, 0, READ_BYTES)
    assert contents.warmed == 1
    again = await tree.lookup_later(CONTROL_INODE, b"warm-now")
    assert again.inode != found.inode
    assert b"1" in await tree.fetch(again.inode, 0, READ_BYTES)


def test_a_walk_meets_only_what_starts_nothing(tree: ControlTree) -> None:
    names = tree.siblings(tree.child_nodes(CONTROL_INODE)).names
    assert b"warm" in names and b"warm-now" not in names


def test_only_names_that_wait_for_something_take_time(tree: ControlTree) -> None:
    assert tree.takes_time(SHUFFLE_INODE, b"seed=1") and not tree.takes_time(SHUFFLE_INODE, b"..")
    assert not tree.takes_time(CONTROL_INODE, b"stats") and not tree.takes_time(CONTROL_INODE, b"shuffle")


async def test_shuffles_are_found_in_their_own_folder(tree: ControlTree) -> None:
    found = await tree.lookup_later(SHUFFLE_INODE, b"seed=1")
    assert len(await tree.fetch(found.inode, 0, 10)) == 10


async def test_a_name_says_which_extents_are_read_next() -> None:
    snapshot = pack_entries([TreeEntry(b"%d" % n, 0o100644, 0, b"x") for n in range(10)]).snapshot
    contents = SimpleContents(snapshot)
    tree, digest = ControlTree(snapshot, contents, ErrorLog()), snapshot.digest[:4].hex()
    found = [await tree.lookup_later(SHUFFLE_INODE, f"ahead={digest}+{n}-{n + 1}".encode()) for n in (7, 3)]
    assert contents.read_next == [7, 8, 3, 4]
    assert found[0] == found[1] == tree.attributes(found[0].inode) and not found[0].size
    tree.forget(found[0].inode, 2)
    assert tree.files() == []
    for name in (b"ahead=00000000+7", f"ahead={digest}+7-10".encode()):
        with pytest.raises(InvalidInput):
            await tree.lookup_later(SHUFFLE_INODE, name)
    assert len(contents.read_next) == 4


# -- writing ------------------------------------------------------------------------------------------------


def test_losses_are_written_by_lines(tree: ControlTree, contents: SimpleContents) -> None:
    one, other = (tree.lookup(CONTROL_INODE, b"scores") for _ in range(2))
    assert one is not None and other is not None and one.inode != other.inode
    assert (one.mode, one.size) == (stat.S_IFREG | 0o222, 0)
    assert tree.truncated(one.inode) == one
    assert tree.write(one.inode, 0, b"0.5 f/00\n1") == 10
    assert tree.write(other.inode, 0, b"3 f/09\n\n") == 8
    assert tree.write(one.inode, 10, b".5 f/01\n\n") == 9
    assert [(batch.paths, batch.losses.tolist()) for batch in contents.scored] == [
        ([b"f/09"], [3.0]),
        ([b"f/00", b"f/01"], [0.5, 1.5]),
    ]
    with pytest.raises(InvalidInput, match="count already"):
        tree.truncated(one.inode)
    assert tree.files() == [], "a writer opens its file again at the next daemon"


def test_malformed_losses_are_noted(tree: ControlTree, contents: SimpleContents) -> None:
    found = tree.lookup(CONTROL_INODE, b"scores")
    assert found is not None
    for offset, text in ((0, b"low f/00\n"), (9, b"1 missing\n\n")):
        with pytest.raises(InvalidInput):
            tree.write(found.inode, offset, text)
        assert b".dieselfs/scores\t" in read(tree, b"errors")
    assert contents.scored == []


def test_nothing_else_can_be_written_to(tree: ControlTree) -> None:
    found = tree.lookup(CONTROL_INODE, b"info")
    assert found is not None
    for inode in (found.inode, CONTROL_INODE, SHUFFLE_INODE):
        with pytest.raises(Refused):
            tree.write(inode, 0, b"text")
        with pytest.raises(Refused):
            tree.truncated(inode)


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
    monkeypatch.setattr("dieselfs_client.mount.control.tree.SCAN_BYTES", 7)
    tree = {path: file_of() for path in (b"a", b"b\nb/c", b"plain", b"z\n")}
    snapshot = Snapshot(snapshot_bytes(tree), SOURCE)

    def unwritable_of(*paths: bytes) -> bytes | None:
        return unwritable(snapshot, np.array([snapshot.require(path) for path in paths], np.uint32))

    assert unwritable_of(b"a", b"plain") is None
    assert unwritable_of(b"plain", b"z\n", b"a") == b"z\n"
    assert unwritable_of(b"plain", b"b\nb/c") == b"b\nb/c", "a newline in a folder counts too"
