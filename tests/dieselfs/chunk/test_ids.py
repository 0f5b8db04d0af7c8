"""Chunk IDs: they sort by time in both forms, and no writer makes one twice."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.chunk.ids import (
    CHUNK_NAME_CHARACTERS,
    ChunkIdSource,
    chunk_name,
    chunk_time_s,
    earliest_chunk_id,
    parse_chunk_name,
)
from dieselfs.errors import InvalidInput

MACHINE = bytes.fromhex("0242ac110002")

chunk_ids = st.binary(min_size=16, max_size=16)


def source_at(
    *times_s: float, first_counter: int | None = 0, process: Callable[[], int] = lambda: 42
) -> ChunkIdSource:
    """A source whose clock shows these times, one for each ID."""
    clock: Iterator[float] = iter(times_s)
    return ChunkIdSource(lambda: next(clock), MACHINE, process, first_counter)


def test_fields_lie_where_the_format_says() -> None:
    chunk_id = source_at(0x65920080 + 0.9, first_counter=7).next()
    assert chunk_id == bytes.fromhex("659200800242ac11000200002a000007")
    assert chunk_time_s(chunk_id) == 0x65920080
    assert chunk_name(chunk_id) == "OO7-V-81f03--V--9V--0k"


@given(chunk_ids, chunk_ids)
def test_names_sort_as_the_ids_do(one: bytes, other: bytes) -> None:
    assert (chunk_name(one) < chunk_name(other)) == (one < other)


@given(chunk_ids)
def test_names_round_trip_and_are_safe_in_file_names(chunk_id: bytes) -> None:
    name = chunk_name(chunk_id)
    assert len(name) == CHUNK_NAME_CHARACTERS
    assert all(c.isascii() and (c.isalnum() or c in "-_") for c in name)
    assert parse_chunk_name(name) == chunk_id


@pytest.mark.parametrize("length", [0, 15, 17])
def test_only_16_bytes_have_a_name(length: int) -> None:
    with pytest.raises(InvalidInput, match="a chunk ID has 16 bytes"):
        chunk_name(bytes(length))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-" * 21,
        "-" * 23,
        "-" * 21 + "+",
        "-" * 21 + "=",
        "-" * 21 + "/",
        "-" * 21 + "é",
        "-" * 21 + "\0",
        "-" * 21 + " ",
        "../" + "-" * 19,
        "-" * 21 + "0",  # the last character may carry only two bits
        "-" * 21 + "\udc80",
        "-" * 1_000_000,
    ],
)
def test_texts_that_are_no_names(name: str) -> None:
    with pytest.raises(InvalidInput, match="is not a chunk ID") as caught:
        parse_chunk_name(name)
    assert len(str(caught.value)) < 200


@given(st.text(alphabet="-0AZ_az", min_size=22, max_size=22))
def test_no_two_texts_name_one_chunk(name: str) -> None:
    try:
        chunk_id = parse_chunk_name(name)
    except InvalidInput:
        return
    assert chunk_name(chunk_id) == name


def test_earliest_id_of_a_second() -> None:
    before, first, then = source_at(99.99, 100.0, 100.5).next, earliest_chunk_id(100), earliest_chunk_id(101)
    assert before() < first <= before() < then
    assert before() < then
    assert earliest_chunk_id(-5) == bytes(16)
    assert earliest_chunk_id(1 << 40) == b"\xff" * 4 + bytes(12)


def test_ids_rise_while_the_clock_stands_and_steps_back() -> None:
    ids = source_at(100, 100, 40, 99, 100, 101, 101, 3)
    made = [ids.next() for _ in range(8)]
    assert made == sorted(set(made))
    assert [chunk_time_s(chunk_id) for chunk_id in made] == [100] * 5 + [101] * 3


def test_a_counter_that_goes_round_borrows_from_the_next_second() -> None:
    ids = source_at(100, 100, 100, 101, 102, first_counter=(1 << 24) - 2)
    made = [ids.next() for _ in range(5)]
    assert made == sorted(set(made))
    assert [chunk_id[13:].hex() for chunk_id in made] == ["fffffe", "ffffff", "000000", "000001", "000002"]
    assert [chunk_time_s(chunk_id) for chunk_id in made] == [100, 100, 101, 101, 102]


def test_a_counter_that_goes_round_in_a_new_second_needs_no_other() -> None:
    ids = source_at(100, 101, first_counter=(1 << 24) - 1)
    assert [chunk_time_s(ids.next()) for _ in range(2)] == [100, 101]


def test_two_writers_start_at_different_counters() -> None:
    """The machine and the process number may be the same: containers share both."""
    made = {ChunkIdSource(lambda: 100, MACHINE, lambda: 1).next() for _ in range(20)}
    assert len(made) == 20


def test_after_a_fork_the_child_makes_its_own() -> None:
    process = [1]
    ids = ChunkIdSource(lambda: 100, MACHINE, lambda: process[0], 5)
    parents = [ids.next()]
    process[0] = 2
    childs = [ids.next(), ids.next()]
    process[0] = 1
    parents.append(ids.next())
    assert [chunk_id[10:13] for chunk_id in parents + childs] == [b"\0\0\1"] * 2 + [b"\0\0\2"] * 2
    assert len({*parents, *childs}) == 4


def test_a_forked_child_of_ours_makes_its_own() -> None:
    ids = ChunkIdSource(lambda: 100, MACHINE)
    ids.next()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, ids.next())
        os._exit(0)
    with os.fdopen(writer, "wb"), os.fdopen(reader, "rb") as pipe:
        made = pipe.read(16)
    assert os.waitpid(child, 0)[1] == 0
    assert made[10:13] == (child % (1 << 24)).to_bytes(3, "big")
    assert made != ids.next()


def test_a_process_number_of_more_than_three_bytes() -> None:
    chunk_id = source_at(100, process=lambda: (1 << 24) + 3).next()
    assert chunk_id[10:13] == b"\0\0\3"


def test_threads_never_get_the_same_id() -> None:
    ids = ChunkIdSource(lambda: 100, MACHINE)

    def make(_: int) -> list[bytes]:
        return [ids.next() for _ in range(2_000)]

    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(make, range(8)))
    assert len({chunk_id for part in made for chunk_id in part}) == 16_000
    assert all(part == sorted(part) for part in made)
