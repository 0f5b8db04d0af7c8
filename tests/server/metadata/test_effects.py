"""Folders come and go with what is in them, inner ones first."""

from collections import Counter

from dieselfs_server.metadata.effects import Effects, change_folders


def run(counts: Counter[bytes], members: dict[bytes, int]) -> list[bytes]:
    """Change `counts` (things in each folder) by `members`; returns the folders that were changed, in order."""
    changed = []

    def change_folder(parent: bytes, name: bytes, change: int) -> int:
        folder = parent + b"/" + name if parent else name
        before = counts[folder]
        counts[folder] += change
        changed.append(folder)
        return (counts[folder] > 0) - (before > 0)

    change_folders(members, change_folder)
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
