"""Folders come and go with what is in them; which extents make up a file; pages of a folder in order."""

from collections import Counter
from itertools import combinations, permutations

from dieselfs.chunk.format import Op
from dieselfs.records import FileRecord
from dieselfs_server.metadata.rules import Effects, change_folders, merge_listing, tiling


def run(counts: Counter[bytes], members: dict[bytes, int]) -> list[bytes]:
    """Change `counts` (things in each folder) by `members`; returns the folders that were changed, in order."""
    changed = []

    def change_folder(parent: bytes, name: bytes, change: int) -> tuple[bytes, int]:
        folder = parent + b"/" + name if parent else name
        before = counts[folder]
        counts[folder] += change
        changed.append(folder)
        return parent, (counts[folder] > 0) - (before > 0)

    change_folders(members, lambda changes: [change_folder(*each) for each in changes])
    return changed


def test_a_folder_that_comes_counts_in_the_one_above() -> None:
    counts: Counter[bytes] = Counter()
    assert run(counts, {b"a/b/c": 2, b"": 1}) == [b"a/b/c", b"a/b", b"a"]
    assert counts == {b"a/b/c": 2, b"a/b": 1, b"a": 1}
    assert run(counts, {b"a/b/c": 1}) == [b"a/b/c"]
    assert run(counts, {b"a/b/c": -3, b"a": 1}) == [b"a/b/c", b"a/b", b"a"][:2]
    assert +counts == {b"a": 1}


def test_no_change_is_no_change() -> None:
    assert run(Counter(), {b"a/b": 0, b"": 5}) == []


def test_sums() -> None:
    one: Effects[bytes] = Effects(files=1, total_bytes=5)
    one.kill([b"x", b"y"], [1, 2])
    one.members[b"f"] += 1
    other: Effects[bytes] = Effects(files=-2, total_bytes=-7)
    other.kill([b"x"], [3])
    other.members[b"f"] -= 2
    one.add(other)
    assert (one.files, one.total_bytes, one.dead, one.members) == (
        -1,
        -2,
        {b"x": [1, 3], b"y": [2]},
        {b"f": -1},
    )


def test_extents_that_follow_each_other_are_the_file() -> None:
    for extents in permutations([(0, 3), (3, 1), (4, 6)]):
        assert tiling(extents, 10) == [(0, 3), (3, 1), (4, 6)]


def test_a_gap_an_overlap_or_a_missing_end_is_no_file() -> None:
    for extents in ([], [(0, 3)], [(0, 3), (4, 6)], [(0, 5), (4, 6)], [(1, 9)], [(0, 3), (3, 6)], [(0, 11)]):
        assert tiling(extents, 10) is None


def test_the_longest_extent_that_leads_to_the_end_is_taken() -> None:
    assert tiling([(0, 1), (0, 2), (0, 3), (1, 3), (2, 2), (2, 1), (3, 1)], 4) == [(0, 3), (3, 1)]
    assert tiling([(0, 1), (0, 2), (0, 3), (1, 3), (2, 2)], 4) == [(0, 2), (2, 2)]


def test_one_more_extent_never_makes_a_file_incomplete() -> None:
    every = [(place, length) for place in range(4) for length in range(1, 5 - place)]
    for count in range(5):
        for extents in combinations(every, count):
            if tiling(extents, 4) is not None:
                assert all(tiling([*extents, more], 4) is not None for more in every)


def record(path: bytes, op: Op = Op.FILE) -> FileRecord:
    return FileRecord(path, op, 0o700, 5, 1, 9, b"", ())


def test_a_folder_stands_in_the_place_of_a_file_but_not_of_its_own_entry() -> None:
    entries = [record(b"d/a"), record(b"d/b", Op.DIRECTORY), record(b"d/c"), record(b"d/\xff")]
    listed = merge_listing(entries, [b"d/b", b"d/c", b"d/d"], limit=10)
    assert [(each.path, each.op, each.version) for each in listed] == [
        (b"d/a", Op.FILE, 9),
        (b"d/b", Op.DIRECTORY, 9),
        (b"d/c", Op.DIRECTORY, 0),
        (b"d/d", Op.DIRECTORY, 0),
        (b"d/\xff", Op.FILE, 9),
    ]
    assert merge_listing(entries, [b"d/b", b"d/c", b"d/d"], limit=2) == listed[:2]
    assert merge_listing([], [], limit=2) == []
