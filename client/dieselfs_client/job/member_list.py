"""The members of a job, as its master on a node hands them to the other processes there (`sharing.py`)."""

import time
from collections.abc import Callable, Sequence

from dieselfs.cache.member import Member
from dieselfs.cache.roll import encode_members
from dieselfs.cache.segment import Segment


class MemberList:
    """The members of a job in sealed memory, for the processes of this node. Used from one trio thread.

    Versions go on from one master of a node to the next, as they begin with the time: so nobody takes the list of
    another master for one that he knows.
    """

    def __init__(self, members: Sequence[Member], clock_ns: Callable[[], int] = time.time_ns) -> None:
        """`members`: the first is the master of this node. Raises Unavailable when there is no memory."""
        self._version = clock_ns()
        self._encoded = _sealed_members(members)

    def change(self, members: Sequence[Member]) -> None:
        """These are the members from now on. Raises as the constructor; nothing has changed then."""
        self._encoded = _sealed_members(members)
        self._version += 1

    @property
    def version(self) -> int:
        return self._version

    @property
    def encoded(self) -> Segment:
        """Its descriptor is duplicated before the next checkpoint."""
        return self._encoded


def _sealed_members(members: Sequence[Member]) -> Segment:
    encoded = encode_members(member.card() for member in members)
    segment = Segment.create(len(encoded))
    segment.view[:] = encoded
    segment.seal()
    return segment
