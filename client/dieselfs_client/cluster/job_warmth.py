"""The warmth of all nodes of a job, and requests to warm them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, TypeVar

import trio

from dieselfs.cluster.member import Member
from dieselfs.cluster.warmth import Warmth, together
from dieselfs.errors import Unavailable
from dieselfs.limits import JOB_MESSAGES_PER_S, PEER_REQUESTS_AT_ONCE_MAX, WARMTH_TIMEOUT_S

WARMTH_INTERVAL_S = 1.0
"""Shortest time between two queries of the nodes; JOB_MESSAGES_PER_S may require a longer one."""


def job_fields(
    name: str, node: str, nodes: Mapping[str, Warmth | None], dataset_bytes: int
) -> dict[str, Any]:
    """For JSON: the warmth of job `name` by node, None for a node that does not answer; `node` is this one.
    `dataset_bytes`: of the whole dataset.
    """
    known = {node: warmth for node, warmth in sorted(nodes.items()) if warmth is not None}
    unknown = sorted(nodes.keys() - known.keys())
    own = known.get(node)
    return {
        "dataset_bytes": dataset_bytes,
        "node": warmth_fields(own) if own else None,
        "job": {
            "name": name,
            **warmth_fields(together(known.values(), len(unknown), dataset_bytes)),
            "nodes": {node: warmth_fields(warmth) for node, warmth in known.items()},
            "unknown": unknown,
        },
    }


def warmth_fields(warmth: Warmth) -> dict[str, Any]:
    """For JSON."""
    return {**asdict(warmth), "share": warmth.share}


class JobWarmth:
    """Used from one trio thread.

    - `others`: the members in other processes
    - `ask`: requests the warmth of a member, and starts its warming if that is True; blocks, raises Unavailable
    """

    def __init__(self, others: Callable[[], Iterable[Member]], ask: Callable[[Member, bool], Warmth]) -> None:
        self._others = others
        self._ask = ask
        self._threads = trio.CapacityLimiter(PEER_REQUESTS_AT_ONCE_MAX)
        self._asking = trio.Lock()
        self._known: dict[str, Warmth | None] = {}
        self._known_s = float("-inf")
        self._is_to_warm = trio.Event()
        self._requested: set[Member] = set()

    async def of_others(self) -> dict[str, Warmth | None]:
        """The warmth of the others, at most a second old (slightly more in large jobs).

        Waits at most WARMTH_TIMEOUT_S; None for members that have not answered. If cancelled, replies are dropped.
        """
        async with self._asking:
            others = list(self._others())
            if trio.current_time() - self._known_s >= _interval_s(len(others)):
                answers = await self._answers(others)
                self._known = {member.node: answers.get(member) for member in others}
                self._known_s = trio.current_time()
            return {member.node: self._known.get(member.node) for member in others}

    def warm(self) -> None:
        """Start the warming of all others, each as soon as it answers."""
        self._is_to_warm.set()

    async def run(self) -> None:
        """Request warming from members, also new ones, until cancelled."""
        await self._is_to_warm.wait()
        while True:
            others = list(self._others())
            self._requested.intersection_update(others)
            missing = [member for member in others if member not in self._requested]
            self._requested.update(await self._answers(missing, is_to_warm=True))
            await trio.sleep(_interval_s(len(others)))

    async def _answers(self, members: Collection[Member], is_to_warm: bool = False) -> dict[Member, Warmth]:
        """The warmth of the members that answer in time."""
        found = await answers_of(members, self._ask, is_to_warm, self._threads)
        return {member: found[member.node] for member in members if member.node in found}


_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


async def answers_of(
    members: Iterable[Member],
    ask: Callable[[Member, _Asked], _Answer],
    what: _Asked,
    threads: trio.CapacityLimiter,
) -> dict[str, _Answer]:
    """What the members answer within WARMTH_TIMEOUT_S, by node. `ask` blocks, and raises Unavailable."""
    answers: dict[str, _Answer] = {}

    async def ask_one(member: Member) -> None:
        with suppress(Unavailable):
            answers[member.node] = await trio.to_thread.run_sync(
                ask, member, what, abandon_on_cancel=True, limiter=threads
            )

    with trio.move_on_after(WARMTH_TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(ask_one, member)
    return answers


def _interval_s(nodes: int) -> float:
    return max(WARMTH_INTERVAL_S, nodes / JOB_MESSAGES_PER_S)
