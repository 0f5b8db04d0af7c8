"""Which pieces make up a file that spans chunks: a plain function of the pieces that there are, in any order."""

from collections.abc import Iterable


def tiling(pieces: Iterable[tuple[int, int]], size: int) -> list[tuple[int, int]] | None:
    """Pieces `(place, length)` that follow each other from 0 to `size` without gap or overlap; None if there are none.

    Where several ways lead to the end, the longest piece is taken at each place. So one more piece may change the
    answer, but never takes it away: a file that was complete stays complete.
    """
    length_at: dict[int, int] = {}  # from these places on, the rest of the file is there
    for place, length in sorted(pieces, reverse=True):
        end = place + length
        if place not in length_at and (end == size or end in length_at):
            length_at[place] = length
    chosen = []
    place = 0
    while place < size:
        if place not in length_at:
            return None
        chosen.append((place, length_at[place]))
        place += length_at[place]
    return chosen
