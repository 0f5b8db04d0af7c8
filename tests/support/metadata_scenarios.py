"""Chunks for tests of metadata stores: random ones, and scenarios in which the order could matter."""

from itertools import pairwise

from hypothesis import strategies as st

from dieselfs.chunk.format import Op
from tests.support.metadata_chunks import Put, delete

PATHS = [b"a", b"a/b", b"a/b/c", b"a-", b"x/d/\xff\n", b"x/d/f", b"x/d"]
"""Files that are also folders of other paths, a name that sorts between a folder and its content, and no valid UTF-8.
"""


def extents_of(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[int, int, int]]:
    """`(size, place, length)` of an extent, sometimes of a whole file."""
    return sizes.flatmap(
        lambda size: st.integers(0, size - 1).flatmap(
            lambda place: st.integers(1, size - place).map(lambda length: (size, place, length))
        )
    )


VERSIONS = st.integers(1, 6)
PUTS = st.one_of(
    st.builds(Put, st.sampled_from(PATHS), VERSIONS, size=st.integers(0, 3), mtime_ns=st.integers(-3, 3)),
    st.builds(delete, st.sampled_from(PATHS), VERSIONS),
    st.builds(
        Put, st.sampled_from([b"", *PATHS]), VERSIONS, st.just(Op.DIRECTORY), mode=st.integers(0, 0o7777)
    ),
    st.builds(
        Put,
        st.sampled_from(PATHS),
        VERSIONS,
        st.just(Op.SYMLINK),
        target=st.sampled_from([b"t", b"../x\xff"]),
    ),
    st.builds(
        lambda path, version, extent: Put(path, version, Op.FILE, *extent),
        st.sampled_from([b"a", b"a/b", b"x/d"]),
        st.integers(1, 3),
        extents_of(st.integers(1, 6)),
    ),
)
CHUNKS = st.lists(st.lists(PUTS, max_size=6), min_size=1, max_size=6)


@st.composite
def cut_files(draw: st.DrawFn) -> list[list[Put]]:
    """Chunks in which one path is put many times, mostly in extents that cover the file."""
    puts: list[Put] = []
    for _ in range(draw(st.integers(1, 5))):
        version, size = draw(st.integers(1, 3)), draw(st.sampled_from([2, 3, 3, 4]))
        kind = draw(st.sampled_from(["cut", "cut", "cut", "extent", "whole", "delete"]))
        if kind == "delete":
            puts.append(delete(b"x/d/f", version))
        elif kind == "whole":
            puts.append(Put(b"x/d/f", version, size=size))
        else:
            ends = sorted({size, *draw(st.lists(st.integers(1, size - 1), max_size=2))})
            extents = [
                Put(
                    b"x/d/f",
                    version,
                    Op.FILE,
                    size,
                    start,
                    end - start,
                    mode=draw(st.sampled_from([0o600, 0o644])),
                )
                for start, end in pairwise([0, *ends])
            ]
            puts += extents if kind == "cut" else extents[:1]
    chunks: list[list[Put]] = [[] for _ in range(draw(st.integers(1, 5)))]
    for put in puts:
        chunks[draw(st.integers(0, len(chunks) - 1))].append(put)
    return chunks


def _extent(version: int, size: int, place: int, length: int, mode: int = 0o644) -> Put:
    return Put(b"x/d/f", version, Op.FILE, size, place, length, mode)


SCENARIOS: dict[str, list[list[Put]]] = {
    "extents end a deletion, and are deleted": [
        [delete(b"x/d/f", 1)],
        [_extent(2, 5, 0, 2)],
        [_extent(2, 5, 2, 3)],
        [delete(b"x/d/f", 3)],
    ],
    "a file cut in two ways is read from the longest extents": [
        [_extent(1, 4, 0, 1), _extent(1, 4, 1, 1), _extent(1, 4, 2, 2)],
        [_extent(1, 4, 0, 2)],
        [_extent(1, 4, 0, 3), _extent(1, 4, 3, 1)],
    ],
    "a chain with a gap does not count": [
        [_extent(1, 4, 0, 3)],
        [_extent(1, 4, 0, 2), _extent(1, 4, 1, 3)],
        [_extent(1, 4, 2, 2)],
    ],
    "a whole entry precedes extents of its version": [
        [_extent(1, 4, 0, 2), _extent(1, 4, 2, 2)],
        [Put(b"x/d/f", 1, size=4)],
        [_extent(1, 4, 0, 2, mode=0o600)],
    ],
    "of two sizes of one version the larger counts": [
        [_extent(1, 2, 0, 1), _extent(1, 2, 1, 1)],
        [_extent(1, 3, 0, 1), _extent(1, 3, 1, 2)],
        [_extent(1, 2, 1, 1)],
    ],
    "extents of two versions in one chunk": [
        [_extent(2, 2, 0, 1), _extent(1, 2, 0, 1), _extent(1, 2, 1, 1), _extent(2, 2, 1, 1)],
        [_extent(1, 2, 1, 1)],
    ],
    "mode and time are those of the newest copy of the first extent": [
        [_extent(1, 2, 0, 1, mode=0o600)],
        [_extent(1, 2, 0, 1, mode=0o640), _extent(1, 2, 1, 1, mode=0o400)],
        [_extent(1, 2, 1, 1, mode=0o444)],
    ],
    "several members appear and disappear at once": [
        [Put(b"x/d/f", 1), Put(b"x/d/g", 2), Put(b"x/d/h/i", 3)],
        [delete(b"x/d/f", 4), delete(b"x/d/g", 5)],
        [delete(b"x/d/h/i", 6), Put(b"x/d/k", 7, Op.SYMLINK, target=b"t")],
        [delete(b"x/d/k", 8)],
    ],
    "one path many times in a chunk": [
        [Put(b"x/d/f", 3, size=1), Put(b"x/d/f", 5, size=2), delete(b"x/d/f", 4), Put(b"x/d/f", 5, size=3)],
        [Put(b"x/d/f", 4, size=9)],
    ],
}
