"""Which pieces make up a file: any order, the longest first, and never fewer answers for more pieces."""

from itertools import combinations, permutations

from dieselfs_server.metadata.tiling import tiling


def test_pieces_that_follow_each_other_are_the_file() -> None:
    for pieces in permutations([(0, 3), (3, 1), (4, 6)]):
        assert tiling(pieces, 10) == [(0, 3), (3, 1), (4, 6)]


def test_a_gap_an_overlap_or_a_missing_end_is_no_file() -> None:
    for pieces in ([], [(0, 3)], [(0, 3), (4, 6)], [(0, 5), (4, 6)], [(1, 9)], [(0, 3), (3, 6)], [(0, 11)]):
        assert tiling(pieces, 10) is None


def test_the_longest_piece_that_leads_to_the_end_is_taken() -> None:
    assert tiling([(0, 1), (0, 2), (0, 3), (1, 3), (2, 2), (2, 1), (3, 1)], 4) == [(0, 3), (3, 1)]
    assert tiling([(0, 1), (0, 2), (0, 3), (1, 3), (2, 2)], 4) == [(0, 2), (2, 2)]


def test_a_piece_more_never_makes_a_file_incomplete() -> None:
    every = [(place, length) for place in range(4) for length in range(1, 5 - place)]
    for count in range(5):
        for pieces in combinations(every, count):
            if tiling(pieces, 4) is not None:
                assert all(tiling([*pieces, more], 4) is not None for more in every)
