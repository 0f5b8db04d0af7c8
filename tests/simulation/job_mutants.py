"""Known faults of jobs, as `mutants.py` has those of servers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dieselfs.cluster import pooled_source
from dieselfs_client.cluster.pool import Pool
from dieselfs_client.cluster.role import Election
from dieselfs_server.leases import lease


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


def without_settling(right: Any) -> Any:
    """Servers that have lost the leases of a job tell its members at once who is left."""

    def with_member(*args: Any) -> Any:
        head, leases = right(*args)
        return replace(head, settles_ns=0), leases

    return with_member


JOB_FAULTS: dict[str, tuple[str, Any, str, Callable[[Any], Any]]] = {
    "not-gathered": ("a node fetches before the others have joined", Pool, "_gather", not_gathered),
    "two-masters": ("a daemon becomes the master beside another", Election, "try_take", takes_over),
    "lists-unsettled": (
        "servers without the leases of a job give its members the list that is left",
        lease,
        "with_member",
        without_settling,
    ),
    "peers-believed": (
        "bytes of peers are not verified",
        pooled_source,
        "is_intact",
        lambda right: lambda *_: True,
    ),
}
