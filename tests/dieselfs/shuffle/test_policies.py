"""Shuffle policies: found by name, each with its own cursors; all that a spec determines keep the same promises."""

import pytest

from dieselfs.errors import InvalidInput
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.policies import IMPORTANCE, NAME_BY_KIND, POLICIES, order_of
from dieselfs.shuffle.share_name import ShareName
from dieselfs.shuffle.spec import DEFAULT_POLICY, PlanSpec
from tests.support.dataset import TreeEntry, pack_entries

SNAPSHOT = pack_entries(
    [TreeEntry(b"f/%d" % n, 0o100644, n, b"x" * 30) for n in range(50)], chunk_bytes=200
).snapshot

ORDERED = [name for name, policy in POLICIES.items() if policy.order and policy.kind]


def test_what_cursors_name_stays() -> None:
    assert DEFAULT_POLICY in ORDERED
    assert NAME_BY_KIND == {"order": "chunkwise", "mix": "mixture"}
    assert len(NAME_BY_KIND) == sum(bool(policy.kind) for policy in POLICIES.values())


@pytest.mark.parametrize("policy", ORDERED)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("group_chunks", [0, 1, 3, None])
def test_every_policy_has_each_file_once_and_is_a_function_of_its_spec(
    policy: str, seed: int, group_chunks: int | None
) -> None:
    spec = PlanSpec(seed, 3, group_chunks, policy=policy)
    nodes = Plan(SNAPSHOT, spec).nodes().tolist()
    assert sorted(nodes) == [node for node in range(len(SNAPSHOT)) if SNAPSHOT.stat(node).is_file]
    assert (
        nodes == Plan(SNAPSHOT, spec).nodes().tolist() != Plan(SNAPSHOT, spec).with_epoch(4).nodes().tolist()
    )
    cursor = Cursor.parse(str(Plan(SNAPSHOT, spec).cursor(7)))
    assert cursor.spec == spec
    order = order_of(Plan(SNAPSHOT, spec).layout, spec)
    groups = len(order.bounds) - 1
    places = list(range(int(order.bounds[1])))
    assert order.nodes(0, groups).tolist() == nodes
    assert order.nodes(0, 1).tolist() == nodes[: len(places)]
    assert [order.nodes_at(0, order.bounds[:1] + place).tolist()[0] for place in places] == nodes[
        : len(places)
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_spec_gives_an_order_or_an_error_says_what_does(policy: str) -> None:
    row = POLICIES[policy]
    if policy in ORDERED:
        return
    with pytest.raises(InvalidInput, match="losses.*ImportanceSampler" if row.order else row.made_by):
        Plan(SNAPSHOT, PlanSpec(policy=policy))


def test_an_unknown_policy_is_refused_with_all_names() -> None:
    asked = ShareName.parse(b"policy=best")
    for make in (
        lambda: Plan(SNAPSHOT, PlanSpec(policy="best")),
        lambda: asked.share(lambda spec: Plan(SNAPSHOT, spec)),
    ):
        with pytest.raises(
            InvalidInput, match="policy is 'best': give one of chunkwise, importance"
        ) as error:
            make()
        assert all(name in str(error.value) for name in POLICIES)


def test_without_losses_nothing_is_drawn() -> None:
    with pytest.raises(InvalidInput, match=r"\.dieselfs/shuffle/policy=importance"):
        Plan(SNAPSHOT, PlanSpec(policy=IMPORTANCE))
