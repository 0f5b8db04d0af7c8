"""How long a training waits for its samples, and for what. No I/O.

A training computes, and waits. Its samples are read by other processes, which note what they do (`CAUSES`). The waits
of the training are shared out in the proportion of these times.

    server          a chunk or extents are fetched from a server, or from the store through it
    peer            from another node of the job
    disk            the disk of the node is read
    verification    digests are computed
    push            the daemon of a mount puts files into the page cache
    reading         the rest of reading: memory, the page cache, a mount
    loading         decoding and transforming, and whatever else makes an item of bytes
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from dieselfs.forks import renew_after_fork

CAUSES = ("server", "peer", "disk", "verification", "push", "reading", "loading")
STEPS_KEPT = 10_000
"""Limit of the steps whose times are kept one by one."""

Seconds = npt.NDArray[np.float64]
"""By cause: shape (len(CAUSES),)."""
DAEMON_CAUSES = CAUSES[: CAUSES.index("reading")]
"""What the daemon of a mount does so that its readers can read."""
Clock = Callable[[], float]
Batch = TypeVar("Batch")


class Meter:
    """What the threads of this process have spent, in seconds. Thread-safe; a forked child begins at zero."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._lock = Lock()
        self._spent = [0.0] * len(CAUSES)  # by cause

    def spent(self) -> Seconds:
        with self._lock:
            return np.array(self._spent)

    def spent_for(self, cause: str) -> float:
        """Rounded to microseconds."""
        return round(float(self.spent()[CAUSES.index(cause)]), 6)

    def add(self, cause: str, seconds: float) -> None:
        with self._lock:
            self._spent[CAUSES.index(cause)] += seconds

    @contextmanager
    def timed(self, cause: str, but: Sequence[str] = ()) -> Iterator[None]:
        """The time of the block; `but`: less what is spent for these causes meanwhile, as part of the block."""
        others = [CAUSES.index(each) for each in but]
        began_s, before_s = self._clock(), sum([self._spent[each] for each in others])
        try:
            yield
        finally:
            inside_s = sum([self._spent[each] for each in others]) - before_s
            self.add(cause, max(self._clock() - began_s - inside_s, 0.0))


METER = Meter()
"""That of this process."""


class DaemonWork(NamedTuple):
    """What the daemon of a mount has done since it started. `waited_s`: how long its readers waited for bytes, all of
    them together; `spent`: by cause.
    """

    waited_s: float
    spent: Seconds

    def since(self, before: "DaemonWork") -> "DaemonWork":
        """What it has done since then. All, if another daemon has taken its place, which began at zero."""
        if self.waited_s < before.waited_s or (self.spent < before.spent).any():
            return self
        return DaemonWork(self.waited_s - before.waited_s, self.spent - before.spent)


def shared_with_daemon(spent: Seconds, daemon: DaemonWork) -> Seconds:
    """The part of the reading of a mount in which readers waited for the daemon is shared out as the work of that; the
    rest stays: the page cache.
    """
    total_s = float(daemon.spent.sum())
    if not total_s:
        return spent
    reading = CAUSES.index("reading")
    moved_s = min(daemon.waited_s, float(spent[reading]))
    found = spent + daemon.spent * (moved_s / total_s)
    found[reading] -= moved_s
    return found


def shared_out(elapsed_s: float, noted: Seconds, rest: str) -> Seconds:
    """The time of a piece of work by cause, from what was noted meanwhile, perhaps by several threads: what is left
    belongs to `rest`.
    """
    noted_s = float(noted.sum())
    found = noted * min(elapsed_s / noted_s, 1.0) if noted_s else noted.copy()
    found[CAUSES.index(rest)] += max(elapsed_s - noted_s, 0.0)
    return found


class Stalls:
    """The times of a training. `work`: what its readers have spent so far, by cause; None if nobody notes it. `daemon`:
    the work of the daemon of the mount that they read, None if it cannot be asked.
    """

    def __init__(
        self,
        work: Callable[[], Seconds] | None = None,
        clock: Clock = time.perf_counter,
        daemon: Callable[[], DaemonWork | None] | None = None,
    ) -> None:
        self._work, self._clock, self._daemon = work, clock, daemon
        self._daemon_before = None if daemon is None else daemon()
        self._before = np.zeros(len(CAUSES)) if work is None else work()
        self._steps: deque[tuple[float, float]] = deque(maxlen=STEPS_KEPT)
        self.count = 0
        self.waiting_s = 0.0
        self.computing_s = 0.0

    def timed(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The same batches. What passes until one is there is waiting, the rest is computing. The first one of a loader
        also waits for its processes to start.
        """
        asked_s = self._clock()
        for batch in batches:
            arrived_s = self._clock()
            yield batch
            done_s = self._clock()
            self.add(arrived_s - asked_s, done_s - arrived_s)
            asked_s = done_s

    def add(self, waiting_s: float, computing_s: float) -> None:
        """Count a step."""
        self._steps.append((waiting_s, computing_s))
        self.count += 1
        self.waiting_s += waiting_s
        self.computing_s += computing_s

    @property
    def steps(self) -> npt.NDArray[np.float64]:
        """Seconds of waiting and of computing of the last STEPS_KEPT steps: shape (n, 2)."""
        return np.array(self._steps).reshape(-1, 2)

    def summary(self) -> dict[str, Any]:
        """All steps: `steps`, `waiting_s`, `computing_s`, `waiting_share` of both, and `waiting_by_cause_s`, empty if
        nobody notes causes.
        """
        total_s = self.waiting_s + self.computing_s
        by_cause: dict[str, float] = {}
        if self._work is not None and (spent := self._work() - self._before).sum() > 0:
            now = None if self._daemon is None or self._daemon_before is None else self._daemon()
            if now is not None and self._daemon_before is not None:
                spent = shared_with_daemon(spent, now.since(self._daemon_before))
            shares = (spent / spent.sum() * self.waiting_s).round(6)
            by_cause = dict(zip(CAUSES, shares.tolist(), strict=True))
        return {
            "steps": self.count,
            "waiting_s": round(self.waiting_s, 6),
            "computing_s": round(self.computing_s, 6),
            "waiting_share": round(self.waiting_s / total_s, 4) if total_s else 0.0,
            "waiting_by_cause_s": by_cause,
        }


def predicted_waiting_s(reading_s: float, computing_s: float) -> float:
    """Seconds that a step waits when its samples are prefetched: reading hides behind computing, as far as that goes.

    `reading_s`: what the readers together take for the samples of a step. Section 5 of "Asynchronous I/O Strategy for
    Large-Scale Deep Learning Applications" measures this as exposed I/O.
    """
    return max(reading_s - computing_s, 0.0)
