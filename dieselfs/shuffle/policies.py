"""The shuffle policies by name; each makes the order of an epoch. No I/O.

A new policy is one module with a class that has the public members of `Order`, and one entry here. Its order must be
a function of the layout and the spec alone, the same on every machine, and must never change: cursors of running jobs
name it.
"""

from collections.abc import Callable
from typing import NamedTuple

from dieselfs.errors import InvalidInput
from dieselfs.shuffle.order import Layout, Order
from dieselfs.shuffle.spec import PlanSpec


class Policy(NamedTuple):
    """`version`: the number N in `orderN` of a cursor; never used for another policy, or for another order."""

    version: int
    order: Callable[[Layout, PlanSpec], Order]


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
