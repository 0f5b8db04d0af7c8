"""Which extents make up a file that spans chunks. No I/O."""

from collections.abc import Iterable


def tiling(extents: Iterable[tuple[int, int]], size: int) -> list[tuple[int, int]] | None:
    """Extents `(place, length)` that follow each other from 0 to `size` without gap or overlap; None if there are none.

    If several chains cover the file, the longest extent at each place is used. So another extent may change the result,
    but never make it None: a complete file stays complete.
    """
    length_at: dict[int, int] = {}  # the places from which a chain leads to the end
    for place, length in sorted(extents, reverse=True):
        end = place + length
        if place not in length_at and (end == size or end in length_at):
            length_at[place] = length
    chosen: list[tuple[int, int]] = []
    place = 0
    while place < size:
        if place not in length_at:
            return None
        chosen.append((place, length_at[place]))
        place += length_at[place]
    return chosen
