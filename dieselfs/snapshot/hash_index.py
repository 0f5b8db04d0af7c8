"""The index from paths to nodes: `hash_slots` of a snapshot. Arithmetic on columns, no I/O.

Paths are entered in the order of their hashes (then nodes), each into the first slot that is free from its home on; the
home of a path is the upper bits of its hash. A slot holds the lower 32 bits of the hash above the inode; 0 if free.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat

import numpy as np
from xxhash import xxh3_64_intdigest

from dieselfs.arrays import Hashes, Keys, Numbers
from dieselfs.snapshot.splice import Splice

_HALF, _LOW_HALF = np.uint64(32), np.uint64(0xFFFF_FFFF)
_SCANNED = 1 << 20
WINDOW_SLOTS, WINDOW_SLOTS_MAX = 1 << 12, 1 << 21
"""Slots around a change whose entries are put in their places again."""
BLOCK_SLOTS = 1 << 15
"""Slots that get other numbers at a time: they fit into the cache of the processor."""
_STEP = 64


def hash_seed(dataset_id: bytes) -> int:
    """Seed of the path hash: differs between datasets, so no crafted paths collide in all."""
    return int.from_bytes(dataset_id[:8], "little")


def hash_bits_for(nodes: int) -> int:
    """Bits of the hash that choose a slot: between a third and two thirds of the slots are used."""
    return (nodes + nodes // 2).bit_length()


def path_hashes(paths: Sequence[bytes], dataset_id: bytes) -> Hashes:
    """Shape (n,). Takes about 0.3 us per path."""
    return np.fromiter(map(xxh3_64_intdigest, paths, repeat(hash_seed(dataset_id))), np.uint64, len(paths))


def hashes_of(blob: bytes, ends: Numbers, seed: int) -> Hashes:
    """The hashes of paths that are joined, with their ends: shape (n,)."""
    stops = ends.tolist()
    each = map(blob.__getitem__, map(slice, [0, *stops[:-1]], stops))
    return np.fromiter(map(xxh3_64_intdigest, each, repeat(seed)), np.uint64, len(stops))


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
    nodes: Splice,
    added: Sequence[bytes],
    old_paths: Callable[[Numbers], Sequence[bytes]],
    dataset_id: bytes,
) -> Iterator[Keys]:
    """The index `slots` of 2^`bits` homes, with the numbers that `nodes` gives. Yields blocks, of which memory is taken
    for one. Raises IndexError if it meets an entry where its path does not lead.

    `added`: the paths of the added nodes. `old_paths` gives the paths of old nodes; it is called for the few whose
    hashes are needed. The number of bits must not change.

    A run of taken slots between two free ones is changed only if an entry of it is removed, or one is added whose home
    is in it. All others move to the right at most, pushed by a longer run, and keep their order. So the slot of such an
    entry can stand for its home. A window of slots around a change ends with a free slot, so the runs in it are whole.
    """
    hashes = path_hashes(added, dataset_id)
    order = np.lexsort((nodes.added, hashes))
    hashes, added_nodes = hashes[order], nodes.added[order]
    homes = (hashes >> np.uint64(64 - bits)).astype(np.int64)
    gone = (path_hashes(old_paths(nodes.removed), dataset_id) >> np.uint64(64 - bits)).astype(np.int64)
    # The last run may reach behind the homes.
    touched = np.sort(np.concatenate((homes, gone, [(1 << bits) - 1])))
    window = WINDOW_SLOTS if len(touched) * WINDOW_SLOTS < len(slots) else WINDOW_SLOTS_MAX
    start, written, before = 0, 0, -1
    while start < 1 << bits:
        if written <= start:
            change = _run_start(slots, start, int(touched[np.searchsorted(touched, start)]))
            if change > start:
                yield np.zeros(start - written, np.uint64)
                for first in range(start, change, BLOCK_SLOTS):
                    yield _shifted(slots[first : min(first + BLOCK_SLOTS, change)], nodes)
                start = written = change
                before = change - 1
        end = _after_free_slot(slots, start + window, 1 << bits)
        inside = slice(*np.searchsorted(homes, (start, end)).tolist())
        keys, marks, numbers = _changed_entries(
            slots[start:end],
            start,
            bits,
            nodes.new_of_old,
            (hashes[inside], homes[inside], added_nodes[inside]),
            old_paths,
            dataset_id,
        )
        places = _places(keys, bits, before + 1)
        before = int(places[-1]) if len(places) else before
        is_last = end >= 1 << bits
        stop = max(before + 1, 1 << bits) + 1 if is_last else max(before + 1, written)
        table = np.zeros(stop - written, np.uint64)
        table[places - written] = _slots(marks, numbers)
        start, written = end, stop
        yield table


def _run_start(slots: Keys, start: int, slot: int) -> int:
    """The slot behind the last free one before `slot`; at least `start`."""
    for stop in range(slot, start, -_STEP):
        first = max(stop - _STEP, start)
        free = np.flatnonzero(slots[first:stop] == 0)
        if len(free):
            return first + int(free[-1]) + 1
    return start


def _shifted(slots: Keys, nodes: Splice) -> Keys:
    """Slots in which no entry moves, with the new numbers."""
    try:
        shifts = nodes.shifts((slots & _LOW_HALF).view(np.int64) - 1)
    except IndexError:
        raise IndexError("the index has a path in another place") from None
    return slots + shifts.view(np.uint64)


def _after_free_slot(slots: Keys, start: int, homes: int) -> int:
    """The slot behind the first free one from `start` on; behind all, if that is no home."""
    for first in range(start, homes, _SCANNED):
        free = np.flatnonzero(slots[first : min(first + _SCANNED, homes)] == 0)
        if len(free):
            return first + int(free[0]) + 1
    return len(slots)


def _changed_entries(
    slots: Keys,
    start: int,
    bits: int,
    new_of_old: Callable[[Numbers], Numbers],
    added: tuple[Hashes, Numbers, Numbers],
    old_paths: Callable[[Numbers], Sequence[bytes]],
    dataset_id: bytes,
) -> tuple[Keys, Keys, Numbers]:
    """Keys, marks and new nodes of the entries of `slots`, those from `start` on, and of added ones, in order."""
    hashes, homes, added_nodes = added
    at = np.flatnonzero(slots)
    entries, taken = slots[at], start + at
    old_nodes = (entries & _LOW_HALF).astype(np.int64) - 1
    nodes = new_of_old(old_nodes)
    runs = np.cumsum(np.diff(taken, prepend=-2) > 1) - 1
    is_changed = np.zeros(int(runs[-1]) + 1 if len(runs) else 0, np.bool_)
    is_changed[runs[nodes < 0]] = True
    is_changed[runs[taken >= 1 << bits]] = True  # their slots are no homes
    shift = np.uint64(64 - bits)
    places = np.searchsorted(taken, homes)
    is_inside = places < len(taken)
    is_inside[is_inside] = taken[places[is_inside]] == homes[is_inside]
    is_changed[runs[places[is_inside]]] = True

    is_moving = is_changed[runs]
    moving = np.flatnonzero(is_moving & (nodes >= 0))
    staying = np.flatnonzero(~is_moving)
    moving_hashes = path_hashes(old_paths(old_nodes[moving]), dataset_id)
    moving_homes = (moving_hashes >> shift).astype(np.int64)
    if (moving_homes < start).any() or (moving_homes > taken[moving]).any():
        raise IndexError("the index has a path in another place")
    moving_hashes = np.concatenate((moving_hashes, hashes))
    moving_nodes = np.concatenate((nodes[moving], added_nodes))
    order = np.lexsort((moving_nodes, moving_hashes))
    moving_hashes, moving_nodes = moving_hashes[order], moving_nodes[order]
    keys = taken[staying].astype(np.uint64) << shift
    before = np.searchsorted(keys, moving_hashes)
    return (
        np.insert(keys, before, moving_hashes),
        np.insert(entries[staying] >> _HALF, before, moving_hashes & _LOW_HALF),
        np.insert(nodes[staying], before, moving_nodes),
    )


def _places(keys: Keys, bits: int, first: int) -> Numbers:
    """The slots, from `first` on, of entries in the order of their keys."""
    order = np.arange(len(keys))
    homes = np.maximum((keys >> np.uint64(64 - bits)).astype(np.int64), first)
    return np.maximum.accumulate(homes - order) + order


def _slots(marks: Keys, nodes: Numbers) -> Keys:
    return marks << _HALF | (nodes + 1).astype(np.uint64)
