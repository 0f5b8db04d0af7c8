"""Random trees are the same on a mount as they were stored, in each view and with each driver."""

import os
import random
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dieselfs.limits import NEW_PATH_DEPTH_MAX
from dieselfs_client.mount.points.options import MountOptions
from tests.support.dataset import TreeEntry, pack_entries
from tests.support.mounted import mounted
from tests.support.random_trees import random_trees
from tests.support.trees import described

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")

TREES = 10
"""In one dataset, as a mount takes a second."""
DEPTH = NEW_PATH_DEPTH_MAX
CHUNK_BYTES = 50_000
BORDERS = (4095, 4096, 4097, 8191, 8193, 49_999, 50_000, 50_001, 65_536, 131_073, 200_003)
"""Sizes around those of pages and blocks, of a chunk, and of files in two to five chunks."""
FOLDER_MODE = 0o40755


def deep_entries() -> dict[bytes, TreeEntry]:
    """Folders within each other, and a file at the bottom."""
    paths = [b"/".join([b"d"] * depth) for depth in range(1, DEPTH)]
    entries = {path: TreeEntry(path, FOLDER_MODE, depth) for depth, path in enumerate(paths)}
    bottom = paths[-1] + b"/f"
    return {**entries, bottom: TreeEntry(bottom, 0o100644, 0, b"far down")}


def border_entries() -> dict[bytes, TreeEntry]:
    """Files of sizes around borders, each of other bytes, and the longest link."""
    chance = random.Random(10)
    files = [TreeEntry(b"size-%d" % size, 0o100644, size, chance.randbytes(size)) for size in BORDERS]
    link = TreeEntry(b"longest-link", 0o120777, 1, b"\xff" * 4095)
    return {entry.path: entry for entry in (*files, link)}


@given(trees=st.lists(random_trees(), min_size=TREES, max_size=TREES))
@settings(max_examples=3, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_a_mount_shows_what_was_stored(
    options: MountOptions, trees: list[dict[bytes, TreeEntry]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    entries = deep_entries() | border_entries()
    for number, tree in enumerate(trees):
        folder = b"%d" % number
        entries[folder] = TreeEntry(folder, FOLDER_MODE, number)
        for path, entry in tree.items():
            place = folder + b"/" + path
            entries[place] = TreeEntry(place, entry.mode, entry.mtime_ns, entry.content)
    packed = pack_entries([entries[path] for path in sorted(entries)], chunk_bytes=CHUNK_BYTES)
    wanted = {path: (of.mode, of.mtime_ns, of.content) for path, of in entries.items()}
    folder_of_mount: Path = tmp_path_factory.mktemp("mounted")
    with mounted(packed, folder_of_mount, options=options) as running:
        assert described(running.path) == wanted
        assert described(running.path) == wanted, "from the page cache"
