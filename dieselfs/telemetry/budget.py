"""How many entries of a log others can cause. No I/O.

A log keeps a bounded number of bytes, or fills a disk. Without a limit, a client without a key that is refused
some hundred times a second, or a user that logs in as often, would push out all that was written before.
"""

from collections import Counter
from collections.abc import Mapping

WINDOW_S = 60.0
ENTRIES_PER_SOURCE = 30
"""In a window, of one event of one user from one address."""
ENTRIES_WITHOUT_KEY = 60
"""In a window, of callers that have not proved a key."""
SOURCES_MAX = 4096
"""In a window; then all further entries are omitted."""


class EventBudget:
    """For one thread at a time. Times are in seconds, and do not fall."""

    def __init__(self, share: int = 1) -> None:
        """`share`: processes with one log, which have equal parts of the budget, rounded up."""
        limits = ENTRIES_PER_SOURCE, ENTRIES_WITHOUT_KEY, SOURCES_MAX
        self._per_source, self._without_key_max, self._sources_max = (-(-each // share) for each in limits)
        self._ends_s = 0.0
        self._written: Counter[tuple[str, str, str]] = Counter()
        self._without_key = 0
        self._omitted: Counter[str] = Counter()

    def take(self, what: str, user: str, address: str) -> bool:
        """Whether an event is written; `user` is empty for a caller that has not proved a key."""
        source = (what, user, address)
        is_written = self._written[source] < self._per_source and len(self._written) < self._sources_max
        if not user:
            is_written = is_written and self._without_key < self._without_key_max
            self._without_key += is_written
        if is_written:
            self._written[source] += 1
        else:
            self._omitted[what] += 1
        return is_written

    def begin(self, now_s: float) -> Mapping[str, int]:
        """Begin a window if the last one has ended; returns how many entries that one has omitted, by event."""
        if now_s < self._ends_s:
            return {}
        self._ends_s, self._without_key = now_s + WINDOW_S, 0
        self._written.clear()
        omitted, self._omitted = self._omitted, Counter()
        return omitted
