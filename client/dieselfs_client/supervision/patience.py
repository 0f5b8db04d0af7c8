"""How often daemons may die before a mount is given up. No I/O."""

from collections import deque

DEATHS_BEFORE_READY_MAX = 10
"""So many daemons in a row may die before they have answered what was waiting for them."""
FAULTS_MAX = 10
"""So many may die by themselves, or be killed because they hung, within the window."""
KILLS_MAX = 2000
"""So many may be killed by somebody else, within the window; readers lose some 20 ms by each."""
WINDOW_S = 60.0


class Patience:
    """Counts how daemons died. A daemon that answers and is killed costs nobody anything; one that crashes by itself
    will do so again, and so will one that never comes to answer.
    """

    def __init__(self) -> None:
        self._before_ready = 0
        self._faults_s: deque[float] = deque(maxlen=FAULTS_MAX + 1)
        self._kills_s: deque[float] = deque(maxlen=KILLS_MAX + 1)

    def note_death(self, now_s: float, was_ready: bool, was_killed: bool) -> str | None:
        """A daemon died at `now_s`; the reason to give up, None to start another."""
        self._before_ready = 0 if was_ready else self._before_ready + 1
        if self._before_ready > DEATHS_BEFORE_READY_MAX:
            return f"{self._before_ready} daemons in a row died before they could serve"
        times_s = self._kills_s if was_killed else self._faults_s
        times_s.append(now_s)
        if len(times_s) == times_s.maxlen and now_s - times_s[0] <= WINDOW_S:
            what = "were killed" if was_killed else "crashed"
            return f"{len(times_s)} daemons {what} within {now_s - times_s[0]:.0f} s"
        return None
