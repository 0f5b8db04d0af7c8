"""The index from paths to nodes: changing it gives the same slots as making it from all paths."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs.arrays import Numbers
from dieselfs.snapshot import hash_index
from dieselfs.snapshot.hash_index import changed_slots, hash_bits_for, hash_slots
from dieselfs.snapshot.splice import Splice

DATASET_ID = bytes(range(16))
numbers = st.sets(st.integers(0, 400), max_size=300)


@settings(max_examples=100)
@given(numbers, numbers)
def test_a_changed_index_is_that_of_all_paths(before: set[int], after: set[int]) -> None:
    old = [b"", *(b"%d" % number for number in sorted(before))]
    new = [b"", *(b"%d" % number for number in sorted(after))]
    if hash_bits_for(len(old)) != hash_bits_for(len(new)):
        return
    removed = np.array([node for node, path in enumerate(old) if path not in new], np.int64)
    added = np.array([node for node, path in enumerate(new) if path not in old], np.int64)

    def old_paths(nodes: Numbers) -> list[bytes]:
        return [old[node] for node in nodes.tolist()]

    for few, many, block in ((1, 1, 1), (2, 7, 3), (1 << 12, 1 << 20, 1 << 16)):
        with pytest.MonkeyPatch.context() as small:
            small.setattr(hash_index, "WINDOW_SLOTS", few)
            small.setattr(hash_index, "WINDOW_SLOTS_MAX", many)
            small.setattr(hash_index, "BLOCK_SLOTS", block)
            slots = changed_slots(
                hash_slots(old, DATASET_ID),
                hash_bits_for(len(old)),
                Splice(len(old), removed, added),
                [new[node] for node in added.tolist()],
                old_paths,
                DATASET_ID,
            )
            assert np.concatenate(list(slots)).tolist() == hash_slots(new, DATASET_ID).tolist()


def test_only_the_paths_near_a_change_are_hashed() -> None:
    paths = [b"", *(b"%07d" % number for number in range(40_000))]
    asked: list[int] = []

    def old_paths(nodes: Numbers) -> list[bytes]:
        asked.extend(nodes.tolist())
        return [paths[node] for node in nodes.tolist()]

    slots, bits = hash_slots(paths, DATASET_ID), hash_bits_for(len(paths))
    nodes = Splice(len(paths), np.array([], np.int64), np.array([len(paths)]))
    changed = changed_slots(slots, bits, nodes, [b"new"], old_paths, DATASET_ID)
    assert np.concatenate(list(changed)).tolist() == hash_slots([*paths, b"new"], DATASET_ID).tolist()
    assert len(asked) < 100
