"""How often callers may fail to log in to the page. No I/O."""

from collections import Counter

WINDOW_S = 60.0
TRIES_PER_ADDRESS = 30
TRIES_OF_ALL = 300
"""Limits of a window, for one address and for all, which bound the processor time of logins."""


class LoginRate:
    """For one thread at a time. Times are in seconds, and do not fall."""

    def __init__(self) -> None:
        self._ends_s = float("-inf")
        self._tries: Counter[str] = Counter()

    def take(self, address: str, now_s: float) -> bool:
        """Whether a try is allowed now."""
        if now_s >= self._ends_s:
            self._ends_s = now_s + WINDOW_S
            self._tries.clear()
        if self._tries.total() >= TRIES_OF_ALL or self._tries[address] >= TRIES_PER_ADDRESS:
            return False
        self._tries[address] += 1
        return True

    def give_back(self, address: str) -> None:
        """The last try succeeded, so it does not count."""
        if self._tries[address] > 0:
            self._tries[address] -= 1
