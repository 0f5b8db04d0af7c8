"""The shuffle policies by name; each makes the order of an epoch. No I/O.

A new policy is one module with a class as `EpochOrder` describes it, and one entry here. Its order must be a function
of the layout and the spec alone, the same on every machine, and must never change: cursors of running jobs name it.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from dieselfs.arrays import Nodes, Numbers, Positions
from dieselfs.errors import InvalidInput
from dieselfs.shuffle.order import Layout, Order
from dieselfs.shuffle.spec import PlanSpec


class EpochOrder(Protocol):
    """All files of a layout in the order of one epoch, in consecutive groups. Thread-safe."""

    @property
    def bounds(self) -> Positions:
        """Shape (groups + 1,): the start of each group, and the end of the last one."""
        ...

    def nodes(self, first_group: int, end_group: int) -> Nodes:
        """The files of the groups from `first_group` up to but not `end_group`, in order."""
        ...

    def nodes_at(self, group: int, places: Numbers) -> Nodes:
        """The files at these places of a group, counted from its first; same shape as `places`."""
        ...


class Policy(NamedTuple):
    """`version`: the number N in `orderN` of a cursor; never used for another policy, or for another order."""

    version: int
    order: Callable[[Layout, PlanSpec], EpochOrder]


POLICIES = {
    "chunkwise": Policy(1, Order),  # docs/reference/order.md
}

NAME_BY_VERSION = {policy.version: name for name, policy in POLICIES.items()}
assert len(NAME_BY_VERSION) == len(POLICIES)


def policy_of(spec: PlanSpec) -> Policy:
    """The policy that a spec names. Raises InvalidInput for an unknown name."""
    if spec.policy not in POLICIES:
        raise InvalidInput(f"policy is {spec.policy!r}: give one of {', '.join(POLICIES)}")
    return POLICIES[spec.policy]
