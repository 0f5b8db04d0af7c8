"""Which peers are asked, and for how much. No I/O.

    well ---failed, lied---> avoided ---proved---> returning ---PEER_RETURN_S---> well
                                ^                      |
                                '-----failed, lied-----'

A peer that is avoided is asked for nothing, and may prove itself from time to time; each failure that follows before
it is well again doubles that time. One that returns is asked for a part of its chunks that grows, always the same ones
first: its memory may be empty, and all at once would be too much for it, and for the servers behind it.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from dieselfs.limits import PEER_AVOIDED_MAX_S, PEER_AVOIDED_S, PEER_RETURN_S

FIRST_SHARE = 1 / 16
"""Of its chunks, that a peer is asked for as soon as it has proved itself."""


def share_after(returning_s: float) -> float:
    """The part of its chunks that a peer is asked for, so many seconds after it has proved itself."""
    return min(FIRST_SHARE + (1 - FIRST_SHARE) * returning_s / PEER_RETURN_S, 1.0)


def is_within(chunk_key: int, share: float) -> bool:
    """Whether a chunk belongs to this part of all; once it does, it does to every larger one.

    `chunk_key`: as `dieselfs.cache.placement` has it, 64 bits.
    """
    return chunk_key >> 32 < share * (1 << 32)


@dataclass(slots=True)
class _Suspect:
    """A peer that failed, and is not well again yet. `proved_s` None: it is avoided until it has proved itself."""

    avoided_s: float
    due_s: float
    proved_s: float | None = None


class Suspicion:
    """Peers by the names of their nodes. Whoever shares it between threads guards it. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._suspects: dict[str, _Suspect] = {}  # all others are well

    def failed(self, node: str) -> None:
        """A peer did not answer, or not in time."""
        before = self._suspect(node)
        avoided_s = PEER_AVOIDED_S if before is None else min(2 * before.avoided_s, PEER_AVOIDED_MAX_S)
        self._avoid(node, avoided_s)

    def lied(self, node: str) -> None:
        """A peer answered with other bytes than those that it was asked for."""
        self._avoid(node, PEER_AVOIDED_MAX_S)

    def proved(self, node: str) -> None:
        """A peer that was avoided has answered."""
        suspect = self._suspects.get(node)
        if suspect is not None and suspect.proved_s is None:
            suspect.proved_s = self._clock()

    def renewed(self, node: str) -> None:
        """The node has begun anew: if it is avoided, it may prove itself at once."""
        suspect = self._suspects.get(node)
        if suspect is not None:
            suspect.avoided_s, suspect.due_s = PEER_AVOIDED_S, self._clock()

    def keep(self, nodes: Collection[str]) -> None:
        """These are the members now: nothing is held against others any more."""
        for node in self._suspects.keys() - set(nodes):
            del self._suspects[node]

    def share(self, node: str) -> float:
        """The part of its chunks that a peer may be asked for: 0 while it is avoided, 1 when it is well."""
        suspect = self._suspect(node)
        if suspect is None:
            return 1.0
        return 0.0 if suspect.proved_s is None else share_after(self._clock() - suspect.proved_s)

    def is_asked(self, node: str, chunk_key: int) -> bool:
        """Whether a peer is asked for this chunk now."""
        return not self._suspects or is_within(chunk_key, self.share(node))

    def doubted(self) -> frozenset[str]:
        """The nodes that are asked for less than all: avoided, or returning."""
        return frozenset(node for node in list(self._suspects) if self._suspect(node) is not None)

    def avoided(self) -> frozenset[str]:
        """The nodes that are asked for nothing."""
        return frozenset(node for node in list(self._suspects) if self.share(node) == 0.0)

    def due(self) -> list[str]:
        """The nodes that are avoided, and may prove themselves now."""
        now_s = self._clock()
        return [node for node in self.avoided() if self._suspects[node].due_s <= now_s]

    def _avoid(self, node: str, avoided_s: float) -> None:
        self._suspects[node] = _Suspect(avoided_s, self._clock() + avoided_s)

    def _suspect(self, node: str) -> _Suspect | None:
        """What is held against a peer, if it is not well by now."""
        suspect = self._suspects.get(node)
        if suspect is None or suspect.proved_s is None or self._clock() - suspect.proved_s < PEER_RETURN_S:
            return suspect
        del self._suspects[node]
        return None
