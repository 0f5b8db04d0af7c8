"""What a copy takes: new paths, what is there already, conflicts, patterns, and what a move deletes."""

import stat

import pytest

from dieselfs.errors import AlreadyExists, InvalidInput, NotFound
from dieselfs.records import DatasetRecord, Extent, FileRecord, Op
from dieselfs.rpc.records import CopyRequest, Existing
from dieselfs.snapshot.reader import Snapshot
from dieselfs.transfer.copy_plan import (
    CopyPlan,
    check_request,
    entry_snapshot,
    is_selected,
    new_path,
    plan_copy,
)
from tests.support.dataset import TreeEntry, pack_entries


def tree(**files: bytes) -> Snapshot:
    """Files by path, with `_` for a slash; None of a name that ends in `_` is a folder."""
    entries = []
    for name, content in files.items():
        path = name.replace("_", "/").encode()
        if path.endswith(b"/"):
            entries.append(TreeEntry(path[:-1], 0o040755, 0))
        else:
            entries.append(TreeEntry(path, 0o120777 if b"link" in path else 0o100644, 0, content))
    return pack_entries(entries).snapshot


def request(
    path: bytes, new: bytes, is_move: bool = False, is_merged: bool = False, existing: int = Existing.REFUSE
) -> CopyRequest:
    return CopyRequest("a", path, "b", new, is_move=is_move, is_merged=is_merged, existing=existing)


def copied(plan: CopyPlan) -> set[bytes]:
    order = plan.order
    nodes = {
        *order.folders.tolist(),
        *order.links.tolist(),
        *order.empty_files.tolist(),
        *order.owners.tolist(),
    }
    return set(map(plan.new_path, nodes))


def moved(plan: CopyPlan) -> list[bytes]:
    return [plan.source.path(node) for node in plan.moved]


SOURCE = tree(d_=b"", d_e_=b"", d_e_f=b"1", d_g=b"22", d_link=b"g", other=b"3")


@pytest.mark.parametrize(
    ("path", "new", "entry", "expected"),
    [
        (b"d", b"n", b"d", b"n"),
        (b"d", b"n", b"d/e/f", b"n/e/f"),
        (b"d", b"", b"d", b""),
        (b"d", b"", b"d/g", b"g"),
        (b"", b"n/m", b"d/g", b"n/m/d/g"),
        (b"", b"n", b"", b"n"),
        (b"other", b"x/y", b"other", b"x/y"),
    ],
)
def test_new_paths(path: bytes, new: bytes, entry: bytes, expected: bytes) -> None:
    assert new_path(request(path, new), entry) == expected


def test_all_is_copied_to_where_nothing_is() -> None:
    plan = plan_copy(SOURCE, None, request(b"d", b"n"))
    assert copied(plan) == {b"n", b"n/e", b"n/e/f", b"n/g", b"n/link"}
    assert (plan.order.total_bytes, plan.skipped, plan.moved) == (3, 0, ())
    assert copied(plan_copy(SOURCE, None, request(b"d/g", b"x"))) == {b"x"}
    with pytest.raises(NotFound):
        plan_copy(SOURCE, None, request(b"nothing", b"x"))


def test_what_is_there_is_skipped_and_an_interrupted_copy_continues() -> None:
    there = tree(n_=b"", n_g=b"22")
    plan = plan_copy(SOURCE, there, request(b"d", b"n"))
    assert copied(plan) == {b"n/e", b"n/e/f", b"n/link"} and plan.skipped == 2
    whole = tree(n_=b"", n_e_=b"", n_e_f=b"1", n_g=b"22", n_link=b"g", n_more=b"of a move that deletes")
    plan = plan_copy(SOURCE, whole, request(b"d", b"n", is_move=True))
    assert copied(plan) == set() and plan.skipped == 5
    assert moved(plan) == [b"d/link", b"d/g", b"d/e/f", b"d/e", b"d"]


def test_a_folder_with_other_content_needs_a_slash() -> None:
    there = tree(n_more=b"x")
    with pytest.raises(AlreadyExists, match="dl://b/n exists; to go into it, write dl://b/n/ with a slash"):
        plan_copy(SOURCE, there, request(b"d", b"n"))
    assert b"n/g" in copied(plan_copy(SOURCE, there, request(b"d", b"n", is_merged=True)))


@pytest.mark.parametrize("other", [b"xx", b"333"])
def test_files_with_other_content_are_refused_kept_or_replaced(other: bytes) -> None:
    there = tree(n_g=other)
    with pytest.raises(AlreadyExists, match="dl://b/n/g exists with other content; nothing was changed"):
        plan_copy(SOURCE, there, request(b"d", b"n", is_merged=True))
    kept = request(b"d", b"n", is_merged=True, existing=Existing.KEEP, is_move=True)
    plan = plan_copy(SOURCE, there, kept)
    assert copied(plan) == {b"n/e", b"n/e/f", b"n/link"}
    assert moved(plan) == [b"d/link", b"d/e/f", b"d/e"]  # d has g
    replaced = plan_copy(SOURCE, there, kept._replace(existing=Existing.REPLACE))
    assert b"n/g" in copied(replaced) and b"d/g" in moved(replaced)


