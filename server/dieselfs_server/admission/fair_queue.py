"""Which call may begin next, so that users share a server whatever each of them asks for: start-time fair queueing
(Goyal, Vin, Cheng, 1996). No I/O, and no clock but the virtual one.

Each call has a cost. What a user has in flight costs a bounded amount together, and so does what all have. When there
is room, the call begins whose start tag is the smallest. The tag of a call is the virtual time, or the end of its
user's last call if that is later, so who has begun little comes first. The virtual time is the tag of the last call
that has begun. A user who asks for much therefore waits for their own calls, and others for about one of them.

A call that costs little waits only for other calls of its user: thousands of them are no more than one large one.

Costs are said before a call begins. What it has cost beyond that is charged afterwards: the next calls of its user come
that much later, as if the call had said it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Turn:
    """A call in the queue, or in flight."""

    user: str
    cost: int
    begin: Callable[[], None]
    has_begun: bool = False


@dataclass(eq=False, slots=True)
class _Flow:
    """The calls of a user. `finish`: the tag of the end of the last one that has begun."""

    finish: int
    in_flight: int = 0
    running: int = 0
    waiting: deque[Turn] = field(default_factory=deque)


class FairQueue:
    """For one thread. Costs are whole numbers of one unit, above 0."""

    def __init__(self, cost_max: int, user_cost_max: int, small_cost: int, debt_max: int = 0) -> None:
        """`cost_max`, `user_cost_max`: of the calls in flight of all users, and of each; a call that costs more than
        that is alone. Calls up to `small_cost` do not wait for other users. `debt_max`: how far what is charged
        afterwards puts a user behind others.
        """
        self._cost_max, self._user_cost_max, self._small_cost = cost_max, user_cost_max, small_cost
        self._debt_max = debt_max
        self._flows: dict[str, _Flow] = {}  # of users who have calls, or had more than others
        self._waiting: dict[str, _Flow] = {}  # of users whose calls wait
        self._virtual = 0
        self.in_flight = 0
        """The cost of the calls in flight."""
        self.waiting = 0
        """Calls that wait."""

    def enter(self, user: str, cost: int, begin: Callable[[], None]) -> Turn:
        """Put a call into the queue; `begin` is called when it may begin, maybe at once."""
        assert cost > 0
        turn = Turn(user, cost, begin)
        flow = self._flows.get(user)
        if flow is None:
            flow = self._flows[user] = _Flow(self._virtual)
        if not self.waiting and self._is_free(flow, cost):
            self._begin(flow, turn)
            return turn
        flow.waiting.append(turn)
        self.waiting += 1
        if user not in self._waiting:
            self._waiting[user] = flow
            self._advance()
        return turn

    def charge(self, user: str, cost: int) -> None:
        """A call of the user in flight has cost that much more than it had said."""
        flow = self._flows[user]
        flow.finish = max(flow.finish, min(flow.finish + cost, self._virtual + self._debt_max))

    def leave(self, turn: Turn) -> None:
        """The call has ended, or waits no longer. Others may begin."""
        flow = self._flows[turn.user]
        if turn.has_begun:
            flow.in_flight -= turn.cost
            flow.running -= 1
            self.in_flight -= turn.cost
        else:
            flow.waiting.remove(turn)
            self._waits_less(turn.user, flow)
        if not flow.running and not flow.waiting and flow.finish <= self._virtual:
            del self._flows[turn.user]
        if self.waiting:
            self._advance()
        elif not self.in_flight:  # nobody has calls, or is behind others
            self._flows.clear()

    def _advance(self) -> None:
        while (flow := self._next()) is not None:
            turn = flow.waiting.popleft()
            self._waits_less(turn.user, flow)
            self._begin(flow, turn)

    def _begin(self, flow: _Flow, turn: Turn) -> None:
        if flow.finish > self._virtual:
            self._virtual = flow.finish
        flow.finish = self._virtual + turn.cost
        flow.in_flight += turn.cost
        flow.running += 1
        self.in_flight += turn.cost
        turn.has_begun = True
        turn.begin()

    def _waits_less(self, user: str, flow: _Flow) -> None:
        self.waiting -= 1
        if not flow.waiting:
            del self._waiting[user]

    def _next(self) -> _Flow | None:
        """The flow whose first call may begin now."""
        waiting = self._waiting.values()
        ready = [flow for flow in waiting if self._has_share(flow, flow.waiting[0].cost)]
        first = min(ready, key=_finish, default=None)
        if first is None or self._is_free(first, first.waiting[0].cost):
            return first
        small = (flow for flow in ready if flow.waiting[0].cost <= self._small_cost)
        return min(small, key=_finish, default=None)

    def _is_free(self, flow: _Flow, cost: int) -> bool:
        if not self._has_share(flow, cost):
            return False
        return cost <= self._small_cost or not self.in_flight or self.in_flight + cost <= self._cost_max

    def _has_share(self, flow: _Flow, cost: int) -> bool:
        return not flow.in_flight or flow.in_flight + cost <= self._user_cost_max


def _finish(flow: _Flow) -> int:
    return flow.finish
