"""Election of a job's node master: the live daemon with the smallest rank (DIESEL 4.2).

Locks on one file show the live daemons and the master (`dieselfs/cluster/node_lock.py`). A master stays master until it
exits, even if a smaller rank starts later: the node's chunks are in its memory.
"""

from types import TracebackType

import trio

from dieselfs.cluster.node_lock import NodeLock
from dieselfs.limits import MASTER_PATIENCE_S, MASTER_POLL_S


class Election:
    """The candidacy of a daemon; a context manager, whose end withdraws it and closes `lock`."""

    def __init__(self, lock: NodeLock, rank: int) -> None:
        self._lock = lock
        self._rank = rank
        self.is_master = False
        lock.be_candidate(rank)

    def __enter__(self) -> "Election":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.clear()
        self.is_master = False

    def try_take(self, has_waited: bool = False) -> bool:
        """Become the master, if there is none and no live smaller rank. `has_waited`: ignore smaller ranks."""
        if not self.is_master and (has_waited or not self._lock.has_candidate_below(self._rank)):
            self.is_master = self._lock.try_lead()
        return self.is_master

    async def take(self) -> None:
        """Wait until this process is the master.

        Waits MASTER_PATIENCE_S for a live smaller rank that does not become master because it is stopped or starting.
        If cancelled, this process is not the master.
        """
        free_since_s: float | None = None
        while True:
            now_s = trio.current_time()
            is_free = not self._lock.has_master()
            free_since_s = (now_s if free_since_s is None else free_since_s) if is_free else None
            if self.try_take(free_since_s is not None and now_s - free_since_s >= MASTER_PATIENCE_S):
                return
            await trio.sleep(MASTER_POLL_S)
