"""Which daemon of a node is the master of a job there: the smallest rank among those that live (DIESEL 4.2).

Locks on one file of the job say who lives and who is the master (`dieselfs/cache/node_lock.py`). A master stays one for
as long as it lives, also when a smaller rank comes later: the node's chunks are in its memory.
"""

from types import TracebackType

import trio

from dieselfs.cache.node_lock import NodeLock
from dieselfs.limits import MASTER_PATIENCE_S, MASTER_POLL_S


class Mastership:
    """A daemon's claim to be the master; a context manager, at whose end it is given up, and `lock` closed."""

    def __init__(self, lock: NodeLock, rank: int) -> None:
        self._lock = lock
        self._rank = rank
        self.is_master = False
        lock.be_candidate(rank)

    def __enter__(self) -> "Mastership":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.clear()
        self.is_master = False

    def try_take(self, has_waited: bool = False) -> bool:
        """Become the master, if there is none and no smaller rank lives. `has_waited`: even if one does."""
        if not self.is_master and (has_waited or not self._lock.has_candidate_below(self._rank)):
            self.is_master = self._lock.try_lead()
        return self.is_master

    async def take(self) -> None:
        """Wait until this process is the master.

        A smaller rank that lives but does not take it, because it is stopped or has only just begun, is waited for
        MASTER_PATIENCE_S. If cancelled, it is not the master.
        """
        free_since_s: float | None = None
        while True:
            now_s = trio.current_time()
            is_free = not self._lock.has_master()
            free_since_s = (now_s if free_since_s is None else free_since_s) if is_free else None
            if self.try_take(free_since_s is not None and now_s - free_since_s >= MASTER_PATIENCE_S):
                return
            await trio.sleep(MASTER_POLL_S)
