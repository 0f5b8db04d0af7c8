"""Links and sessions that all workers know."""

from dieselfs_server.access.accounts import Caller
from dieselfs_server.shared_table import PLACES, SharedTable
from dieselfs_server.workers.shared_page import VALUE_BYTES, SharedTokens

ANN = Caller("ann", "key-1")
NOW_S = 0.0


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_token_of_one_worker_is_known_to_another_until_it_was_taken() -> None:
    table, clock = SharedTable(PLACES, VALUE_BYTES), Clock()
    one, other = (SharedTokens(table, 100.0, 30.0, clock) for _ in range(2))
    token = one.add(ANN, "ann", NOW_S)
    assert other.find(token, NOW_S) == one.find(token, NOW_S) == ANN
    assert other.take(token, NOW_S) == ANN
    assert one.find(token, NOW_S) is other.take(token, NOW_S) is one.find("another", NOW_S) is None


def test_a_token_ends_with_its_life_and_when_it_is_not_used() -> None:
    table, clock = SharedTable(PLACES, VALUE_BYTES), Clock()
    tokens = SharedTokens(table, 100.0, 30.0, clock)
    used, idle = tokens.add(ANN, "ann", NOW_S), tokens.add(ANN, "ann", NOW_S)
    for _ in range(4):
        clock.now_s += 20.0
        assert tokens.find(used, NOW_S) == ANN
    assert tokens.find(idle, NOW_S) is None
    clock.now_s += 20.0
    assert tokens.find(used, NOW_S) is None


def test_of_many_those_that_end_first_give_way() -> None:
    table, clock = SharedTable(PLACES, VALUE_BYTES), Clock()
    tokens = SharedTokens(table, 100.0, None, clock)
    found = []
    for _ in range(PLACES + 1):
        found.append(tokens.add(ANN, "ann", NOW_S))
        clock.now_s += 1.0
    assert [tokens.find(token, NOW_S) for token in found] == [None] + [ANN] * PLACES
