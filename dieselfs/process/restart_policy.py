"""How many processes may die before their supervisor gives up, and when the next one starts. No I/O.

For daemons of a mount and workers of a server. It imports next to nothing, because supervisors use it.
"""

from collections import deque

DEATHS_BEFORE_READY_MAX = 10
"""Processes in a row that may end by themselves before they can serve."""
FAULTS_MAX = 10
"""Daemons of a mount that may crash, or be killed because they hung, within the window."""
KILLS_MAX = 2000
"""Processes that another one may kill within the window; each delays readers by about 20 ms."""
WINDOW_S = 60.0
PAUSE_S = 0.02
KILL_PAUSE_MAX_S = 0.5
"""The pause after a process was killed before it served: it doubles up to the second with each one in a row."""
_SIGKILL = 9


class RestartPolicy:
    """Counts how processes died. One that crashes, or never answers, is likely to do so again; one that is killed by
    another process is not, even if it had no time to serve.

    - `what`: the processes, for messages; `faults_max`: as FAULTS_MAX
    - `fault_pause_max_s`: limit of the pause after one that ended by itself before it served
    """

    def __init__(
        self, what: str = "daemons", faults_max: int = FAULTS_MAX, fault_pause_max_s: float = 0.0
    ) -> None:
        self.next_start_s = 0.0
        """No process is to be started before this time."""
        self._what, self._fault_pause_max_s = what, fault_pause_max_s
        self._ended_before_ready = 0
        self._pause_s = PAUSE_S
        self._faults_s: deque[float] = deque(maxlen=faults_max + 1)
        self._kills_s: deque[float] = deque(maxlen=KILLS_MAX + 1)

    def note_death(self, now_s: float, was_ready: bool, was_killed: bool) -> str | None:
        """A process died at `now_s`. `was_killed`: by another process. Returns the reason to give up, None to start
        another.
        """
        if was_ready:
            self._ended_before_ready, self._pause_s = 0, PAUSE_S
        else:
            self._ended_before_ready += not was_killed
            if not was_killed and self._ended_before_ready > DEATHS_BEFORE_READY_MAX:
                return f"{self._ended_before_ready} {self._what} in a row died before they could serve"
            if pause_max_s := KILL_PAUSE_MAX_S if was_killed else self._fault_pause_max_s:
                self.next_start_s = now_s + min(self._pause_s, pause_max_s)
                self._pause_s = min(2 * self._pause_s, pause_max_s)
        times_s = self._kills_s if was_killed else self._faults_s
        times_s.append(now_s)
        if len(times_s) == times_s.maxlen and now_s - times_s[0] <= WINDOW_S:
            what = "were killed" if was_killed else "crashed"
            return f"{len(times_s)} {self._what} {what} within {now_s - times_s[0]:.0f} s"
        return None


def how_it_ended(exit_code: int) -> str:
    """What the exit code of a process says, for messages; negative: a signal, as of `os.waitstatus_to_exitcode`."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    hint = " (by the kernel, if its control group is out of memory)" if exit_code == -_SIGKILL else ""
    return f"was killed by signal {-exit_code}{hint}"
