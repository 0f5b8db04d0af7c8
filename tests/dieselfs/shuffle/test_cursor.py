"""Cursors: text and back, and nothing else is taken for one."""

import re
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.errors import InvalidInput
from dieselfs.limits import CURSOR_CHARACTERS_MAX, SKIP_RANGES_MAX
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.skips import Skips
from dieselfs.shuffle.spec import GROUP_CHUNKS_MAX, SEED_MAX, PlanSpec
from dieselfs.snapshot.format import COUNT_MAX

DIGEST = "ba591b1014c3337faa03c7f2"
TEXT = f"order1.{DIGEST}.s1.e2.g100.p12582912.x12595200-12697599.7e500088"
PLAIN = Cursor(DIGEST, PlanSpec(1, 2, 100, Skips([range(12_595_200, 12_697_600)])), 12_582_912)

POSITIONS = st.integers(0, COUNT_MAX - 1)
SKIPS = st.lists(
    st.builds(lambda first, last: range(first, last + 1), POSITIONS, POSITIONS), max_size=SKIP_RANGES_MAX
).map(Skips)
SPECS = st.builds(
    PlanSpec,
    st.integers(0, SEED_MAX),
    st.integers(0, SEED_MAX),
    st.none() | st.integers(0, GROUP_CHUNKS_MAX),
    SKIPS,
)
CURSORS = st.builds(Cursor, st.text("0123456789abcdef", min_size=24, max_size=24), SPECS, POSITIONS)


def with_check_sum(text: str) -> str:
    return f"{text}.{zlib.crc32(text.encode()):08x}"


def test_the_text_is_as_its_page_says() -> None:
    assert str(PLAIN) == TEXT and Cursor.parse(TEXT) == PLAIN
    text = with_check_sum(f"order2.{DIGEST}.s1.e2.p40")
    assert Cursor.parse(text) == Cursor(DIGEST, PlanSpec(1, 2), 40) and str(Cursor.parse(text)) == text


@given(CURSORS)
def test_every_cursor_is_read_as_it_was_written(cursor: Cursor) -> None:
    text = str(cursor)
    assert Cursor.parse(text) == cursor
    assert len(text) <= CURSOR_CHARACTERS_MAX
    assert re.fullmatch(r"[A-Za-z0-9.-]+", text)  # fits into a file name, an option, an address


def test_no_cursor_is_too_long_to_be_read() -> None:
    last = COUNT_MAX - 1
    skips = Skips(range(last - 2 * n, last - 2 * n + 1) for n in range(SKIP_RANGES_MAX))
    cursor = Cursor(DIGEST, PlanSpec(SEED_MAX, SEED_MAX, GROUP_CHUNKS_MAX, skips), last)
    assert Cursor.parse(str(cursor)) == cursor


@given(CURSORS, st.data())
def test_a_cursor_that_was_cut_or_changed_is_refused(cursor: Cursor, data: st.DataObject) -> None:
    text = str(cursor)
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from("0123456789abcdefgpsx.- \n").filter(lambda one: one != text[place]))
    for wrong in (text[:place], text[:place] + other + text[place + 1 :], text + other):
        with pytest.raises(InvalidInput):
            Cursor.parse(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "order1",
        f"order1.{DIGEST}.s01.e0.g1.p0",
        f"order1.{DIGEST}.s-1.e0.g1.p0",
        f"order1.{DIGEST.upper()}.s1.e0.g1.p0",
        f"order1.{DIGEST}.s{SEED_MAX + 1}.e0.g1.p0",
        f"order1.{DIGEST}.s1.e{SEED_MAX + 1}.g1.p0",
        f"order1.{DIGEST}.s1.e0.g{GROUP_CHUNKS_MAX + 1}.p0",
        f"order1.{DIGEST}.s1.e0.g1.p{COUNT_MAX + 1}",
        f"order1.{DIGEST}.s1.e0.g1.p0.x5-4",
        f"order1.{DIGEST}.s1.e0.g1.p0.x5-6.x1-2",
        f"order1.{DIGEST}.s1.e0.g1.p0.x1-2.x3-4",
        f"order1.{DIGEST}.s1.e0.g1.p0.x1-99999999999",
        f"order1.{DIGEST}.s1.e0.g1.p0" + "".join(f".x{2 * n}-{2 * n}" for n in range(SKIP_RANGES_MAX + 1)),
        f"order1.{DIGEST}.s1.e0.g1.p0" + ".x1-1" * 10_000,
    ],
)
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="cursor"):
        Cursor.parse(with_check_sum(text))


def test_another_version_of_the_order_is_refused() -> None:
    with pytest.raises(InvalidInput, match="of order 3, this version of dieselfs has order 1, order 2"):
        Cursor.parse(with_check_sum(f"order3.{DIGEST}.s1.e0.g1.p0"))


@pytest.mark.parametrize("text", [f"order2.{DIGEST}.s1.e0.g1.p0", f"order1.{DIGEST}.s1.e0.p0"])
def test_only_version_1_has_a_group(text: str) -> None:
    with pytest.raises(InvalidInput, match="version 1 have a group, those of 2 have none"):
        Cursor.parse(with_check_sum(text))


def test_more_can_be_skipped_ahead_of_a_cursor() -> None:
    cursor = Cursor(DIGEST, PlanSpec(1, 0, 10, Skips([range(10, 20)])), 50)  # reached: 60 in the whole order
    more = cursor.skipping([range(60, 70), range(100, 110)])
    assert more.spec.skips == Skips([range(10, 20), range(60, 70), range(100, 110)]) and more.position == 50
    assert cursor.skipping([range(12, 15)]) == cursor
    for behind in (range(59, 61), range(1), range(20, 21)):
        with pytest.raises(InvalidInput, match="before position 50"):
            cursor.skipping([behind])
