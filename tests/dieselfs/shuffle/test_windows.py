"""Samples of tokens: cut as the page says, each in the chunk of its first byte."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.errors import InvalidInput
from dieselfs.shuffle.order import Order
from dieselfs.shuffle.spec import PlanSpec
from dieselfs.shuffle.windows import Stream, WindowLayout, Windows, document_places, is_after, is_start
from tests.support import reference_order

STREAMS = st.lists(
    st.builds(Stream.whole, st.integers(0, 200), st.sampled_from([1, 2, 4, 8]), st.integers(0, 500)),
    min_size=1,
    max_size=4,
)


@given(STREAMS, st.integers(1, 40), st.data())
def test_samples_are_cut_one_after_the_other(streams: list[Stream], length: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, length - 1))
    windows = Windows(streams, length, overlap)
    expected = [
        (number, first)
        for number, stream in enumerate(streams)
        for first in range(0, stream.tokens - length + 1, length - overlap)
    ]
    found = windows.places(np.arange(len(windows)))
    assert list(zip(*(part.tolist() for part in found), strict=True)) == expected


@given(
    STREAMS,
    st.integers(1, 20),
    st.integers(1, 300),
    st.sampled_from([None, 0, 1, 2]),
    st.integers(0, 2**64 - 1),
)
def test_the_order_is_that_of_the_page(
    streams: list[Stream], length: int, extent_bytes: int, group: int | None, seed: int
) -> None:
    """Chunks are cut every `extent_bytes` of each file; the reference has Python's integers and the page alone."""
    windows = Windows(streams, length)
    if not len(windows):
        return
    places = [np.arange(0, max(each.end_byte, 1), extent_bytes) for each in streams]
    chunks = np.arange(sum(map(len, places)))
    runs = [windows.runs(number, each) for number, each in enumerate(places)]
    ids = np.stack([np.zeros(len(chunks), np.uint64), chunks.astype(np.uint64)], 1)
    firsts, counts = (np.concatenate(part) for part in zip(*runs, strict=True))
    layout = WindowLayout(ids, chunks, firsts, counts, b"", b"digest")
    of_sample = layout.chunks_of(np.arange(len(windows))).tolist()
    before = np.cumsum([0, *map(len, places)])
    for sample, (number, token) in enumerate(zip(*windows.places(np.arange(len(windows))), strict=True)):
        byte = int(streams[number].begins[0]) + int(token) * streams[number].item_bytes
        assert of_sample[sample] == before[number] + byte // extent_bytes
    used = sorted(set(of_sample))
    expected = reference_order.order(
        [int(chunk).to_bytes(16, "big") for chunk in used],
        {sample: used.index(chunk) for sample, chunk in enumerate(of_sample)},
        seed,
        3,
        group,
    )
    order = Order(layout, PlanSpec(seed, 3, group))
    assert order.nodes(0, len(order.bounds) - 1).tolist() == expected
    some = np.arange(0, len(windows), 2, dtype=np.uint64)
    chosen = Order(layout.select(some), PlanSpec(seed, 3, group))
    assert chosen.nodes(0, len(chosen.bounds) - 1).tolist() == [each for each in expected if each % 2 == 0]


def test_documents() -> None:
    tokens = np.array([[5, 0, 6, 7, 0, 0, 8]])
    places, documents = document_places(is_after(tokens, 0))
    assert places.tolist() == [[0, 1, 0, 1, 2, 0, 0]] and documents.tolist() == [[0, 0, 1, 1, 1, 2, 3]]
    starts = is_start(np.array([0, 4, 9]), 4, np.array([0, 3, 4, 6]))
    assert starts.tolist() == [[True, False, False, True], [True, False, True, False], [False] * 4]
    assert document_places(starts)[0].tolist() == [[0, 1, 2, 0], [0, 1, 0, 1], [0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("length", "overlap", "message"),
    [
        (0, 0, "length is 0"),
        (2.5, 0, "length is 2.5"),
        (8, 8, "overlap is 8: give a number of tokens from 0 to 7"),
    ],
)
def test_numbers_are_checked(length: int, overlap: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Windows([Stream.whole(0, 2, 100)], length, overlap)


def test_more_samples_than_a_cursor_can_name_are_refused() -> None:
    with pytest.raises(InvalidInput, match="4,294,967,296 samples, and an order has at most 4,294,967,295"):
        Windows([Stream.whole(0, 2, 1 << 40)], 256)
    assert len(Windows([Stream.whole(0, 2, 1 << 40)], 257)) < 1 << 32


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), min_size=1, max_size=8), st.data())
def test_tokens_in_several_stretches(parts: list[tuple[int, int]], data: st.DataObject) -> None:
    """`parts`: bytes that are skipped, and tokens of 2 bytes that follow them."""
    begins, byte, places = [], 0, list[int]()
    for gap, count in parts:
        begins.append(byte + gap)
        places += range(begins[-1], begins[-1] + 2 * count, 2)
        byte = begins[-1] + 2 * count
    stream = Stream(np.array(begins), np.array([count for _, count in parts]), 2)
    assert stream.bytes_of(np.arange(stream.tokens)).tolist() == places
    expected = [sum(place < byte for place in places) for byte in range(byte + 1)]
    assert stream.tokens_before(np.arange(byte + 1)).tolist() == expected
    first = data.draw(st.integers(0, stream.tokens))
    length = data.draw(st.integers(0, stream.tokens - first))
    read = [at + 2 * number for at, count in stream.pieces(first, length) for number in range(count)]
    assert read == places[first : first + length]
