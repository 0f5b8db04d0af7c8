"""The membership list that a node master shares with the other processes of its node (`local_service.py`)."""

import time
from collections.abc import Callable, Sequence

from dieselfs.chunk.segment import Segment
from dieselfs.cluster.member import Member
from dieselfs.rpc.members import encode_members


class MemberList:
    """The members of a job in sealed memory, for the processes of this node. Used from one trio thread.

    Versions start with the time, so that they rise from one master to the next: no reader mistakes the list of a new
    master for the one that it knows.
    """

    def __init__(self, members: Sequence[Member], clock_ns: Callable[[], int] = time.time_ns) -> None:
        """`members`: the first is the master of this node. Raises Unavailable without memory."""
        self._version = clock_ns()
        self._encoded = _sealed_members(members)

    def change(self, members: Sequence[Member]) -> None:
        """Set the members. Raises as the constructor; then nothing has changed."""
        self._encoded = _sealed_members(members)
        self._version += 1

    @property
    def version(self) -> int:
        return self._version

    @property
    def encoded(self) -> Segment:
        """The caller duplicates its descriptor before the next checkpoint."""
        return self._encoded


def _sealed_members(members: Sequence[Member]) -> Segment:
    encoded = encode_members(member.encode() for member in members)
    segment = Segment.create(len(encoded))
    segment.view[:] = encoded
    segment.seal()
    return segment
