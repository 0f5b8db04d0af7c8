"""Names of imported records: templates, unsafe names, duplicates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.errors import InvalidInput
from dieselfs.names import path_fault
from dieselfs_tools.archives.importing.naming import Names, Template, cleaned, replaced

PARTS = st.one_of(
    st.sampled_from([b"", b".", b"..", b".dieselfs", b"a", b"b.jpg", b"a\0b", b"x" * 300 + b".jpg"]),
    st.binary(max_size=6),
)
NAMES = st.lists(PARTS, max_size=6).map(b"/".join)


@pytest.mark.parametrize(
    ("text", "name", "index", "expected"),
    [
        ("{name}", b"a/b.tar.gz", 7, b"a/b.tar.gz"),
        ("{folder}|{stem}|{ext}", b"a/b/c.tar.gz", 0, b"a/b|c.tar|.gz"),
        ("{stem}{ext}", b"a/.hidden", 0, b".hidden"),
        ("{source}/{index:08}{ext}", b"\xff.jpg", 12, b"shard-1/00000012.jpg"),
        ("{index}-{name}", b"\xff\xfe", 3, b"3-\xff\xfe"),
        ("{label}/{name}", b"x", 0, b"cat/x"),
        ("{{x}}", b"n", 0, b"{x}"),
    ],
)
def test_templates(text: str, name: bytes, index: int, expected: bytes) -> None:
    assert Template(text).fill(name, b"shard-1", index, {"label": "cat"}) == expected


@pytest.mark.parametrize("text", ["{name", "{}", "{name!r}", "{name:5}", "{index:>8}", "{a[0]:3}"])
def test_templates_that_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"--name"):
        Template(text)


def test_a_field_that_a_record_does_not_have() -> None:
    with pytest.raises(
        InvalidInput, match=r"no 'label'; it has name, folder, stem, ext, source, index, class"
    ):
        Template("{label}").fill(b"a", b"s", 0, {"class": "x"})


@pytest.mark.parametrize(
    ("name", "path"),
    [(b"/etc/passwd", b"etc/passwd"), (b"./a//b/.", b"a/b"), (b"a/b", b"a/b"), (b"///", b""), (b"", b"")],
)
def test_what_says_nothing_is_dropped(name: bytes, path: bytes) -> None:
    assert cleaned(name) == path


@pytest.mark.parametrize(
    ("name", "reason", "renamed"),
    [
        (b"../a", "a part '..'", b"__/a"),
        (b"a\0b", "a NUL byte", b"a_b"),
        (b".dieselfs/info", "control folder", b"_dieselfs/info"),
        (b"a/../../b", "a part '..'", b"a/__/__/b"),
    ],
)
def test_unsafe_names_are_refused_or_renamed(name: bytes, reason: str, renamed: bytes) -> None:
    with pytest.raises(InvalidInput, match=reason):
        Names(b"").place(name, False)
    assert Names(b"", is_renaming=True).place(name, False) == renamed


def test_the_control_folder_is_only_that_of_the_root() -> None:
    assert Names(b"in").place(b".dieselfs/a", False) == b"in/.dieselfs/a"


def test_long_parts_are_cut_and_stay_different() -> None:
    names = Names(b"", is_renaming=True)
    one, two = (names.place(b"x" * 300 + letter + b".jpg", False) for letter in (b"a", b"b"))
    assert one != two and len(one) == len(two) == 255 and one.endswith(b".jpg")


def test_duplicates_are_refused_or_numbered() -> None:
    names = Names(b"")
    names.place(b"a/b.tar.gz", False)
    with pytest.raises(InvalidInput, match="another file of this import; --rename or --name"):
        names.place(b"a//b.tar.gz", False)
    names = Names(b"", is_renaming=True)
    assert [names.place(b"a/b.tar.gz", False) for _ in range(3)] == [
        b"a/b.tar.gz",
        b"a/b~2.tar.gz",
        b"a/b~3.tar.gz",
    ]
    assert names.place(b"a/b~2.tar.gz", False) == b"a/b~2~2.tar.gz"


def test_a_name_is_a_file_or_a_folder() -> None:
    names = Names(b"")
    names.place(b"a/b", False)
    names.place(b"a", True)
    names.place(b"a", True)  # archives repeat folders
    with pytest.raises(InvalidInput, match="a is also a folder"):
        names.place(b"a", False)
    with pytest.raises(InvalidInput, match="would be in a/b, which is a file"):
        names.place(b"a/b/c/d", False)
    with pytest.raises(InvalidInput, match="also a file of this import"):
        names.place(b"a/b", True)


def test_a_record_needs_a_name() -> None:
    for folder in (b"", b"in"):
        with pytest.raises(InvalidInput, match="no name"):
            Names(folder).place(b"./", False)
    assert Names(b"in").place(b"./", True) == b"in"


@given(
    st.lists(st.tuples(NAMES, st.booleans()), max_size=12), st.sampled_from([b"", b"in/to"]), st.booleans()
)
def test_what_is_placed_is_safe_unique_and_the_same_again(
    records: list[tuple[bytes, bool]], folder: bytes, is_renaming: bool
) -> None:
    def place_all() -> list[tuple[bytes, bool] | None]:
        names = Names(folder, is_renaming)
        found: list[tuple[bytes, bool] | None] = []
        for name, is_folder in records:
            try:
                found.append((names.place(name, is_folder), is_folder))
            except InvalidInput:
                found.append(None)
        return found

    found = place_all()
    assert found == place_all()
    placed = [one for one in found if one is not None]
    files = [path for path, is_folder in placed if not is_folder]
    above = {path[:end] for path, _ in placed for end, letter in enumerate(path) if letter == ord("/")}
    assert len(files) == len(set(files))
    assert not set(files) & (above | {path for path, is_folder in placed if is_folder})
    for path, _ in placed:
        assert path_fault(path) is None
        assert path == folder or path.startswith(folder + b"/" if folder else b"")
        assert path.split(b"/")[0] != b".dieselfs"


@given(NAMES)
def test_replacing_leaves_nothing_but_length_to_refuse(name: bytes) -> None:
    path = replaced(cleaned(name))
    assert path_fault(path) is None and path.split(b"/")[0] != b".dieselfs"
