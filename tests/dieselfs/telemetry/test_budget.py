"""The bounds of what others can write into the audit log."""

from dieselfs.telemetry.budget import (
    ENTRIES_PER_SOURCE,
    ENTRIES_WITHOUT_KEY,
    SOURCES_MAX,
    WINDOW_S,
    EventBudget,
)


def test_a_source_has_so_many_entries_in_a_window() -> None:
    budget = EventBudget()
    assert budget.begin(0.0) == {}
    taken = [budget.take("login", "ann", "10.0.0.1") for _ in range(ENTRIES_PER_SOURCE + 5)]
    assert taken == [True] * ENTRIES_PER_SOURCE + [False] * 5
    others = (("login", "bob", "10.0.0.1"), ("login", "ann", "10.0.0.2"), ("grant", "ann", "10.0.0.1"))
    assert all(budget.take(*other) for other in others)
    assert budget.begin(WINDOW_S - 1) == {} and not budget.take("login", "ann", "10.0.0.1")
    assert budget.begin(WINDOW_S) == {"login": 6} and budget.take("login", "ann", "10.0.0.1")
    assert budget.begin(2 * WINDOW_S) == {}


def test_strangers_share_entries_whatever_their_addresses() -> None:
    budget = EventBudget()
    taken = sum(budget.take("refused", "", f"10.0.{n >> 8}.{n & 255}") for n in range(1000))
    assert taken == ENTRIES_WITHOUT_KEY and budget.take("login", "ann", "10.0.0.1")
    assert budget.begin(WINDOW_S) == {"refused": 1000 - ENTRIES_WITHOUT_KEY}


def test_sources_are_bounded() -> None:
    budget = EventBudget()
    assert sum(budget.take("login", "ann", str(n)) for n in range(SOURCES_MAX + 9)) == SOURCES_MAX


def test_processes_with_one_log_have_equal_parts() -> None:
    budget = EventBudget(share=4)
    budget.begin(0.0)
    written = [budget.take("login", "ada", "10.0.0.1") for _ in range(ENTRIES_PER_SOURCE)]
    assert sum(written) == -(-ENTRIES_PER_SOURCE // 4)
