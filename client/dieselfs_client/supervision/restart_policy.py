"""How many daemons may die before the supervisor unmounts, and when the next one starts. No I/O."""

from collections import deque

DEATHS_BEFORE_READY_MAX = 10
"""Daemons in a row that may end by themselves before they have answered the requests that waited for them."""
FAULTS_MAX = 10
"""Daemons that may crash, or be killed because they hung, within the window."""
KILLS_MAX = 2000
"""Daemons that another process may kill within the window; each delays readers by about 20 ms."""
WINDOW_S = 60.0
KILL_PAUSE_S = 0.02
KILL_PAUSE_MAX_S = 0.5
"""The pause after a daemon was killed before it served: it doubles up to the second with each one in a row."""


class RestartPolicy:
    """Counts how daemons died. A daemon that crashes, or never answers, is likely to do so again; one that is killed by
    another process is not, even if it had no time to serve.
    """

    def __init__(self) -> None:
        self.next_start_s = 0.0
        """No daemon is to be started before this time."""
        self._ended_before_ready = 0
        self._kill_pause_s = KILL_PAUSE_S
        self._faults_s: deque[float] = deque(maxlen=FAULTS_MAX + 1)
        self._kills_s: deque[float] = deque(maxlen=KILLS_MAX + 1)

    def note_death(self, now_s: float, was_ready: bool, was_killed: bool) -> str | None:
        """A daemon died at `now_s`. `was_killed`: by another process. Returns the reason to unmount, None to start
        another.
        """
        if was_ready:
            self._ended_before_ready, self._kill_pause_s = 0, KILL_PAUSE_S
        elif was_killed:
            self.next_start_s = now_s + self._kill_pause_s
            self._kill_pause_s = min(2 * self._kill_pause_s, KILL_PAUSE_MAX_S)
        else:
            self._ended_before_ready += 1
            if self._ended_before_ready > DEATHS_BEFORE_READY_MAX:
                return f"{self._ended_before_ready} daemons in a row died before they could serve"
        times_s = self._kills_s if was_killed else self._faults_s
        times_s.append(now_s)
        if len(times_s) == times_s.maxlen and now_s - times_s[0] <= WINDOW_S:
            what = "were killed" if was_killed else "crashed"
            return f"{len(times_s)} daemons {what} within {now_s - times_s[0]:.0f} s"
        return None
