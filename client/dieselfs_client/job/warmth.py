"""How warm the memory of a whole job is, node by node; and how all of its nodes are told to warm theirs."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import trio

from dieselfs.cache.member import Member
from dieselfs.cache.warmth import Warmth, together
from dieselfs.errors import Unavailable
from dieselfs.limits import (
    JOB_MESSAGES_PER_S,
    PEER_REQUESTS_AT_ONCE_MAX,
    WARMTH_INTERVAL_S,
    WARMTH_TIMEOUT_S,
)


@dataclass(frozen=True, slots=True)
class JobState:
    """The job called `name`: its `nodes`, None for one that does not answer, and which of them is this `node`; how much
    the whole dataset is.
    """

    name: str
    node: str
    nodes: Mapping[str, Warmth | None]
    dataset_bytes: int

    def fields(self) -> dict[str, Any]:
        """For JSON."""
        known = {node: warmth for node, warmth in sorted(self.nodes.items()) if warmth is not None}
        unknown = sorted(self.nodes.keys() - known.keys())
        own = known.get(self.node)
        return {
            "dataset_bytes": self.dataset_bytes,
            "node": warmth_fields(own) if own else None,
            "job": {
                "name": self.name,
                **warmth_fields(together(known.values(), len(unknown), self.dataset_bytes)),
                "nodes": {node: warmth_fields(warmth) for node, warmth in known.items()},
                "unknown": unknown,
            },
        }


def warmth_fields(warmth: Warmth) -> dict[str, Any]:
    """For JSON."""
    return {**asdict(warmth), "share": warmth.share}


class JobWarmth:
    """Used from one trio thread.

    - `others`: the members that are to be asked just now
    - `ask`: how warm one is, which is also to be warmed if that is so; blocks, and raises Unavailable
    """

    def __init__(self, others: Callable[[], Iterable[Member]], ask: Callable[[Member, bool], Warmth]) -> None:
        self._others = others
        self._ask = ask
        self._threads = trio.CapacityLimiter(PEER_REQUESTS_AT_ONCE_MAX)
        self._asking = trio.Lock()
        self._known: dict[str, Warmth | None] = {}
        self._known_s = float("-inf")
        self._is_to_warm = trio.Event()
        self._told: set[Member] = set()

    async def of_others(self) -> dict[str, Warmth | None]:
        """How warm the others are, no older than a second (in large jobs a little more).

        Waits for no longer than WARMTH_TIMEOUT_S; None for those who have not answered by then. If cancelled, what was
        asked is answered in vain.
        """
        async with self._asking:
            others = list(self._others())
            if trio.current_time() - self._known_s >= _interval_s(len(others)):
                answers = await self._answers(others)
                self._known = {member.node: answers.get(member) for member in others}
                self._known_s = trio.current_time()
            return {member.node: self._known.get(member.node) for member in others}

    def warm(self) -> None:
        """Have all others warmed, each as soon as it answers."""
        self._is_to_warm.set()

    async def run(self) -> None:
        """Tell those who are to be warmed, until cancelled."""
        await self._is_to_warm.wait()
        while True:
            others = list(self._others())
            self._told.intersection_update(others)
            untold = [member for member in others if member not in self._told]
            self._told.update(await self._answers(untold, is_to_warm=True))
            await trio.sleep(_interval_s(len(others)))

    async def _answers(self, members: Collection[Member], is_to_warm: bool = False) -> dict[Member, Warmth]:
        """Of those who answer in time."""
        answers: dict[Member, Warmth] = {}

        async def ask(member: Member) -> None:
            try:
                answers[member] = await trio.to_thread.run_sync(
                    self._ask, member, is_to_warm, abandon_on_cancel=True, limiter=self._threads
                )
            except Unavailable:
                return

        with trio.move_on_after(WARMTH_TIMEOUT_S):
            async with trio.open_nursery() as nursery:
                for member in members:
                    nursery.start_soon(ask, member)
        return answers


def _interval_s(nodes: int) -> float:
    return max(WARMTH_INTERVAL_S, nodes / JOB_MESSAGES_PER_S)
