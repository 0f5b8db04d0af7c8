"""Names: which ones may stand in a dataset, and the text form of a place in one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs.errors import InvalidInput
from dieselfs.limits import DATASET_NAME_CHARACTERS_MAX, NAME_BYTES_MAX, PATH_BYTES_MAX, PATH_DEPTH_MAX
from dieselfs.names import (
    Location,
    check_dataset_name,
    check_path,
    is_location,
    is_part,
    parse_location,
    path_fault,
    printable,
    split_path,
    user_path,
)

LONGEST_PATH = b"/".join([b"p" * 255] * 15 + [b"q" * 255])
assert len(LONGEST_PATH) == PATH_BYTES_MAX

GOOD_PATHS = [
    b"",
    b"a",
    b"a/b",
    b"...",
    b".a",
    b"..a",
    b"a..",
    b"a/.../b",
    b"a/.b/..c",
    b" ",
    b"\n",
    b"\xff\xfe",
    b"a\\b",
    b"p" * NAME_BYTES_MAX,
    b"a/" + b"p" * NAME_BYTES_MAX,
    LONGEST_PATH,
    b"/".join([b"p"] * PATH_DEPTH_MAX),
]

BAD_PATHS = {
    b"/": "empty part",
    b"/a": "empty part",
    b"a/": "empty part",
    b"a//b": "empty part",
    b".": "part '.'",
    b"..": "part '..'",
    b"./a": "part '.'",
    b"../a": "part '..'",
    b"a/.": "part '.'",
    b"a/..": "part '..'",
    b"a/./b": "part '.'",
    b"a/../b": "part '..'",
    b"\0": "NUL",
    b"a\0b": "NUL",
    b"a/\0": "NUL",
    b"p" * (NAME_BYTES_MAX + 1): "longer than 255 bytes",
    b"p" * (NAME_BYTES_MAX + 1) + b"/a": "longer than 255 bytes",
    LONGEST_PATH + b"q": "longer than 4095 bytes",
    b"/".join([b"p"] * (PATH_DEPTH_MAX + 1)): "more than 1024 parts",
}


@pytest.mark.parametrize("path", GOOD_PATHS)
def test_good_paths(path: bytes) -> None:
    assert path_fault(path) is None
    assert check_path(path) is path


@pytest.mark.parametrize("path", BAD_PATHS)
def test_bad_paths_and_why(path: bytes) -> None:
    assert BAD_PATHS[path] in str(path_fault(path))
    with pytest.raises(InvalidInput, match=BAD_PATHS[path].replace(".", r"\.")) as caught:
        check_path(path)
    assert len(str(caught.value)) < 1000


def rule(path: bytes) -> bool:
    """The rule as the first lines of `dieselfs.names` put it, word by word."""
    parts = path.split(b"/")
    return not path or (
        len(path) <= PATH_BYTES_MAX
        and len(parts) <= PATH_DEPTH_MAX
        and all(
            1 <= len(part) <= NAME_BYTES_MAX and part not in (b".", b"..") and b"\0" not in part
            for part in parts
        )
    )


@settings(max_examples=400)
@given(st.lists(st.sampled_from([b"/", b".", b"\0", b"a", b"\xff", b"b" * 254]), max_size=12).map(b"".join))
def test_the_rule_in_words_and_the_rule_in_code_agree(path: bytes) -> None:
    assert (path_fault(path) is None) == rule(path)
    assert (is_part(path) is not None) == (rule(path) and path != b"" and b"/" not in path)


@pytest.mark.parametrize("name", ["a", "imagenet-1k", "A.b_c-9", "0", "x" * DATASET_NAME_CHARACTERS_MAX])
def test_good_dataset_names(name: str) -> None:
    assert check_dataset_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".a",
        "-a",
        "_a",
        "a/b",
        "a b",
        "a\n",
        "a\0",
        "ä",
        "x" * (DATASET_NAME_CHARACTERS_MAX + 1),
    ],
)
def test_bad_dataset_names(name: str) -> None:
    with pytest.raises(InvalidInput, match="is not allowed"):
        check_dataset_name(name)


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("dl://pets", Location("pets", b"", True)),
        ("dl://pets/", Location("pets", b"", True)),
        ("dl://pets/a", Location("pets", b"a", False)),
        ("dl://pets/a/", Location("pets", b"a", True)),
        ("dl://pets//a/b//", Location("pets", b"a/b", True)),
        ("dl://pets/a\udcff", Location("pets", b"a\xff", False)),
        ("dl://pets/ä", Location("pets", "ä".encode(), False)),
    ],
)
def test_locations(text: str, location: Location) -> None:
    assert is_location(text)
    assert parse_location(text) == location


@pytest.mark.parametrize(
    "text", ["pets", "/pets", "s3://pets", "dl://", "dl:///a", "dl://p ts", "dl://pets/../x"]
)
def test_texts_that_are_no_locations(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_location(text)


@pytest.mark.parametrize("text", ["dl://pets/", "dl://pets/a", "dl://pets/a/b/"])
def test_a_location_prints_as_it_is_written(text: str) -> None:
    assert str(parse_location(text)) == text


def test_user_paths_lose_their_outer_slashes() -> None:
    assert user_path("/a/b/") == user_path(b"a/b") == b"a/b"
    assert user_path("/") == b""


def test_printable_shows_one_line_whatever_the_bytes() -> None:
    assert printable(b"a\nb\xff\x1b[2J") == "a\\nb\\xff\\x1b[2J"
    assert printable("ä ß".encode()) == "ä ß"


@given(st.binary())
def test_printable_never_fails(path: bytes) -> None:
    assert printable(path).isprintable()


@pytest.mark.parametrize(
    ("path", "pair"),
    [(b"", (b"", b"")), (b"a", (b"", b"a")), (b"a/b", (b"a", b"b")), (b"a/b/c", (b"a/b", b"c"))],
)
def test_split_path(path: bytes, pair: tuple[bytes, bytes]) -> None:
    assert split_path(path) == pair
