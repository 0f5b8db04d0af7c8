"""The parameters of a plan (`PlanSpec`) and of a reader of it (`ReaderSpec`). No I/O.

Equal specs of one snapshot give the same order everywhere, so plans are compared by their specs. Both check their
numbers at construction.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import index
from typing import Any

from dieselfs.cluster.member import check_node_name
from dieselfs.errors import InvalidInput
from dieselfs.limits import BATCH_FILES_MAX, RANKS_MAX, WORKERS_MAX
from dieselfs.shuffle.skips import NO_SKIPS, Skips

DEFAULT_POLICY = "chunkwise"
DEFAULT_ORDER_VERSION = 2
"""Of the order without a group size (docs/reference/order.md). All nodes of a job must have the same."""
SEED_MAX = (1 << 64) - 1
GROUP_CHUNKS_MAX = (1 << 32) - 1
POSITION_MAX = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class PlanSpec:
    """An order of files.

    - `seed`, `epoch`: 0 to 2^64 - 1
    - `group_chunks`: chunks that are mixed with each other, 0 for all; None: groups that grow, see `groups.group_ends`
    - `skips`: positions of the whole order that are left out
    - `folder`: only the files below this path, as `names.user_path` gives it; empty for the whole dataset
    - `policy`: name of the shuffle policy, a key of `policies.POLICIES`, which checks it
    """

    seed: int = 0
    epoch: int = 0
    group_chunks: int | None = None
    skips: Skips = NO_SKIPS
    folder: bytes = b""
    policy: str = DEFAULT_POLICY

    def __post_init__(self) -> None:
        """Raises InvalidInput for a number out of range."""
        _check(self, {"seed": (0, SEED_MAX), "epoch": (0, SEED_MAX)})
        if self.group_chunks is not None:
            _check(self, {"group_chunks": (0, GROUP_CHUNKS_MAX)})


@dataclass(frozen=True, slots=True)
class ReaderSpec:
    """The part of a plan that one reader takes; see `Partition`.

    - `rank`: 0 to `world` - 1; `world`: number of ranks
    - `batch`: files of one step, of all ranks together; None: one for each rank
    - `start`: first position that any rank reads
    - `worker`: 0 to `workers` - 1, a worker process of the rank; `workers`: how many it has
    - `drop_last`: whether a short last step is left out
    - `nodes`: for a local assignment, the names of the nodes in the order of ranks, at most one for each rank: of n,
      rank r is on number r * n // world. None: each rank takes the next part of a step
    """

    rank: int = 0
    world: int = 1
    batch: int | None = None
    start: int = 0
    worker: int = 0
    workers: int = 1
    drop_last: bool = False
    nodes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises InvalidInput for a number out of range."""
        _check(self, {"world": (1, RANKS_MAX), "workers": (1, WORKERS_MAX), "start": (0, POSITION_MAX)})
        _check(self, {"rank": (0, self.world - 1), "worker": (0, self.workers - 1)})
        if self.batch is not None:
            _check(self, {"batch": (1, BATCH_FILES_MAX)})
        if len(self.nodes) > self.world:
            raise InvalidInput(
                f"{len(self.nodes)} nodes for {self.world} ranks: give at most one for each rank"
            )
        for node in self.nodes:
            check_node_name(node)

    def __setstate__(self, state: list[Any]) -> None:
        """A pickled spec; those of the first release have no `nodes`."""
        names = [field.name for field in fields(self)]
        for name, value in zip(names, [*state, ()][: len(names)], strict=True):
            object.__setattr__(self, name, value)


def _check(spec: PlanSpec | ReaderSpec, bounds: Mapping[str, tuple[int, int]]) -> None:
    """Check that each field is a whole number within its bounds; convert NumPy's to Python's."""
    for field, (lowest, highest) in bounds.items():
        value = getattr(spec, field)
        try:
            number = index(value)
        except TypeError:
            number = lowest - 1
        if not lowest <= number <= highest:
            raise InvalidInput(f"{field} is {value!r}: give a whole number from {lowest} to {highest}")
        object.__setattr__(spec, field, number)
