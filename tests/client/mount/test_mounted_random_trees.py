"""Random trees are the same on a mount as they were stored, in each view."""

import os
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dieselfs_client.mount.options import MountOptions
from tests.support.dataset import TreeEntry, pack_entries
from tests.support.mounted import mounted
from tests.support.random_trees import random_trees
from tests.support.trees import described

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")

TREES = 10
"""In one dataset, as a mount takes a second."""
DEPTH = 256
FOLDER_MODE = 0o40755


def deep_entries() -> dict[bytes, TreeEntry]:
    """Folders within each other, and a file at the bottom."""
    paths = [b"/".join([b"d"] * depth) for depth in range(1, DEPTH)]
    entries = {path: TreeEntry(path, FOLDER_MODE, depth) for depth, path in enumerate(paths)}
    bottom = paths[-1] + b"/f"
    return {**entries, bottom: TreeEntry(bottom, 0o100644, 0, b"far down")}


@given(trees=st.lists(random_trees(), min_size=TREES, max_size=TREES))
@settings(max_examples=3, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_a_mount_shows_what_was_stored(
    view: str, trees: list[dict[bytes, TreeEntry]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    entries = deep_entries()
    for number, tree in enumerate(trees):
        folder = b"%d" % number
        entries[folder] = TreeEntry(folder, FOLDER_MODE, number)
        for path, entry in tree.items():
            place = folder + b"/" + path
            entries[place] = TreeEntry(place, entry.mode, entry.mtime_ns, entry.content)
    packed = pack_entries([entries[path] for path in sorted(entries)], chunk_bytes=50_000)
    wanted = {path: (of.mode, of.mtime_ns, of.content) for path, of in entries.items()}
    folder_of_mount: Path = tmp_path_factory.mktemp("mounted")
    with mounted(packed, folder_of_mount, options=MountOptions(view=view)) as running:
        assert described(running.path) == wanted
        assert described(running.path) == wanted, "from the page cache"
