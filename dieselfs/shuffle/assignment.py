"""Steps in which each rank reads what its node owns (`docs/reference/order.md`, "Local assignment"). No I/O.

The ranks of a step together read a fixed set of samples. Which rank reads which does not change the sum of their
gradients. So each node reads those whose chunks it owns in the cache of a job, at equal counts. The owners follow from
the names of the nodes alone: a node that is lost, or that offers less memory, costs locality and changes no step.
"""

from collections.abc import Callable, Sequence

import numpy as np

from dieselfs.arrays import Nodes, Numbers, Positions, distinct
from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.columns import starts_of
from dieselfs.snapshot.reader import Snapshot

HomesOf = Callable[[Positions], Numbers]
"""The home of each position: the number of a node, as `node_numbers` gives it, or NOWHERE. Shape (n,), as given."""

NOWHERE = -1
_UNKNOWN = -2

LOCAL_GROUP_CHUNKS = 100
"""The default group of a local assignment: the memory of a job is pooled, and the more chunks are mixed, the more even
are the parts of a step that the nodes own.
"""


def node_numbers(nodes: Sequence[str], world: int) -> Numbers:
    """The number of the node of each rank: shape (world,); counted from 0 in the order of their first ranks.

    `nodes`: names in the order of ranks; of n names, rank r of R has number r * n // R.
    """
    numbers = {name: number for number, name in enumerate(dict.fromkeys(nodes))}
    return np.array([numbers[nodes[rank * len(nodes) // world]] for rank in range(world)], np.int64)


class ChunkHomes:
    """The homes of chunks, as in a cache whose members are these nodes, all with equal memory. Computed for the chunks
    that are asked for. Thread-safe: two threads may compute one.
    """

    def __init__(self, snapshot: Snapshot, nodes: Sequence[str]) -> None:
        names = [*dict.fromkeys(nodes)]
        from dieselfs.cluster.placement import Placement  # for the shares of nodes alone

        self._snapshot, self._placement = snapshot, Placement.of_names(names)
        self._numbers = np.array([names.index(member.node) for member in self._placement.members], np.int64)
        self._ids = snapshot.column("chunk_ids").reshape(-1, CHUNK_ID_BYTES)
        self._known = np.full(len(self._ids), _UNKNOWN, np.int64)

    def of(self, chunks: Numbers) -> Numbers:
        """Shape (n,), as `chunks`."""
        unknown = distinct(chunks[self._known[chunks] == _UNKNOWN])
        if len(unknown):
            self._known[unknown] = self._numbers[self._placement.owners(self._ids[unknown])]
        homes: Numbers = self._known[chunks]
        return homes

    def of_files(self, nodes: Nodes) -> Numbers:
        """The home of each file, that of the chunk with its first byte: shape (n,), as `nodes`, the numbers of files in
        the snapshot. A file without bytes has none.
        """
        snapshot, homes = self._snapshot, np.full(len(nodes), NOWHERE, np.int64)
        has_bytes = snapshot.column("counts")[nodes] > 0
        firsts = snapshot.column("firsts")[nodes[has_bytes]]
        homes[has_bytes] = self.of(snapshot.column("extent_chunks")[firsts].astype(np.int64))
        return homes


def local_order(homes: Numbers, step_sizes: Numbers, rank_nodes: Numbers) -> Numbers:
    """The positions of consecutive steps in the order in which the ranks take them: shape (n,), counted from the first.

    `homes`: shape (n,), the home of each position; `step_sizes`: shape (steps,), each at least 1; `rank_nodes`: see
    `node_numbers`. Each step stays a set of the same positions, and rank r reads the slice of it that it reads without
    an assignment.
    """
    world, nodes, steps = len(rank_nodes), int(rank_nodes.max()) + 1, len(step_sizes)
    in_step = np.arange(len(homes)) - np.repeat(starts_of(step_sizes), step_sizes)
    first_keys = np.repeat(np.arange(steps) * nodes, step_sizes)
    # Of a step of m positions, slice r of R ends before position (r + 1) * m // R.
    readers = ((in_step + 1) * world - 1) // np.repeat(step_sizes, step_sizes)
    slots = first_keys + rank_nodes[readers]
    room = np.bincount(slots, minlength=steps * nodes)
    wanted = np.where(homes == NOWHERE, steps * nodes, first_keys + homes)
    counts = np.bincount(wanted, minlength=steps * nodes + 1)
    place = np.empty(len(homes), np.int64)
    place[np.argsort(wanted, kind="stable")] = np.arange(len(homes)) - np.repeat(starts_of(counts), counts)
    is_left = place >= np.append(room, 0)[wanted]
    wanted[is_left] = np.repeat(np.arange(steps * nodes), np.maximum(room - counts[:-1], 0))
    taken = np.empty(len(homes), np.int64)
    taken[np.argsort(slots, kind="stable")] = np.argsort(wanted, kind="stable")
    return taken
