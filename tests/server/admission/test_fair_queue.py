"""Properties of the order in which calls begin, whatever users ask for."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs_server.admission.fair_queue import FairQueue, Turn

TOTAL, OF_USER, SMALL, DEBT = 100, 40, 5, 400
USERS = "abcd"


class Simulated:
    """Calls of users, which end when they are told to."""

    def __init__(self) -> None:
        self.queue = FairQueue(TOTAL, OF_USER, SMALL, DEBT)
        self.running: list[Turn] = []
        self.waiting: list[Turn] = []
        self.begun: list[Turn] = []

    def enter(self, user: str, cost: int) -> Turn:
        turn = self.queue.enter(user, cost, lambda: None)
        self.waiting.append(turn)
        self._look()
        return turn

    def end(self, turn: Turn) -> None:
        self.queue.leave(turn)
        (self.running if turn.has_begun else self.waiting).remove(turn)
        self._look()

    def _look(self) -> None:
        begun = [turn for turn in self.waiting if turn.has_begun]
        self.waiting = [turn for turn in self.waiting if not turn.has_begun]
        self.running += begun
        self.begun += begun
        self.check()

    def check(self) -> None:
        """What holds after each step."""
        of_user = Counter[str]()
        for turn in self.running:
            of_user[turn.user] += turn.cost
        assert self.queue.in_flight == of_user.total() and self.queue.waiting == len(self.waiting)
        for user, cost in of_user.items():
            assert cost <= OF_USER or sum(turn.user == user for turn in self.running) == 1
        large = [turn for turn in self.running if turn.cost > SMALL]
        assert sum(turn.cost for turn in large) <= TOTAL or len(large) == 1
        heads = {turn.user: turn for turn in reversed(self.waiting)}
        for user, turn in heads.items():  # nobody waits without a reason
            has_share = not of_user[user] or of_user[user] + turn.cost <= OF_USER
            assert not has_share or (turn.cost > SMALL and self.running)
        if not self.running:
            assert not self.waiting


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(USERS), st.one_of(st.integers(1, SMALL), st.integers(1, 3 * OF_USER))),
        st.integers(0, 1 << 16),
    ),
    max_size=120,
)


@given(STEPS)
def test_bounds_hold_and_all_calls_begin_in_the_order_of_their_user(
    steps: list[tuple[str, int] | int],
) -> None:
    simulated, entered, left = Simulated(), dict[str, list[Turn]](), set[Turn]()
    for step in steps:
        if isinstance(step, tuple):
            entered.setdefault(step[0], []).append(simulated.enter(*step))
        elif turns := simulated.running + simulated.waiting:
            turn = turns[step % len(turns)]
            left |= set() if turn.has_begun else {turn}
            simulated.end(turn)
    while simulated.running:
        simulated.end(simulated.running[0])
    for user, turns in entered.items():
        assert [turn for turn in simulated.begun if turn.user == user] == [
            turn for turn in turns if turn not in left
        ]
    assert simulated.queue.in_flight == simulated.queue.waiting == 0


@given(st.lists(st.integers(SMALL + 1, OF_USER), min_size=1, max_size=60), st.integers(SMALL + 1, OF_USER))
@settings(max_examples=50)
def test_who_floods_gets_no_more_than_who_asks_for_little(costs: list[int], cost: int) -> None:
    """Five users with always something to do have begun about the same, whatever their calls cost."""
    simulated, users = Simulated(), "abcde"
    for _ in range(300):
        for user, calls in zip(users, (costs, [cost], [OF_USER], [SMALL + 1], costs), strict=True):
            while sum(turn.user == user for turn in simulated.waiting) < 4:
                simulated.enter(user, calls[len(simulated.begun) % len(calls)])
        simulated.end(simulated.running[0])
    begun = Counter[str]()
    for turn in simulated.begun:
        begun[turn.user] += turn.cost
    most, least = max(begun[user] for user in users), min(begun[user] for user in users)
    assert most - least <= 2 * TOTAL


@given(st.lists(st.integers(1, 3 * OF_USER), min_size=1, max_size=200), st.integers(1, OF_USER))
def test_a_flood_of_one_user_delays_another_by_at_most_one_of_its_calls(costs: list[int], cost: int) -> None:
    simulated = Simulated()
    for each in costs:
        simulated.enter("flood", each)
    other = simulated.enter("other", cost)
    if not other.has_begun:  # the flood's one call costs more than all may
        assert len(simulated.running) == 1
        simulated.end(simulated.running[0])
    assert other.has_begun


@given(st.integers(1, 10), st.integers(SMALL + 1, OF_USER))
@settings(max_examples=50)
def test_who_says_less_than_calls_cost_gets_no_more(times: int, cost: int) -> None:
    """Five users have always something to do; the calls of one cost several times what they say."""
    simulated, users = Simulated(), "abcde"
    spent = Counter[str]()
    for _ in range(600):
        for user in users:
            while sum(turn.user == user for turn in simulated.waiting) < 4:
                simulated.enter(user, cost)
        ended = simulated.running[0]
        if ended.user == "a":
            simulated.queue.charge("a", (times - 1) * cost)
        spent[ended.user] += cost * (times if ended.user == "a" else 1)
        simulated.end(ended)
    others = min(spent[user] for user in "bcde")
    assert spent["a"] <= others + 2 * TOTAL * times


def test_what_is_charged_puts_nobody_further_behind_than_the_limit() -> None:
    simulated = Simulated()
    first, other = simulated.enter("a", OF_USER), simulated.enter("b", OF_USER)
    simulated.queue.charge("a", 1000 * DEBT)
    simulated.end(first)
    late = simulated.enter("a", OF_USER)
    while not late.has_begun:
        simulated.enter("b", OF_USER)
        simulated.end(next(turn for turn in simulated.running if turn.user == "b"))
    begun = [turn for turn in simulated.begun if turn.user == "b"]
    assert late.has_begun and other in begun and len(begun) <= (DEBT + TOTAL) // OF_USER + 2


def test_small_calls_do_not_wait_for_other_users() -> None:
    simulated = Simulated()
    for user in USERS:
        simulated.enter(user, OF_USER)
        simulated.enter(user, OF_USER)
    assert len(simulated.running) == 2
    assert simulated.enter("other", SMALL).has_begun
    assert not simulated.enter("another", SMALL + 1).has_begun or simulated.queue.in_flight <= TOTAL
    assert not simulated.enter("a", SMALL).has_begun  # after the own ones
