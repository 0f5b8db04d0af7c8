"""Losses as text: in pieces of any size, in order, and nothing malformed."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.errors import InvalidInput
from dieselfs.importance.score_lines import LINE_BYTES_MAX, LossBatch, ScoreLines

TEXT = b"0.5 a/1.jpg\n2 b/with blank\n\n\n1e-3 c\n\n7 open"


def written(pieces: list[bytes]) -> list[LossBatch]:
    lines, found = ScoreLines(), []
    for piece in pieces:
        found += lines.write(lines.length_bytes, piece)
    return found


@given(cuts=st.lists(st.integers(0, len(TEXT)), max_size=5))
def test_pieces_of_any_size_give_the_same_batches(cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), len(TEXT)]
    found = written([TEXT[first:end] for first, end in pairwise(bounds)])
    assert [(batch.paths, batch.losses.tolist()) for batch in found] == [
        ([b"a/1.jpg", b"b/with blank"], [0.5, 2.0]),
        ([b"c"], [0.001]),
    ]


def test_an_accuracy_comes_with_a_batch_or_alone() -> None:
    found = written([b"accuracy 0.5\n\n1 a\naccuracy 0.6\naccuracy 0.7\n\n2 b\n\n"])
    assert [(batch.paths, batch.accuracy) for batch in found] == [([], 0.5), ([b"a"], 0.7), ([b"b"], None)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"path\n", "not LOSS PATH"),
        (b"1.0\n", "not LOSS PATH"),
        (b"1.0 \n", "not LOSS PATH"),
        (b"high a.jpg\n", "not LOSS PATH"),
        (b"1 a.jpg\nnan b.jpg\n\n", "the loss of b.jpg is nan"),
        (b"inf a.jpg\n\n", "the loss of a.jpg is inf"),
        (b"accuracy nan\n\n", "the accuracy is nan"),
        (b"accuracy high\n", "not LOSS PATH"),
        (b"1 " + b"x" * LINE_BYTES_MAX, "longer than"),
    ],
)
def test_what_is_malformed_is_refused_with_its_batch(text: bytes, reason: str) -> None:
    lines = ScoreLines()
    assert not lines.write(0, b"5 before.jpg\n")
    with pytest.raises(InvalidInput, match=reason):
        lines.write(lines.length_bytes, text)
    (batch,) = lines.write(lines.length_bytes, b"3 after.jpg\n\n")
    assert batch.paths == [b"after.jpg"]


def test_a_batch_without_end_is_refused() -> None:
    lines = ScoreLines()
    piece = b"".join(b"1 %s\n" % (b"x" * 4_000) for _ in range(1_000))
    lines.write(0, piece)
    lines.write(lines.length_bytes, piece)
    with pytest.raises(InvalidInput, match="more than 8 MiB"):
        lines.write(lines.length_bytes, piece)
    lines.write(lines.length_bytes, piece)


def test_pieces_follow_each_other() -> None:
    lines = ScoreLines()
    lines.write(0, b"1 a\n")
    for offset in (0, 3, 5):
        with pytest.raises(InvalidInput, match="write them in order"):
            lines.write(offset, b"1 b\n")
