"""Failure detector: which peers get requests, and for which share of their chunks. No I/O.

    healthy ---failed, corrupt---> avoided ---recovered---> returning ---PEER_RETURN_S---> healthy
                                      ^                         |
                                      '------failed, corrupt----'

An avoided peer gets no requests, only pings; each further failure doubles the time between them. A returning peer gets
requests for a growing share of its chunks, always in the same order. Its memory may be empty, and all requests at once
would overload it and the servers.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from dieselfs.limits import PEER_AVOIDED_S

PEER_AVOIDED_MAX_S = 15.0
"""A peer that failed is avoided for PEER_AVOIDED_S, then for twice as long each time, up to this. A peer that sent
wrong bytes is avoided for this long at once.
"""
PEER_RETURN_S = 10.0
"""A peer that passed a probe gets a growing share of its chunks' requests, and all of them after this time."""

FIRST_SHARE = 1 / 16
"""Share of its chunks for which a peer gets requests as soon as it has recovered."""
_NOBODY: frozenset[str] = frozenset()


def share_after(returning_s: float) -> float:
    """The share of its chunks for which a peer gets requests, `returning_s` after it recovered."""
    return min(FIRST_SHARE + (1 - FIRST_SHARE) * returning_s / PEER_RETURN_S, 1.0)


def is_within(chunk_key: int, share: float) -> bool:
    """Whether a chunk belongs to this share of all chunks, and so to each larger share.

    `chunk_key`: 64 bits, see `dieselfs.cluster.placement.chunk_keys`.
    """
    return chunk_key >> 32 < share * (1 << 32)


@dataclass(slots=True)
class _Suspect:
    """A peer that is avoided (`recovered_s` is None) or returning."""

    avoided_s: float
    due_s: float
    recovered_s: float | None = None


class FailureDetector:
    """Peers by the names of their nodes. `clock` is in seconds.

    Thread-safe without a lock: each method changes one entry in one step, and failures of a peer at the same moment may
    count as one.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._suspects: dict[str, _Suspect] = {}  # all others are healthy

    def failed(self, node: str) -> None:
        """A request failed or timed out."""
        before = self._suspect(node)
        self._avoid(node, PEER_AVOIDED_S if before is None else min(2 * before.avoided_s, PEER_AVOIDED_MAX_S))

    def sent_corrupt(self, node: str) -> None:
        """A peer sent wrong bytes."""
        self._avoid(node, PEER_AVOIDED_MAX_S)

    def recovered(self, node: str) -> bool:
        """A peer has answered a ping; whether it was avoided."""
        suspect = self._suspects.get(node)
        if suspect is None or suspect.recovered_s is not None:
            return False
        suspect.recovered_s = self._clock()
        return True

    def restarted(self, node: str) -> None:
        """The node has a new master: if it is avoided, it may be pinged at once."""
        suspect = self._suspects.get(node)
        if suspect is not None:
            suspect.avoided_s, suspect.due_s = PEER_AVOIDED_S, self._clock()

    def keep(self, nodes: Collection[str]) -> None:
        """Set the members; all other peers are forgotten."""
        for node in set(self._suspects).difference(nodes):
            self._suspects.pop(node, None)

    def share(self, node: str) -> float:
        """The share of its chunks for which a peer gets requests: 0 if it is avoided, 1 if it is healthy."""
        suspect = self._suspect(node)
        if suspect is None:
            return 1.0
        return 0.0 if suspect.recovered_s is None else share_after(self._clock() - suspect.recovered_s)

    def is_requested(self, node: str, chunk_key: int) -> bool:
        """Whether a peer gets requests for this chunk now."""
        return not self._suspects or is_within(chunk_key, self.share(node))

    def is_avoided(self, node: str) -> bool:
        """Whether a peer gets no requests."""
        return bool(self._suspects) and self.share(node) == 0.0

    def suspected(self) -> frozenset[str]:
        """The nodes that are avoided or returning: they get requests for only a share of their chunks."""
        if not self._suspects:
            return _NOBODY
        return frozenset([node for node in list(self._suspects) if self._suspect(node) is not None])

    def due(self) -> list[str]:
        """The avoided nodes that may be pinged now."""
        now_s, suspects = self._clock(), list(self._suspects.items())
        return [node for node, each in suspects if each.recovered_s is None and each.due_s <= now_s]

    def _avoid(self, node: str, avoided_s: float) -> None:
        self._suspects[node] = _Suspect(avoided_s, self._clock() + avoided_s)

    def _suspect(self, node: str) -> _Suspect | None:
        """The entry of a peer; None if it is healthy."""
        suspect = self._suspects.get(node)
        if suspect is None or suspect.recovered_s is None:
            return suspect
        if self._clock() - suspect.recovered_s < PEER_RETURN_S:
            return suspect
        self._suspects.pop(node, None)
        return None
