"""The index from paths to nodes: changing it gives the same slots as making it from all paths."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs.arrays import Numbers
from dieselfs.snapshot.hash_index import changed_slots, hash_bits_for, hash_slots

DATASET_ID = bytes(range(16))
numbers = st.sets(st.integers(0, 400), max_size=300)


@settings(max_examples=100)
@given(numbers, numbers)
def test_a_changed_index_is_that_of_all_paths(before: set[int], after: set[int]) -> None:
    old = [b"", *(b"%d" % number for number in sorted(before))]
    new = [b"", *(b"%d" % number for number in sorted(after))]
    if hash_bits_for(len(old)) != hash_bits_for(len(new)):
        return
    new_of_old = np.array([new.index(path) if path in new else -1 for path in old])
    added = np.array([node for node, path in enumerate(new) if path not in old], np.int64)

    def old_paths(nodes: Numbers) -> list[bytes]:
        return [old[node] for node in nodes.tolist()]

    for at_once in (1, 7, 1 << 20):
        slots = changed_slots(
            hash_slots(old, DATASET_ID),
            hash_bits_for(len(old)),
            new_of_old.__getitem__,
            (added, [new[node] for node in added.tolist()]),
            old_paths,
            DATASET_ID,
            at_once,
        )
        assert np.concatenate(list(slots)).tolist() == hash_slots(new, DATASET_ID).tolist()


def test_only_the_paths_near_a_change_are_hashed() -> None:
    paths = [b"", *(b"%07d" % number for number in range(40_000))]
    asked: list[int] = []

    def old_paths(nodes: Numbers) -> list[bytes]:
        asked.extend(nodes.tolist())
        return [paths[node] for node in nodes.tolist()]

    node = np.array([len(paths)])
    slots, bits = hash_slots(paths, DATASET_ID), hash_bits_for(len(paths))
    same = np.arange(len(paths)).__getitem__
    changed = changed_slots(slots, bits, same, (node, [b"new"]), old_paths, DATASET_ID)
    assert np.concatenate(list(changed)).tolist() == hash_slots([*paths, b"new"], DATASET_ID).tolist()
    assert len(asked) < 100
