from hypothesis import given
from hypothesis import strategies as st

from dieselfs.limits import KIB, MIB
from dieselfs_client.mount.reading.read_around import (
    ANSWERED_BYTES_MAX,
    RANGES_REMEMBERED_MAX,
    SCATTERED_MIN,
    ReadAround,
)

INODE = 7
PAGE = 4 * KIB
APART = 8 * MIB


def refusals(around: ReadAround, size: int, wanted_bytes: int, requests: int, inode: int = INODE) -> int:
    """Requests of `size`; of each that is refused, a program wants some bytes in the middle, page by page."""
    refused = 0
    for number in range(requests):
        offset = number * APART
        around.requested(inode, offset, offset + size)
        if around.is_unwanted(inode, offset, offset + size):
            refused += 1
            first = offset + (size - wanted_bytes) // 2
            for page in range(first, first + wanted_bytes, PAGE):
                around.requested(inode, page, page + PAGE)
    return refused


def test_requests_of_which_little_is_wanted_are_refused_after_the_first() -> None:
    assert refusals(ReadAround(), 1 * MIB, 16 * KIB, 100) == 100 - SCATTERED_MIN
    assert refusals(ReadAround(), 128 * KIB, 16 * KIB, 100) == 100 - SCATTERED_MIN, "without root"


def test_requests_of_which_all_is_wanted_are_refused_once() -> None:
    assert refusals(ReadAround(), 1 * MIB, 1 * MIB, 100) == 1
    assert refusals(ReadAround(), 1 * MIB, 300 * KIB, 100) == 1, "a quarter is much"


def test_small_requests_are_answered() -> None:
    assert refusals(ReadAround(), ANSWERED_BYTES_MAX, PAGE, 100) == 0


def test_each_file_is_judged_alone() -> None:
    around = ReadAround()
    assert refusals(around, 1 * MIB, 1 * MIB, 10) == 1
    assert refusals(around, 1 * MIB, PAGE, 10, inode=8) == 10 - SCATTERED_MIN
    assert refusals(around, 1 * MIB, PAGE, 10) == 0, "the first is still remembered"


def test_files_are_forgotten() -> None:
    around = ReadAround(files_max=2)
    assert refusals(around, 1 * MIB, 1 * MIB, 10) == 1
    for inode in (8, 9):
        refusals(around, 1 * MIB, PAGE, 1, inode)
    assert refusals(around, 1 * MIB, PAGE, 10) == 10 - SCATTERED_MIN


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 512)), max_size=60))
def test_what_was_refused_is_answered_when_it_is_requested_again(requests: list[tuple[int, int]]) -> None:
    around = ReadAround()
    for place, pages in requests:
        offset, end = place * 64 * KIB, place * 64 * KIB + pages * PAGE
        if around.is_unwanted(INODE, offset, end):
            middle = (offset + end) // 2
            for first, last in ((offset, end), (middle, middle + 1), (offset, offset + 96 * KIB)):
                around.requested(INODE, first, last)
                assert not around.is_unwanted(INODE, first, last)


def test_a_range_is_remembered_until_some_of_it_is_requested_again() -> None:
    """A thread may be slow, and its kernel may request the whole range again."""
    around = ReadAround()
    refusals(around, 1 * MIB, PAGE, SCATTERED_MIN)
    places = [number * APART for number in range(SCATTERED_MIN, SCATTERED_MIN + 2 * RANGES_REMEMBERED_MAX)]
    refused = [place for place in places if around.is_unwanted(INODE, place, place + MIB)]
    assert refused == places[:RANGES_REMEMBERED_MAX]
    for place in refused:
        around.requested(INODE, place, place + MIB)
        assert not around.is_unwanted(INODE, place, place + MIB)
