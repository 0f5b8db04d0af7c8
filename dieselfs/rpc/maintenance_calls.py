"""The calls of maintenance: what servers do to the chunks of a dataset, and copies inside them. This module opens
sockets.
"""

from typing import TYPE_CHECKING, Any

from dieselfs.errors import InvalidInput
from dieselfs.limits import ATTACHED_PER_REPLY_MAX, STRATA_BYTES_MAX
from dieselfs.rpc.calls import Calls, Progressed, copied
from dieselfs.rpc.records import (
    AttachedRecord,
    CopyReport,
    CopyRequest,
    DetachReport,
    FsckReport,
    Problem,
    PurgeReport,
    RebuildReport,
    RepackReport,
)

if TYPE_CHECKING:  # a tool with one request starts without numpy
    import numpy as np
    import numpy.typing as npt


class MaintenanceCalls(Calls):
    """A part of `ServerClient`."""

    def purge(
        self, dataset: str, grace_s: int, is_dry_run: bool, progressed: Progressed | None = None
    ) -> PurgeReport:
        """Rewrite chunks with dead entries; remove chunks that have been dead for `grace_s`. Raises NotFound."""
        report = self._job("purge", progressed, dataset=dataset, grace_s=grace_s, is_dry_run=is_dry_run)
        return copied(PurgeReport, report, held_by=tuple(report.held_by))

    def attached_sources(self, dataset: str) -> list[AttachedRecord]:
        """The sources of attached chunks, ordered by location. Raises NotFound, and Damaged for an unreadable chunk."""
        found: list[AttachedRecord] = []
        while True:
            after = found[-1].location if found else b""
            page = self._records(AttachedRecord, "list_attached", dataset=dataset, after=after)
            found += page
            if len(page) < ATTACHED_PER_REPLY_MAX:
                return found

    def detach(self, dataset: str, location: bytes) -> DetachReport:
        """Delete the entries that come from the sources at or below `location`. Raises NotFound."""
        return self._record(DetachReport, "detach", dataset=dataset, location=location)

    def copy_attached(self, dataset: str, is_dry_run: bool, progressed: Progressed | None = None) -> int:
        """Copy the bytes of attached chunks into ordinary chunks; returns the number of attached ones.

        Raises NotFound; Damaged at a source that cannot be read, and what is copied by then stays.
        """
        return int(self._job("copy_attached", progressed, dataset=dataset, is_dry_run=is_dry_run))

    def repack(
        self,
        dataset: str,
        generation: int,
        strata: "npt.NDArray[np.uint16]",
        seed: int,
        is_dry_run: bool,
        progressed: Progressed | None = None,
        chunk_bytes: int = 0,
    ) -> RepackReport:
        """Copy files into chunks with all `strata` in proportion, which `dieselfs.shuffle.strata` makes of the snapshot
        of this generation. `chunk_bytes`: of the new chunks, 0 for the default. Raises NotFound, StorageFull, and
        InvalidInput for more files than STRATA_BYTES_MAX.
        """
        encoded = strata.astype("<u2").tobytes()
        if not encoded:
            return RepackReport(0, 0, 0, 0, 0, generation)
        if len(encoded) > STRATA_BYTES_MAX:
            raise InvalidInput(
                f"dl://{dataset} has {len(strata):,} extents, a repack takes {STRATA_BYTES_MAX // 2:,} at most"
            )
        options = {"dataset": dataset, "generation": generation, "seed": seed, "is_dry_run": is_dry_run}
        sent = {"bulk": [encoded], "bulk_length": len(encoded), "chunk_bytes": chunk_bytes}
        return copied(RepackReport, self._job("repack", progressed, **options, **sent))

    def rebuild(
        self,
        dataset: str,
        since_s: int | None = None,
        progressed: Progressed | None = None,
        is_forced: bool = False,
    ) -> RebuildReport:
        """Make the metadata again from all chunks, or from those since a time (seconds since 1970).

        Raises NotFound; Damaged if recorded chunks with files are missing, unless `is_forced`.
        """
        since_s = -1 if since_s is None else since_s
        report = self._job("rebuild", progressed, dataset=dataset, since_s=since_s, is_forced=is_forced)
        return copied(RebuildReport, report, damaged=tuple(report.damaged))

    def object_bytes(self, dataset: str) -> int:
        """What all chunks of a dataset take in the object store: compressed, without bytes that they share. Raises
        NotFound.
        """
        return int(self._value("object_bytes", dataset=dataset))

    def fsck(
        self, dataset: str, is_deep: bool, is_repair: bool, progressed: Progressed | None = None
    ) -> FsckReport:
        """Compare chunks, metadata and snapshot. Raises NotFound."""
        report = self._job("fsck", progressed, dataset=dataset, is_deep=is_deep, is_repair=is_repair)
        return copied(FsckReport, report, problems=tuple(copied(Problem, one) for one in report.problems))

    def _job(self, method: str, progressed: Progressed | None, **arguments: object) -> Any:
        return self._value(method, progressed=progressed, with_progress=progressed is not None, **arguments)

    def copy_entries(self, request: CopyRequest, progressed: Progressed | None = None) -> CopyReport:
        """Copy inside the servers, also to another dataset; `progressed` is called about once a second. Of an
        interrupted copy each entry is complete or absent; the source is deleted when all are stored. May be repeated.

        Raises NotFound, InvalidInput, Damaged, StorageFull, or AlreadyExists for a path that is taken.
        """
        progressed = progressed or (lambda _: None)  # the server sends progress in any case
        report = self._value("copy_entries", progressed=progressed, **request._asdict())
        return copied(CopyReport, report, paths=tuple(report.paths))
