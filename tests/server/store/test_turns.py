"""Turns of servers over one disk: never more than there are, and each holder gets one. A model without clocks."""

from collections import Counter

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs_server.store.turns import Holder, decoded, encoded, renewed

NAMES = "abcde"


def asked(
    holders: list[Holder], name: str, reads: int, waiting: int, turns_max: int, is_slice_over: bool = False
) -> tuple[list[Holder], int]:
    return renewed(holders, name, reads, waiting, turns_max, is_slice_over=is_slice_over)


def turns_of(holders: list[Holder]) -> dict[str, int]:
    return {holder.name: holder.turns for holder in holders}


def test_a_holder_alone_has_what_it_needs_and_all_at_most() -> None:
    assert asked([], "a", 0, 3, 8)[1] == 3
    holders, turns = asked([], "a", 0, 20, 8)
    assert turns == 8 and turns_of(holders) == {"a": 8}
    assert asked(holders, "a", 0, 0, 8) == ([], 0)


def test_the_second_gets_its_part_as_soon_as_reads_of_the_first_end() -> None:
    holders, _ = asked([], "a", 0, 20, 8)
    holders, turns = asked(holders, "b", 0, 20, 8)
    assert turns == 0
    holders, turns = asked(holders, "a", 8, 12, 8)
    assert turns == 4 and turns_of(holders)["a"] == 8
    holders, _ = asked(holders, "a", 4, 12, 8)
    assert asked(holders, "b", 0, 20, 8)[1] == 4


def test_what_one_does_not_want_the_other_has() -> None:
    holders, _ = asked([], "a", 0, 1, 8)
    assert asked(holders, "b", 0, 20, 8)[1] == 7


def test_a_single_turn_goes_round() -> None:
    holders: list[Holder] = []
    order = ""
    for _ in range(4):
        for name in "abc":
            had = turns_of(holders).get(name, 0)
            holders, turns = asked(holders, name, 0, 5, 1, is_slice_over=had > 0)
            order += name * turns
    assert all(count in (2, 3, 1) for count in Counter(order).values()) and set(order) == set("abc")


@given(st.integers(1, 9), st.data())
def test_there_are_never_more_turns_and_each_holder_gets_one(turns_max: int, data: st.DataObject) -> None:
    holders: list[Holder] = []
    reads, allowed = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 0)
    for _ in range(data.draw(st.integers(0, 60))):
        name = data.draw(st.sampled_from(NAMES))
        reads[name] = data.draw(st.integers(0, max(reads[name], allowed[name])))  # some end, others begin
        waiting, is_over = data.draw(st.integers(0, 12)), data.draw(st.booleans())
        holders, allowed[name] = asked(holders, name, reads[name], waiting, turns_max, is_over)
        assert sum(turns_of(holders).values()) <= turns_max and decoded(encoded(holders)) == holders
        assert all(max(reads[other], allowed[other]) <= turns_of(holders).get(other, 0) for other in NAMES)
        assert not waiting or name in turns_of(holders)
    got = {name for name in NAMES if reads[name]}
    for _ in range(2 * len(NAMES)):
        for name in NAMES:
            had = turns_of(holders).get(name, 0)
            holders, turns = asked(holders, name, 0, 1, turns_max, is_slice_over=had > 0)
            got |= {name} if turns else set()
    assert got == set(NAMES)


def test_a_note_of_another_version_is_no_holder() -> None:
    assert decoded(None) == decoded(b"\xc1") == decoded(b"\x91\x91\x01") == decoded(b"\x05") == []


@pytest.mark.parametrize("number", [float("inf"), 2**64 - 1, -1])
def test_a_note_with_numbers_that_no_holder_has_is_empty(number: float) -> None:
    assert decoded(msgpack.packb([["a", 1, 0, number, 1]])) == []
