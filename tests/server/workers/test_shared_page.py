"""Links and sessions that all workers know."""

from dieselfs_server.access.accounts import Caller
from dieselfs_server.shared_table import PLACES, SharedTable
from dieselfs_server.web.logins import SESSIONS_MAX
from dieselfs_server.workers.shared_page import VALUE_BYTES, SharedTokens

ANN = Caller("ann", "key-1")
NOW_S = 0.0


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def shared(records: int) -> tuple[SharedTokens, Clock]:
    clock = Clock()
    return SharedTokens(SharedTable(records, VALUE_BYTES), 1000.0, 60.0, clock), clock


def added(tokens: SharedTokens, clock: Clock, name: str, count: int = 1) -> list[str]:
    found = []
    for _ in range(count):
        found.append(tokens.add(Caller(name, "key-1"), name, NOW_S))
        clock.now_s += 0.001
    return found


def kept(tokens: SharedTokens, found: list[str]) -> list[bool]:
    return [tokens.find(token, NOW_S) is not None for token in found]


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


def test_of_a_user_with_many_the_oldest_give_way() -> None:
    tokens, clock = shared(records=4 * PLACES)
    found = added(tokens, clock, "ann", PLACES + 2)
    assert kept(tokens, found) == [False] * 2 + [True] * PLACES


def test_a_user_cannot_push_out_the_tokens_of_others() -> None:
    tokens, clock = shared(records=SESSIONS_MAX)
    names = [f"user-{number}" for number in range(50)]
    others = [token for name in names for token in added(tokens, clock, name)]
    found = added(tokens, clock, "ann", 2 * SESSIONS_MAX)
    assert all(kept(tokens, others)) and 0 < sum(kept(tokens, found)) <= PLACES


def test_of_few_places_the_owner_with_most_loses_its_oldest() -> None:
    tokens, clock = shared(records=PLACES)
    bob, ann = added(tokens, clock, "bob"), added(tokens, clock, "ann", PLACES - 1)
    late = added(tokens, clock, "eve", 2)
    assert kept(tokens, bob + ann + late) == [True] + [False] * 2 + [True] * (PLACES - 3) + [True] * 2


def test_what_has_ended_gives_way_first() -> None:
    tokens, clock = shared(records=PLACES)
    eve, ann = added(tokens, clock, "eve"), added(tokens, clock, "ann", PLACES - 1)
    clock.now_s += 40.0
    assert all(kept(tokens, ann))
    clock.now_s += 40.0
    new = added(tokens, clock, "ann")
    assert kept(tokens, eve + ann + new) == [False] + [True] * PLACES
