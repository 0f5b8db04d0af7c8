"""Known faults of jobs, as `mutants.py` has those of servers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dieselfs.cluster import pooled_source
from dieselfs.cluster.daemon import MasterWatch
from dieselfs.cluster.failure_detector import FailureDetector
from dieselfs_client.cluster.pool import Pool
from dieselfs_client.cluster.role import Election
from dieselfs_server.leases import lease


def without_settling(right: Any) -> Any:
    """Servers that have lost the leases of a job tell its members at once who is left."""

    def with_member(*args: Any) -> Any:
        head, leases = right(*args)
        return replace(head, settles_ns=0), leases

    return with_member


def old_versions(right: Any) -> Any:
    """The version of a list that was lost does not exceed what members know."""

    def with_member(head: Any, leases: Any, request: Any, now_ns: int) -> Any:
        after, leases = right(head, leases, request, now_ns)
        if head is not None and after.version > head.version:
            after = replace(after, version=head.version + 1)
        return after, leases

    return with_member


def not_gathered(right: Any) -> Any:
    """A node fetches before the others have joined."""

    async def gather(self: Any, nodes: int) -> None:
        await right(self, 1)

    return gather


def takes_over(right: Any) -> Any:
    """A daemon becomes the master after a while, although another one is."""

    def try_take(self: Any, has_waited: bool = False) -> bool:
        self.is_master = right(self, has_waited) or self._lock.has_master()
        return bool(self.is_master)

    return try_take


def two_silences(right: Any) -> Any:
    """A master is killed for two short silences, whatever was between."""

    def look(self: Any) -> Any:
        before = self._silence
        result = right(self)
        if self._silence is None:  # it has answered, which is not noted
            self._silence = before
        return result

    return look


def _never(*_: object) -> bool:
    return False


JOB_FAULTS: dict[str, tuple[str, Any, str, Callable[[Any], Any]]] = {
    "lists-unsettled": (
        "servers without the leases of a job give its members the list that is left",
        lease,
        "with_member",
        without_settling,
    ),
    "old-versions": (
        "the list of a job gets a version that members have seen already",
        lease,
        "with_member",
        old_versions,
    ),
    "not-gathered": ("a node fetches before the others have joined", Pool, "_gather", not_gathered),
    "two-masters": ("a daemon becomes the master beside another", Election, "try_take", takes_over),
    "two-silences": (
        "a master is killed for a silence that nobody has followed",
        MasterWatch,
        "look",
        two_silences,
    ),
    "avoided-for-ever": (
        "a peer that has failed once gets no requests any more",
        FailureDetector,
        "recovered",
        lambda right: _never,
    ),
    "peers-believed": (
        "bytes of peers are not verified",
        pooled_source,
        "is_intact",
        lambda right: lambda *_: True,
    ),
}