def test_a_link_with_another_target_differs() -> None:
    with pytest.raises(AlreadyExists, match="n/link exists"):
        plan_copy(SOURCE, tree(n_link=b"h"), request(b"d", b"n", is_merged=True))


@pytest.mark.parametrize("there", [tree(n=b"a file"), tree(n_g_=b""), tree(n_e=b"a file")])
def test_a_folder_never_takes_the_place_of_a_file_nor_a_file_that_of_a_folder(there: Snapshot) -> None:
    with pytest.raises(InvalidInput, match="is a f"):
        plan_copy(SOURCE, there, request(b"d", b"n", is_merged=True, existing=Existing.REPLACE))


def test_a_selection_chooses_and_a_move_keeps_the_folders_of_the_rest() -> None:
    chosen = [b"d", b"d/e", b"d/g", b"d/link"]
    plan = plan_copy(SOURCE, None, request(b"d", b"n", is_move=True), chosen.__contains__)
    assert copied(plan) == {b"n", b"n/e", b"n/g", b"n/link"}
    assert moved(plan) == [b"d/link", b"d/g"]


def test_a_selection_is_made_with_a_snapshot() -> None:
    bits = bytearray((len(SOURCE) + 7) // 8)
    for path in (b"d/g", b"other"):
        node = SOURCE.require(path)
        bits[node // 8] |= 1 << node % 8
    is_wanted = is_selected(SOURCE, bytes(bits))
    found = [path for path in map(SOURCE.path, range(len(SOURCE))) if is_wanted(path)]
    assert sorted(found) == [b"d/g", b"other"] and not is_wanted(b"added later")
    for wrong in (b"", bytes(bits) + b"\0"):
        with pytest.raises(InvalidInput, match="a selection of"):
            is_selected(SOURCE, wrong)


def test_a_path_that_becomes_too_long_is_refused_before_anything_is_copied() -> None:
    deep = b"/".join([b"p" * 250] * 16)
    with pytest.raises(InvalidInput, match="its new path is not allowed"):
        plan_copy(tree(**{"d_" + "x" * 200: b""}), None, request(b"d", deep))


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (CopyRequest("a", b"d", "a", b"d"), "onto itself"),
        (CopyRequest("a", b"d", "a", b"d/e"), "into itself"),
        (CopyRequest("a", b"", "a", b"d"), "into itself"),
        (CopyRequest("a", b"d", "b", b"d", tag="v1", is_move=True), "cannot be moved"),
    ],
)
def test_requests_that_make_no_sense(one: CopyRequest, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        check_request(one)


def test_requests_that_look_like_them() -> None:
    check_request(CopyRequest("a", b"d", "a", b"de"))
    check_request(CopyRequest("a", b"d", "b", b"d"))
    check_request(CopyRequest("a", b"d", "a", b"d", tag="v1"))


DATASET = DatasetRecord(bytes(range(16)), "pets", 7, 8, 1, 2, 3)


def extent(place: int, chunk: int, offset: int, length: int) -> Extent:
    return Extent(place, bytes([chunk]) * 16, offset, length, bytes([place % 256]) * 16)


@pytest.mark.parametrize(
    "extents",
    [(), (extent(0, 1, 5, 100),), (extent(0, 9, 7, 60), extent(60, 2, 0, 40))],
    ids=["empty", "one", "several"],
)
def test_a_file_keeps_its_extents(extents: tuple[Extent, ...]) -> None:
    size = sum(each.length for each in extents)
    record = FileRecord(b"a/b/file", Op.FILE, 0o640, 123, size, 50, b"", extents)
    snapshot = entry_snapshot(DATASET, record)
    node = snapshot.require(b"a/b/file")
    assert snapshot.stat(node)[1:] == (stat.S_IFREG | 0o640, size, 123)
    found = snapshot.extents(node)
    assert [(each.place, snapshot.chunk_id(each.chunk), *each[2:]) for each in found] == list(extents)
    assert snapshot.stat(snapshot.require(b"a/b")).is_folder
    assert (snapshot.dataset, snapshot.generation) == ("pets", 7)


def test_links_and_folders() -> None:
    link = entry_snapshot(DATASET, FileRecord(b"link", Op.SYMLINK, 0o777, 5, 0, 50, b"to/here", ()))
    assert link.target(link.require(b"link")) == b"to/here"
    folder = entry_snapshot(DATASET, FileRecord(b"a", Op.DIRECTORY, 0o700, 5, 0, 50, b"", ()))
    assert folder.stat(folder.require(b"a"))[1:] == (stat.S_IFDIR | 0o700, 0, 5)
