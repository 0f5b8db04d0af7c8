"""The index from paths to nodes: `hash_slots` of a snapshot. Arithmetic on columns, no I/O.

Paths are entered in the order of their hashes (then nodes), each into the first slot that is free from its home on; the
home of a path is the upper bits of its hash. A slot holds the lower 32 bits of the hash above the inode; 0 if free.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from dieselfs.arrays import Hashes, Keys, Numbers

_HALF, _LOW_HALF = np.uint64(32), np.uint64(0xFFFF_FFFF)
_SCANNED = 1 << 20


def hash_seed(dataset_id: bytes) -> int:
    """Seed of the path hash: differs between datasets, so no crafted paths collide in all."""
    return int.from_bytes(dataset_id[:8], "little")


def hash_bits_for(nodes: int) -> int:
    """Bits of the hash that choose a slot: between a third and two thirds of the slots are used."""
    return (nodes + nodes // 2).bit_length()


def path_hashes(paths: Sequence[bytes], dataset_id: bytes) -> Hashes:
    """Shape (n,). Takes about 0.3 us per path."""
    return np.fromiter(map(xxh3_64_intdigest, paths, repeat(hash_seed(dataset_id))), np.uint64, len(paths))


def hash_slots(paths: Sequence[bytes], dataset_id: bytes) -> Keys:
    """The index of the nodes 0, 1, ... with these paths."""
    return np.concatenate(list(slot_blocks(path_hashes(paths, dataset_id))))


def slot_blocks(hashes: Hashes, at_once: int = 1 << 22) -> Iterator[Keys]:
    """The index of the nodes 0, 1, ... whose paths have these hashes, in blocks of about `at_once` entries at most,
    which take 90 bytes of memory each. Reads all `hashes` for each block.
    """
    bits = hash_bits_for(len(hashes))
    blocks = 1 << (len(hashes) // at_once).bit_length()
    shift = np.uint64(64 - blocks.bit_length() + 1)
    written, before = 0, -1  # the slots that were yielded, and the last one that is taken
    for block in range(blocks):
        nodes = _in_block(hashes, shift, block) if blocks > 1 else np.arange(len(hashes))
        chosen = hashes[nodes]
        order = np.argsort(chosen, kind="stable")
        nodes, chosen = nodes[order], chosen[order]
        places = _places(chosen, bits, before + 1)
        is_last = block == blocks - 1
        before = int(places[-1]) if len(places) else before
        end = max(before + 1, 1 << bits) + 1 if is_last else max(before + 1, written)
        table = np.zeros(end - written, np.uint64)
        table[places - written] = _slots(chosen & _LOW_HALF, nodes)
        written = end
        yield table


def _in_block(hashes: Hashes, shift: np.uint64, block: int) -> Numbers:
    """The nodes whose hashes begin with the bits of `block`, ascending."""
    found = [
        start + np.flatnonzero(hashes[start : start + _SCANNED] >> shift == block)
        for start in range(0, len(hashes), _SCANNED)
    ]
    return np.concatenate(found)


def changed_slots(
    slots: Keys,
    bits: int,
    new_of_old: Numbers,
    added: tuple[Numbers, Sequence[bytes]],
    old_paths: Callable[[Numbers], Sequence[bytes]],
    dataset_id: bytes,
) -> Keys:
    """The index `slots` of 2^`bits` homes, with other numbers: `new_of_old` is -1 for nodes that are removed.

    `added`: new nodes with their paths. `old_paths` gives the paths of old nodes; it is called for the few whose
    hashes are needed. The number of bits must not change.

    A run of taken slots between two free ones is changed only if an entry of it is removed, or one is added whose home
    is in it. All others move to the right at most, pushed by a longer run, and keep their order. So the slot of such an
    entry can stand for its home.
    """
    taken = np.flatnonzero(slots)
    entries = slots[taken]
    old_nodes = (entries & _LOW_HALF).astype(np.int64) - 1
    nodes = new_of_old[old_nodes]
    runs = np.cumsum(np.diff(taken, prepend=-2) > 1) - 1
    is_changed = np.zeros(int(runs[-1]) + 1, np.bool_)
    is_changed[runs[nodes < 0]] = True
    is_changed[runs[taken >= 1 << bits]] = True  # their slots are no homes
    shift = np.uint64(64 - bits)
    hashes = path_hashes(added[1], dataset_id)
    homes = (hashes >> shift).astype(np.int64)
    places = np.searchsorted(taken, homes)
    is_inside = places < len(taken)
    is_inside[is_inside] = taken[places[is_inside]] == homes[is_inside]
    is_changed[runs[places[is_inside]]] = True

    is_moving = is_changed[runs]
    moving = np.flatnonzero(is_moving & (nodes >= 0))
    staying = np.flatnonzero(~is_moving)
    moving_hashes = np.concatenate((path_hashes(old_paths(old_nodes[moving]), dataset_id), hashes))
    moving_nodes = np.concatenate((nodes[moving], added[0]))
    order = np.lexsort((moving_nodes, moving_hashes))
    moving_hashes, moving_nodes = moving_hashes[order], moving_nodes[order]
    keys = taken[staying].astype(np.uint64) << shift
    at = np.searchsorted(keys, moving_hashes)
    return _entered(
        np.insert(keys, at, moving_hashes),
        np.insert(entries[staying] >> _HALF, at, moving_hashes & _LOW_HALF),
        np.insert(nodes[staying], at, moving_nodes),
        bits,
    )


def _entered(keys: Keys, marks: Keys, nodes: Numbers, bits: int) -> npt.NDArray[np.uint64]:
    """The slots of entries in their order; the home of each is the upper bits of its key."""
    places = _places(keys, bits, 0)
    table = np.zeros(max(int(places[-1]) + 1, 1 << bits) + 1, np.uint64)
    table[places] = _slots(marks, nodes)
    return table


def _places(keys: Keys, bits: int, first: int) -> Numbers:
    """The slots, from `first` on, of entries in the order of their keys."""
    order = np.arange(len(keys))
    homes = np.maximum((keys >> np.uint64(64 - bits)).astype(np.int64), first)
    return np.maximum.accumulate(homes - order) + order


def _slots(marks: Keys, nodes: Numbers) -> Keys:
    return marks << _HALF | (nodes + 1).astype(np.uint64)
