"""Shell patterns: of names, of whole paths, and what excludes and includes leave."""

import pytest

from dieselfs_tools.patterns import Pattern, Patterns


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.jpg", b"a/b.jpg", True),
        ("b*", b"a/b.jpg", True),
        ("a*", b"a/b.jpg", False),
        ("a/*", b"a/b/c.jpg", True),
        ("b/*", b"a/b/c.jpg", False),
    ],
)
def test_a_slash_in_a_pattern_means_the_whole_path(pattern: str, path: bytes, matches: bool) -> None:
    assert Pattern(pattern).matches(path) is matches


@pytest.mark.parametrize(
    ("excludes", "includes", "path", "is_wanted"),
    [
        ([], [], b"a/b", True),
        (["*.tmp"], [], b"a/b.tmp", False),
        (["*.tmp"], [], b"a/b.tmp.txt", True),
        ([".git"], [], b"x/.git/config", False),
        ([".git/"], [], b"x/.git", False),
        ([".git"], [], b"x/.github/config", True),
        (["a/*.log"], [], b"a/b/c.log", False),
        (["a/*.log"], [], b"b/a/c.log", True),
        (["*"], ["*.jpg"], b"deep/er/cat.jpg", True),
        (["*"], ["*.jpg"], b"deep/er/cat.png", False),
        ([".git"], ["*.py"], b".git/hook.py", True),
        (["*"], [], b"", True),
        (["new*"], [], b"new\nline", False),
        (["\udcff*"], [], b"\xff\xfe", False),
        (["[ab]?"], [], b"a1", False),
    ],
)
def test_what_is_wanted(excludes: list[str], includes: list[str], path: bytes, is_wanted: bool) -> None:
    assert Patterns(excludes, includes).is_wanted(path) is is_wanted


def test_a_folder_is_pruned_only_if_nothing_in_it_can_be_wanted() -> None:
    assert Patterns([".git"]).is_pruned(b".git")
    assert not Patterns([".git"]).is_pruned(b"src")
    assert not Patterns([".git"], ["*.py"]).is_pruned(b".git")
