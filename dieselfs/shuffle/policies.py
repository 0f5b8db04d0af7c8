"""The shuffle policies: one row for each way to order the files of an epoch. No I/O.

A new policy is a module with a function that makes its orders, and one row here. If its order is a function of the
layout and the spec alone, it must be the same on every machine and must never change: cursors of running jobs name it.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from dieselfs.arrays import Nodes
from dieselfs.errors import InvalidInput
from dieselfs.shuffle.order import GroupOrder, Layout
from dieselfs.shuffle.spec import PlanSpec

CHUNKWISE, IMPORTANCE, OPPORTUNISTIC = "chunkwise", "importance", "opportunistic"
MIXTURE, LISTED = "mixture", "listed"


class KnownLosses(Protocol):
    """The losses of files that a process knows."""

    def drawn(self, spec: PlanSpec, files: Nodes) -> GroupOrder:
        """As many files as `files`, drawn by their losses. `files`: shape (n,), node numbers, ascending. Raises
        InvalidInput.
        """
        ...


class Policy(NamedTuple):
    """One row.

    - `kind`: how its cursors begin, before the version of the order (1 with groups of a given size, 2 with those that
      grow); never used for another policy. Without a kind it has no cursors
    - `order`: the `module:name` of a callable that takes a layout, a spec, and the losses of the process or None, and
      returns the order; imported at first use. Empty: a spec does not determine the order
    - `made_by`: what gives the order if a spec does not
    """

    kind: str = ""
    order: str = ""
    made_by: str = ""


POLICIES = {
    CHUNKWISE: Policy("order", "dieselfs.shuffle.order:Order"),  # docs/reference/order.md
    IMPORTANCE: Policy(order="dieselfs.importance.scored_files:importance_order"),
    OPPORTUNISTIC: Policy(made_by="mounts, OpportunisticSampler and Dataset.batches"),
    MIXTURE: Policy("mix", made_by="MixedDataset, with the datasets and weights of the job"),
    LISTED: Policy(made_by="samplers"),
}

NAME_BY_KIND = {policy.kind: name for name, policy in POLICIES.items() if policy.kind}


def policy_of(spec: PlanSpec) -> Policy:
    """The policy that a spec names. Raises InvalidInput for an unknown name."""
    if spec.policy not in POLICIES:
        names = ", ".join(name for name, policy in POLICIES.items() if policy.order)
        others = ", ".join(f"{name} by {row.made_by}" for name, row in POLICIES.items() if row.made_by)
        raise InvalidInput(f"policy is {spec.policy!r}: give one of {names}; other orders are made: {others}")
    return POLICIES[spec.policy]


def order_of(layout: Layout, spec: PlanSpec, losses: KnownLosses | None = None) -> GroupOrder:
    """The order of a spec. `losses`: those that this process knows, if any.

    Raises InvalidInput for an unknown policy, or one whose order a spec, or this process, cannot give.
    """
    policy = policy_of(spec)
    if not policy.order:
        raise InvalidInput(f"the order is of policy {spec.policy}: it is made by {policy.made_by}")
    module, name = policy.order.split(":")
    make: Callable[[Layout, PlanSpec, Any], GroupOrder] = getattr(import_module(module), name)
    return make(layout, spec, losses)
