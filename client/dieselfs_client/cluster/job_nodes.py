"""The nodes of a job, as one of its daemons knows them. No I/O."""

from collections.abc import Callable, Sequence

from dieselfs.cluster.member import Member
from dieselfs.cluster.peer_client import PeerClient
from dieselfs.errors import Unavailable


class JobNodes:
    """Thread-safe. `node`: the name of this node; `others`: the masters of the job in other processes; `is_master`:
    whether this process is that of this node; `peers` asks them, and raises Unavailable before this node is in the job.
    """

    def __init__(
        self,
        node: str,
        others: Callable[[], Sequence[Member]],
        is_master: Callable[[], bool],
        peers: Callable[[], PeerClient],
    ) -> None:
        self.node, self.is_master = node, is_master
        self._others, self._peers = others, peers

    @property
    def peers(self) -> PeerClient:
        """Raises Unavailable."""
        return self._peers()

    def masters(self, is_leaving: bool = False) -> dict[str, Member | None]:
        """The master of each node, None for this process, which does not count if it `is_leaving`. Raises Unavailable
        if no node is known.
        """
        self._peers()
        found: dict[str, Member | None] = {member.node: member for member in self._others()}
        if self.is_master() and not is_leaving:
            found[self.node] = None
        if not found:
            raise Unavailable("no node of the job is known")
        return found

    def peer(self, node: str) -> Member:
        """The master of a node in another process. Raises Unavailable."""
        for member in self._others():
            if member.node == node:
                return member
        raise Unavailable(f"node {node} has no master in the job now")
