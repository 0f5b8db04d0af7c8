"""Contents in memory beside a pipe: whole, in order, and nothing that a writer does ends its reader."""

import fcntl
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dieselfs.errors import Damaged
from dieselfs_tools.transfers.content_ring import CONTENT_BYTES_MIN, RING_BYTES, ContentRing, ring_memory
from dieselfs_tools.transfers.messages import PART_BYTES_MAX, Reader, Writer


@pytest.fixture
def ends() -> Iterator[tuple[ContentRing, ContentRing]]:
    with ring_memory() as memory:
        yield ContentRing(memory), ContentRing(memory)


def test_a_content_stays_until_it_is_taken(ends: tuple[ContentRing, ContentRing]) -> None:
    writer, reader = ends
    numbers, waiting = random.Random(4), list[tuple[int, bytes]]()
    refused = 0
    while refused < 50:
        content = numbers.randbytes(numbers.randrange(CONTENT_BYTES_MIN, PART_BYTES_MAX + 1))
        position = writer.append(content)
        if position is not None:
            waiting.append((position, content))
            continue
        refused += 1
        assert sum(len(each) for _, each in waiting) + 2 * PART_BYTES_MAX > RING_BYTES, "there was room"
        for _ in range(numbers.randrange(1, len(waiting) + 1)):
            place, expected = waiting.pop(0)
            assert reader.take(place, len(expected)) == expected


def test_small_contents_go_through_the_pipe(ends: tuple[ContentRing, ContentRing]) -> None:
    assert ends[0].append(bytes(CONTENT_BYTES_MIN - 1)) is None


@pytest.mark.parametrize(
    ("position", "size"), [(RING_BYTES - 1, 2), (5 * RING_BYTES - 9, 10), ((1 << 64) - 2, 9), (1, RING_BYTES)]
)
def test_no_content_is_outside_of_the_memory(
    ends: tuple[ContentRing, ContentRing], position: int, size: int
) -> None:
    with pytest.raises(Damaged, match="from outside of its memory"):
        ends[1].take(position, size)


def test_a_writer_can_neither_cut_nor_unseal_the_memory() -> None:
    """A reader that touches memory behind the end would be killed."""
    with ring_memory() as memory:
        for length in (0, 2 * RING_BYTES):
            with pytest.raises(PermissionError):
                os.ftruncate(memory, length)
        with pytest.raises(PermissionError):
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_messages_are_whole_whichever_way_their_contents_go(ends: tuple[ContentRing, ContentRing]) -> None:
    """The writer is far ahead of the reader until the pipe is full."""
    numbers = random.Random(5)
    contents = [numbers.randbytes(numbers.choice((10, 40_000, 700_000))) for _ in range(80)]
    ours, theirs = os.pipe()
    writer, reader = Writer(theirs, ends[0]), Reader(ours, ends[1])

    def write() -> None:
        for number, content in enumerate(contents):
            writer.put("part", number, content=content)
        writer.flush()
        os.close(theirs)

    with ThreadPoolExecutor(1) as thread:
        written = thread.submit(write)
        for number, content in enumerate(contents):
            assert reader.receive(lambda: None) == (["part", number], content)
        assert reader.receive(lambda: None) is None
        written.result()
    os.close(ours)
