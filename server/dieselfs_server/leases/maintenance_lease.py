"""The lease of a maintenance job on its dataset, among all servers of a store: a note that its server renews. Blocks.

The clock of a server decides whether a lease has expired; servers whose clocks differ by more than LEASE_S can exclude
each other no longer.
"""

from dieselfs.errors import Unavailable
from dieselfs.records import NoteChange
from dieselfs_server.leases.lease import Lease, until_done
from dieselfs_server.metadata.interface import MetadataStore

NOTE = "maintenance"
LEASE_S = 120
"""After a crash of its server, a job excludes others for at most this long."""
RENEWAL_S = 20.0


class Excluded(Unavailable):
    """Another job has the lease."""


def take_lease(metadata: MetadataStore, dataset_id: bytes, holder: str, now_ns: int) -> None:
    """Take the lease, or renew it. `holder`: the job and its server, not the same for two jobs.

    Raises Excluded, which names the other holder, NotFound without metadata of the dataset, and Unavailable.
    """

    def attempt() -> bool:
        (present,) = metadata.notes(dataset_id, [NOTE])
        if present is not None:
            other = Lease.of(present)
            if other.expires_ns > now_ns and other.value != holder.encode():
                raise Excluded(
                    f"{other.value.decode('utf-8', 'replace')} is running on another server; "
                    "try again when it has ended"
                )
        lease = Lease(now_ns + LEASE_S * 10**9, holder.encode())
        return metadata.change_notes(dataset_id, [NoteChange(NOTE, present, lease.note())])

    until_done(attempt, "the lease of maintenance")


def end_lease(metadata: MetadataStore, dataset_id: bytes, holder: str) -> None:
    """Remove the lease, unless another job has it now. Raises NotFound."""

    def attempt() -> bool:
        (present,) = metadata.notes(dataset_id, [NOTE])
        if present is None or Lease.of(present).value != holder.encode():
            return True
        return metadata.change_notes(dataset_id, [NoteChange(NOTE, present, None)])

    until_done(attempt, "the lease of maintenance")
