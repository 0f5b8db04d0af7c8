"""What `dlcmd sync --delete` deletes. Waits for the server, and for the answer of the user."""

from collections.abc import Iterable, Iterator, Sequence

from dieselfs.errors import NotFound
from dieselfs.limits import VERSIONS_PER_REQUEST_MAX
from dieselfs.names import Location
from dieselfs.snapshot.reader import Snapshot
from dieselfs.transfer.upload import UploadEntry
from dieselfs_tools.cli.confirmation import confirm_name
from dieselfs_tools.cli.patterns import Patterns, deletable
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.sources import Source, relative_path
from dieselfs_tools.transfers.trees import StoredTree


class Mirror:
    """The entries of a dataset as they were before the walk of the source.

    Other writers may work meanwhile. What they add is not listed here, so it is not deleted. The versions of the
    deletions are reserved before the walk too: a file that another writer replaces later has a larger version, which
    counts.
    """

    def __init__(
        self,
        session: Session,
        location: Location,
        source: Source,
        patterns: Patterns,
        is_confirmed: bool,
        is_dry_run: bool,
    ) -> None:
        """`is_confirmed`: everything may be deleted; `is_dry_run`: `delete` is not called."""
        self._location = location
        self._source = source
        self._patterns = patterns
        self._is_asked = not (is_confirmed or is_dry_run)
        self._walked: set[bytes] = set()
        self._versions: list[range] = []
        self._snapshot: Snapshot | None = None
        try:
            self._dataset = session.dataset(location.dataset)
            self._snapshot = self._dataset.snapshot
        except NotFound:  # it would be created
            return
        entries = 0 if is_dry_run else len(self._snapshot)
        for start in range(0, entries, VERSIONS_PER_REQUEST_MAX):
            count = min(VERSIONS_PER_REQUEST_MAX, entries - start)
            first = session.client.reserve_versions(location.dataset, count)
            self._versions.append(range(first, first + count))

    def noted(self, entries: Iterable[UploadEntry]) -> Iterator[UploadEntry]:
        """The same entries; they are not deleted."""
        for entry in entries:
            self._walked.add(entry.path)
            yield entry

    def extraneous(self) -> Sequence[bytes]:
        """After the walk: the listed paths that the source does not have, each folder after its content, but for
        excluded ones and folders that have some.

        Raises InvalidInput if the source is empty, and the user does not confirm that.
        """
        source, snapshot = self._source, self._snapshot
        top = -1 if snapshot is None else snapshot.find(source.path)
        if snapshot is None or top < 0 or not snapshot.stat(top).is_folder:
            return ()
        below = StoredTree(snapshot, source.path).reversed_paths()
        kept = {relative_path(source, path) for path in self._walked}
        head = source.path + b"/" if source.path else b""
        removed = [head + path for path in deletable(below, self._patterns, kept)]
        is_empty = all(path == source.path for path in self._walked)
        if removed and is_empty and self._is_asked:
            location = self._location
            confirm_name(location.dataset, f"the source is empty: this deletes everything in {location}")
        return removed

    def delete(self, removed: Sequence[bytes]) -> int:
        """Delete paths of `extraneous`; returns how many are gone. Another writer has stored the others meanwhile."""
        versions = (version for each in self._versions for version in each)
        for path, version in zip(removed, versions, strict=False):
            self._dataset.writer.delete(path, version)
        self._dataset.flush()
        snapshot = self._dataset.snapshot
        return sum(snapshot.find(path) < 0 for path in removed)
