"""Filters: what patterns match, which rule decides, and that rclone selects the same files."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dieselfs.errors import InvalidInput
from dieselfs_tools.cli.patterns import Pattern, Patterns, deletable


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.jpg", b"a/b.jpg", True),
        ("*.jpg", b"a/b.jpg.txt", False),
        ("b*", b"a/b.jpg", True),
        ("a*.jpg", b"a/b.jpg", False),
        ("a/*", b"x/a/b.jpg", True),
        ("a/*.jpg", b"a/b/c.jpg", False),
        ("/a/*", b"x/a/b.jpg", False),
        ("/a/**.jpg", b"a/b/c.jpg", True),
        ("**/c.jpg", b"a/b/c.jpg", True),
        ("?.jpg", b"a/b.jpg", True),
        ("a?b", b"a/b", False),
        ("[a-c].jpg", b"b.jpg", True),
        ("[!a-c].jpg", b"b.jpg", False),
        ("[!a]b", b"/b", False),
        ("[]x].jpg", b"].jpg", True),
        ("*.{jpg,pn?}", b"a.png", True),
        ("*.{jpg,pn?}", b"a.gif", False),
        ("{{[0-9]+}}.jpg", b"a/123.jpg", True),
        ("{{[0-9]+}}.jpg", b"a/x1.jpg", False),
        ("a,b", b"a,b", True),
        (r"\*.jpg", b"*.jpg", True),
        (r"\*.jpg", b"a.jpg", False),
        ("a+(b)", b"a+(b)", True),
        ("\udcff*", b"\xff\xfe", True),
        ("new*", b"new\nline", True),
    ],
)
def test_a_pattern_and_one_path(pattern: str, path: bytes, matches: bool) -> None:
    assert Pattern(pattern).matches(path) is matches
    assert Pattern(pattern).covers(path) is matches


@pytest.mark.parametrize("pattern", ["dir/", "dir/**"])
def test_a_slash_at_the_end_means_a_folder_and_its_content(pattern: str) -> None:
    assert Pattern(pattern).covers(b"x/dir", is_folder=True)
    assert Pattern(pattern).covers(b"x/dir/a/b")
    assert not Pattern(pattern).covers(b"x/dir")


@pytest.mark.parametrize("pattern", ["", "/", "{a", "a}", "[a", "a]", "a***", "{{(}}"])
def test_a_pattern_that_is_none_is_named(pattern: str) -> None:
    with pytest.raises(InvalidInput, match="pattern"):
        Pattern(pattern)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("pattern", ["[a-c--]", "[a&&b]", "{{[[a]}}"])
def test_doubled_signs_in_a_set_stand_for_themselves(pattern: str) -> None:
    assert Pattern(pattern).matches(b"a")


@pytest.mark.parametrize("line", ["*.jpg", "+", "* a", "+*.jpg"])
def test_a_rule_without_its_sign_is_refused(line: str) -> None:
    with pytest.raises(InvalidInput, match="filter rule"):
        Patterns(lines=[line])


@pytest.mark.parametrize(
    ("excludes", "includes", "path", "is_wanted"),
    [
        ([], [], b"a/b", True),
        (["*.tmp"], [], b"a/b.tmp", False),
        (["*.tmp"], [], b"a/b.tmp.txt", True),
        ([".git"], [], b"x/.git/config", False),
        ([".git"], [], b"x/.github/config", True),
        ([], ["*.jpg"], b"deep/er/cat.jpg", True),
        ([], ["*.jpg"], b"deep/er/cat.png", False),
        (["*"], ["*.jpg"], b"deep/er/cat.jpg", True),
        (["*"], ["*.jpg"], b"deep/er/cat.png", False),
        ([".git"], ["*.py"], b".git/hook.py", True),
        (["*"], [], b"", True),
    ],
)
def test_what_is_wanted(excludes: list[str], includes: list[str], path: bytes, is_wanted: bool) -> None:
    assert Patterns(excludes, includes).is_wanted(path) is is_wanted


def test_the_first_rule_that_matches_decides() -> None:
    rules = Patterns(lines=["- *.jpg", "!", "# photos", "", "; old", "- thumb.jpg", "+ *.jpg", "- *"])
    assert [rules.is_wanted(path) for path in (b"a/b.jpg", b"a/thumb.jpg", b"c.png")] == [True, False, False]


def test_a_folder_is_pruned_only_if_nothing_in_it_can_be_wanted() -> None:
    assert Patterns([".git"]).is_pruned(b".git")
    assert not Patterns([".git"]).is_pruned(b"src")
    assert not Patterns([".git"], ["*.py"]).is_pruned(b".git")
    assert Patterns(includes=["/train/**"]).is_pruned(b"val")
    assert not Patterns(includes=["/train/**"]).is_pruned(b"train")
    assert not Patterns(includes=["/train/cats/**"]).is_pruned(b"train")
    assert Patterns(includes=["/train/cats/**"]).is_pruned(b"train/dogs")


def test_a_folder_that_keeps_something_is_not_deleted() -> None:
    below = [(b"a/b/x.jpg", False), (b"a/b/y.tmp", False), (b"a/b", True), (b"a/c", True), (b"a", True)]
    assert list(deletable(below, Patterns(["*.jpg"]))) == [b"a/b/y.tmp", b"a/c"]
    assert list(deletable(below, Patterns(), kept=[b"a/c"])) == [b"a/b/x.jpg", b"a/b/y.tmp", b"a/b"]


FILES = (
    "a.jpg", "b.png", "train/a.jpg", "train/deep/a.jpg", "train/deep/er/b.txt", "val/train/c.jpg", "val/{x}.txt",
    ".git/config", "x/.git/hook.py", "data-1/part-00.bin", "data-2/part-10.bin", "data-2/[z].bin", "a b/c d.txt",
)  # fmt: skip


@pytest.mark.parametrize(
    "rules",
    [
        ["--include", "*.jpg"],
        ["--exclude", "*.jpg"],
        ["--include", "/train/**"],
        ["--include", "/train/*.jpg"],
        ["--exclude", "/train/*.jpg", "--exclude", "*.txt"],
        ["--exclude", ".git/"],
        ["--include", "*.{jpg,txt}"],
        ["--include", "data-[12]/part-?0.bin"],
        ["--exclude", "data-[^1]/**"],
        ["--exclude", "{{part-[0-9]+}}.bin"],
        ["--include", r"\{x\}.txt"],
        ["--include", r"\[z\].bin"],
        ["--include", "**/a.jpg"],
        ["--include", "/a b/*"],
        ["--include", "*.txt", "--exclude", "*.txt"],
        ["--filter", "- /train/deep/**", "--filter", "+ *.jpg", "--filter", "- *"],
    ],
    ids=" ".join,
)
def test_rclone_selects_the_same_files(tmp_path: Path, rules: list[str]) -> None:
    """Not for an include of a folder at any depth, as `deep/`: rclone does not look into the folders above it."""
    beside = Path(sys.executable).with_name("rclone")
    program = str(beside) if beside.exists() else shutil.which("rclone")
    if program is None:
        pytest.skip("rclone, whose rules these are, is not installed")
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    command = [program, "--config", "", "lsf", "-R", "--files-only", *rules, str(tmp_path)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    def given(name: str) -> list[str]:
        return [value for option, value in zip(rules[::2], rules[1::2], strict=True) if option == name]

    ours = Patterns(given("--exclude"), given("--include"), given("--filter"))
    assert {name for name in FILES if ours.is_wanted(name.encode())} == set(listed.splitlines())
