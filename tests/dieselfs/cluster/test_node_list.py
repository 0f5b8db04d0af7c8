"""Lists of nodes, as Slurm writes them and as names of shares have them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.cluster.node_list import node_list, parse_node_list
from dieselfs.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("node[01-03]", ["node01", "node02", "node03"]),
        ("node[8-10,12]", ["node8", "node9", "node10", "node12"]),
        ("a[1-2]-ib,b,c[3]", ["a1-ib", "a2-ib", "b", "c3"]),
        ("", []),
    ],
)
def test_lists_as_slurm_writes_them(text: str, names: list[str]) -> None:
    assert parse_node_list(text) == tuple(names)


@pytest.mark.parametrize(
    "text", ["node[", "node[1-", "node]1", "node[2-1]", "node[a-b]", "a,,b", "a b", "n[1-2][3-4]", "n[1--2]"]
)
def test_other_texts_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_node_list(text)
    assert "\n" not in str(refused.value)


def test_a_short_text_cannot_name_a_million_nodes() -> None:
    with pytest.raises(InvalidInput, match="lists more than"):
        parse_node_list("n[0-999999999]")


def test_names_in_a_row_are_a_range() -> None:
    assert node_list(["node08", "node09", "node10", "node12", "x", "x"]) == "node[08-10],node12,x,x"
    assert node_list([f"rack3-{number:04}" for number in range(512)]) == "rack3-[0000-0511]"
    assert node_list(["9", "10", "011"]) == "[9-10],011"


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,6}[0-9]{0,3}", fullmatch=True)


@given(st.lists(NAMES, max_size=12), st.integers(0, 9_999), st.integers(0, 20), st.integers(1, 5))
def test_a_list_is_read_back(names: list[str], first: int, count: int, digits: int) -> None:
    names += [f"n{number:0{digits}}" for number in range(first, first + count)]
    assert parse_node_list(node_list(names)) == tuple(names)
