"""The progress and the outcome of an upload or a download. No I/O."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from dieselfs.errors import EXIT_DAMAGED, EXIT_OK, EXIT_PARTIAL
from dieselfs.names import printable

FAILURES_KEPT_MAX = 1000

_COUNTED = (
    *("found_files", "found_bytes", "found_folders", "done_files", "done_bytes"),
    *("skipped_files", "skipped_bytes", "skipped_folders", "failed_files", "damaged_files"),
    *("sent_bytes", "shared_bytes"),
)


@dataclass
class TransferReport:
    """Numbers only rise while the transfer runs. `found_*` count what was found so far; `is_all_found`: they are final.

    At the end, found = done + skipped + failed, in files (folders and links included; `*_folders` count the folders
    among those of an upload). `failures`: the first 1,000, as (path, reason); `damaged_files`: those of
    which stored or source bytes are wrong. `sent_bytes`: what an upload has sent for `done_bytes`; `shared_bytes`:
    those of them that files have in common with others. `generation`: of the dataset after an upload.
    """

    found_files: int = 0
    found_bytes: int = 0
    found_folders: int = 0
    is_all_found: bool = False
    done_files: int = 0
    done_bytes: int = 0
    skipped_files: int = 0
    skipped_bytes: int = 0
    skipped_folders: int = 0
    failed_files: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)
    damaged_files: int = 0
    sent_bytes: int = 0
    shared_bytes: int = 0
    generation: int = 0

    def counts(self) -> tuple[int, ...]:
        """The numbers of files, folders and bytes, and of damaged files, for `add`."""
        return tuple([getattr(self, name) for name in _COUNTED])

    def add(self, counts: Iterable[int], failures: Iterable[tuple[str, str]]) -> None:
        """Add what another report counts, and its failures."""
        for name, count in zip(_COUNTED, counts, strict=True):
            setattr(self, name, getattr(self, name) + count)
        for path, reason in failures:
            if len(self.failures) < FAILURES_KEPT_MAX:
                self.failures.append((path, reason))

    def find(self, size_bytes: int, is_folder: bool) -> None:
        self.found_files += 1
        self.found_bytes += size_bytes
        self.found_folders += is_folder

    def skip(self, size_bytes: int, is_folder: bool) -> None:
        """Count an entry that the destination has already."""
        self.skipped_files += 1
        self.skipped_bytes += size_bytes
        self.skipped_folders += is_folder

    def fail(self, path: str, reason: str) -> None:
        self.failed_files += 1
        if len(self.failures) < FAILURES_KEPT_MAX:
            self.failures.append((path, reason))

    def fail_source(self, source: bytes, reason: str, is_damaged: bool = False) -> None:
        """Count a source that cannot be stored; see `upload.Failed`."""
        self.fail(printable(source), reason)
        self.damaged_files += is_damaged

    @property
    def is_damaged(self) -> bool:
        return self.damaged_files > 0

    @property
    def exit_code(self) -> int:
        """What a command ends with after this transfer."""
        if self.is_damaged:
            return EXIT_DAMAGED
        return EXIT_PARTIAL if self.failed_files else EXIT_OK
