"""Random trees for Hypothesis: names with any bytes, empty files, links, sizes around the borders of blocks."""

from hypothesis import strategies as st

from tests.support.dataset import TreeEntry

_names = st.binary(min_size=1, max_size=12).filter(
    lambda name: name not in (b".", b"..") and not set(name) & {0, ord("/")}
)


@st.composite
def random_trees(draw: st.DrawFn) -> dict[bytes, TreeEntry]:
    """Up to 40 entries by their path, each in the root or in a folder of the tree."""
    entries: dict[bytes, TreeEntry] = {}
    folders = [b""]
    for name in draw(st.lists(_names, max_size=40)):
        path = draw(st.sampled_from(folders)) + name
        if path in entries:
            continue
        kind = draw(st.sampled_from(("file", "folder", "link")))
        time_ns = draw(st.integers(-(10**18), 4 * 10**18))
        if kind == "folder":
            entries[path] = TreeEntry(path, 0o40750, time_ns, b"")
            folders.append(path + b"/")
        elif kind == "link":
            entries[path] = TreeEntry(path, 0o120777, time_ns, b"t" * draw(st.integers(1, 4095)))
        else:
            size = draw(st.sampled_from([0, 1, 511, 4095, 4096, 4097, 9000]))
            entries[path] = TreeEntry(path, 0o100640, time_ns, draw(st.binary(min_size=1, max_size=4)) * size)
    return entries
