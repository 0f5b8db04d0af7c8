"""When a read that takes long is also sent to somebody else: after the 95th percentile of its kind. No I/O.

The first good answer wins, and the other request is cancelled. Each request earns a small share of a second one, so
overload, which makes all of them slow, adds no more than that share.
"""

from collections import deque
from collections.abc import Hashable
from threading import Lock

HEDGE_FLOOR_S, HEDGE_CEILING_S = 0.05, 1.0
"""No second request is sent earlier, and none later: pauses of a busy machine are no reason for one."""
HEDGE_PERCENTILE = 0.95
HEDGE_SHARE = 0.05
"""Second requests, as a share of the first ones."""
HEDGE_BURST = 10.0
"""Second requests that may be sent at once, if none were sent lately: as many as wait when a machine is lost."""
HEDGE_LATEST = 128
"""Times of each kind, of which the percentile is taken."""
HEDGE_KNOWN = 20
"""With fewer times of its kind, a request waits for HEDGE_CEILING_S."""
HEDGE_KINDS_MAX = 64
"""Kinds of requests; then the one is forgotten that came first."""

_RENEWED_AFTER = 16  # times, until the percentile is taken again


def kind_of(method: str, length_bytes: int) -> Hashable:
    """Requests of a kind take about as long: of one method, and of lengths that differ by less than a factor of 4."""
    return method, length_bytes.bit_length() // 2


def hedge_after_s(p95_s: float | None) -> float:
    """How long a request waits before a second one is sent; None: the percentile is not known."""
    return HEDGE_CEILING_S if p95_s is None else min(max(p95_s, HEDGE_FLOOR_S), HEDGE_CEILING_S)


class _Times:
    """The latest times of one kind of request, in seconds, and their percentile."""

    def __init__(self) -> None:
        self._latest_s: deque[float] = deque(maxlen=HEDGE_LATEST)
        self._until_renewed = HEDGE_KNOWN
        self.p95_s: float | None = None

    def note(self, took_s: float) -> None:
        self._latest_s.append(took_s)
        self._until_renewed -= 1
        if not self._until_renewed:
            self._until_renewed = _RENEWED_AFTER
            self.p95_s = sorted(self._latest_s)[int(len(self._latest_s) * HEDGE_PERCENTILE)]


class Hedging:
    """The requests of one process. Thread-safe; not for forks."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards all below
        self._times: dict[Hashable, _Times] = {}
        self._earned = HEDGE_BURST
        self.sent = 0
        """Second requests."""
        self.won = 0
        """Second requests that answered first."""

    def after_s(self, kind: Hashable) -> float:
        """A request of this kind begins: how long it waits before a second one is sent."""
        with self._lock:
            self._earned = min(self._earned + HEDGE_SHARE, HEDGE_BURST)
            times = self._times.get(kind)
            return hedge_after_s(None if times is None else times.p95_s)

    def may_send(self) -> bool:
        """Whether a second request is earned; then it counts as sent."""
        with self._lock:
            if self._earned < 1:
                return False
            self._earned -= 1
            self.sent += 1
            return True

    def answered(self, kind: Hashable, took_s: float, is_second: bool = False) -> None:
        """A request has its first answer, `took_s` after it was sent; `is_second`: the second request has won."""
        with self._lock:
            self.won += is_second
            times = self._times.get(kind)
            if times is None:
                if len(self._times) >= HEDGE_KINDS_MAX:
                    del self._times[next(iter(self._times))]
                times = self._times[kind] = _Times()
            times.note(took_s)
