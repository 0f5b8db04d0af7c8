"""The interface of metadata stores.

The comments are the contract; `tests/conformance/metadata_suite.py` holds every store to it.

A metadata store is an index over the chunks and can always be rebuilt from them: to apply all chunks of a dataset, in
any order and any number of times, gives the same live entries. Only versions decide:

- Of all entries of one path, the one with the largest version counts. If that is a delete, the path does not exist; the
  store keeps it (a tombstone), so that an older put that is applied later does not restore the path.
- Of two entries (or copies of one extent) with the same version, the one in the chunk with the larger ID counts, and in
  one chunk the later one. Purge copies live entries with their versions into new chunks, and readers then use the
  copies.
- A file that spans chunks (its extents have one version) counts once extents follow each other from its beginning to
  its end. Until then the path keeps its former state, so an incomplete upload never becomes visible. If several chains
  of extents cover the file, the longest extent at each place is used. An entry of a whole file precedes extents of the
  same version.
- An entry that is replaced, deleted, or out of date on arrival is marked in the deletion bitmap of its chunk. Extents
  of an incomplete file are not marked while the file is newer than the state of its path.

All methods block and may be called from any number of threads; the server calls them in worker threads. Every method
raises Unavailable when the store cannot be reached, and StorageFull when it has no room. Methods that take a dataset ID
raise NotFound when there is no such dataset.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from dieselfs.chunk.format import ChunkHeader, Preamble
from dieselfs.records import (
    ChunkRecord,
    DatasetRecord,
    DatasetUsage,
    EntryTable,
    FileRecord,
    NoteChange,
    PendingFile,
)
from dieselfs.rpc.records import CheckRecord


class EntrySink(Protocol):
    """Takes the live entries of a generation in blocks: tables with some of the rows, and all chunks."""

    def add(self, block: EntryTable, /) -> object: ...


Sink = TypeVar("Sink", bound=EntrySink)


class MetadataStore(Protocol):
    def create_dataset(
        self,
        name: str,
        dataset_id: bytes,
        generation: int = 0,
        updated_ns: int = 0,
        notes: Sequence[NoteChange] = (),
    ) -> DatasetRecord:
        """Create a dataset without entries, and with these notes. Raises AlreadyExists if the name or the ID is taken.

        A rebuild of lost metadata passes the last known `generation` and `updated_ns`, so that both keep rising.
        """
        ...

    def dataset(self, name: str) -> DatasetRecord:
        """The dataset called `name`. Raises NotFound."""
        ...

    def datasets(self) -> list[DatasetRecord]:
        """All datasets, ordered by name."""
        ...

    def usage(self, names: Sequence[str]) -> list[DatasetUsage | None]:
        """What the datasets with these names take, each at one instant; None for a name without a dataset.

        Each chunk counts from the instant in which it is applied until it is forgotten.
        """
        ...

    def drop_dataset(self, dataset_id: bytes, /) -> None:
        """Remove a dataset with all its metadata. Atomic. Raises NotFound."""
        ...

    def begin_rebuild(self, dataset_id: bytes, /) -> bytes:
        """Start an empty copy of a dataset, also of a damaged one; returns the ID of the copy, which `apply` takes.

        From now on `apply` to the dataset applies to the copy too. Nobody else sees the copy. An earlier copy that was
        not put in place is removed.
        """
        ...

    def finish_rebuild(self, dataset_id: bytes, /, copy_id: bytes, now_ns: int) -> None:
        """Put the copy in the place of the dataset, atomically, and remove what was there.

        Notes and reserved versions stay, the time rises, and the generation above all that were before, also those of
        metadata that was set back since (`rules.first_generation`). Concurrent calls continue with the copy.
        Raises NotFound if the copy has been replaced by that of another rebuild.
        """
        ...

    def cancel_rebuild(self, dataset_id: bytes, /, copy_id: bytes) -> None:
        """Remove the copy; no error if it is not the present one."""
        ...

    def reserve_versions(self, dataset_id: bytes, /, count: int, now_ns: int) -> int:
        """The first of `count` consecutive versions that are reserved for the caller.

        Each is larger than all versions reserved or applied before, and at least `now_ns` (nanoseconds since 1970). So
        versions follow the order of writing even if clocks differ, and approximately even after the store has lost all
        data. Raises InvalidInput when none are left.
        """
        ...

    def last_version(self, dataset_id: bytes, /) -> int:
        """The largest version that was reserved or applied; 0 if there is none."""
        ...

    def apply(
        self,
        dataset_id: bytes,
        /,
        preamble: Preamble,
        header: ChunkHeader,
        now_ns: int,
        is_again: bool = False,
    ) -> int:
        """Make a chunk's entries count. Atomic and idempotent: applying a chunk again changes nothing.

        A store that can lose a part of its data (a node of a cluster) checks only its record of the chunk, unless
        `is_again`: then it checks every entry, and restores missing ones.

        Returns the dataset's generation, which rises by one with each chunk that is applied for the first time; its
        `updated_ns` rises with it, to `now_ns` or, if that clock has stepped back, by one.
        """
        ...

    def has_chunk(self, dataset_id: bytes, /, chunk_id: bytes) -> bool:
        """Whether the chunk has been applied."""
        ...

    def check_whole(self, dataset_id: bytes, /) -> None:
        """Raise Damaged if a part of the metadata is missing, as of a node of a cluster that has lost writes."""
        ...

    def forget_chunk(self, dataset_id: bytes, /, chunk_id: bytes) -> None:
        """Remove the record of a chunk whose entries are all dead; no error if there is no such record.

        Raises InvalidInput if an entry is live.
        """
        ...

    def chunks(self, dataset_id: bytes, /) -> list[ChunkRecord]:
        """All applied chunks, ordered by ID."""
        ...

    def newest_chunk_time_s(self, dataset_id: bytes, /, until_s: int) -> int:
        """Time in the ID of the newest applied chunk that is not after `until_s`, seconds since 1970; 0 without any."""
        ...

    def notes(self, dataset_id: bytes, /, names: Sequence[str]) -> list[bytes | None]:
        """The notes of these names, at one instant; None for a name without a note.

        Notes are small values beside the entries, such as leases. They are not made from chunks, so a rebuilt store has
        none: a note must be a value that its owner writes periodically, or that may be lost, such as a count.
        """
        ...

    def notes_below(self, dataset_id: bytes, /, folder: str) -> dict[str, bytes]:
        """All notes whose names begin with `folder` (empty, or with a "/" at its end), ordered by name.

        At one instant if there are at most NOTES_AT_ONCE_MAX.
        """
        ...

    def change_notes(self, dataset_id: bytes, /, changes: Sequence[NoteChange]) -> bool:
        """Change all notes at one instant if each has its expected value, else none; returns whether they changed.

        If a reply of the store was lost, the result may be False although the notes have changed.
        """
        ...

    def common_note(self, name: str) -> bytes | None:
        """A note that belongs to no dataset, or None."""
        ...

    def change_common_note(self, change: NoteChange) -> bool:
        """As `change_notes`, for a note that belongs to no dataset."""
        ...

    def pending(self, dataset_id: bytes, /, path: bytes) -> PendingFile:
        """The newest incomplete file at `path` that is newer than the live entry there."""
        ...

    def lookup(self, dataset_id: bytes, /, path: bytes) -> FileRecord | None:
        """The live entry at `path`, or None. A folder that exists only because it is not empty has no entry."""
        ...

    def list_folder(
        self, dataset_id: bytes, /, folder: bytes, after: bytes, limit: int
    ) -> Sequence[FileRecord]:
        """Up to `limit` live entries directly in `folder` with names after `after`, ordered by name (as bytes).

        Costs as much as it returns, not the whole dataset. Extents are left out. A non-empty folder without an entry
        appears with mode 0755, time 0 and version 0, also instead of a file of the same path. Empty if there is no such
        folder.
        """
        ...

    def read_entries(self, dataset_id: bytes, /, begin: Callable[[], Sink]) -> Sink:
        """Give all live entries of the newest generation, at one instant, to the sink that `begin` makes; returns it.

        There is at least one block, and each has as many rows as fit into some MB. Folders come in any order; the
        entries of one follow one another, ordered by name. `begin` is called again if the reading starts again.
        """
        ...

    def entry_table(self, dataset_id: bytes, /) -> EntryTable:
        """All live entries, as `read_entries`, in memory: 400 bytes for each."""
        ...

    def condition(self) -> list[CheckRecord]:
        """How safe the metadata is from a loss of the machine or its power: one check or more. Raises Unavailable."""
        ...

    def lineage(self) -> int:
        """Rises when the store may have lost its newest changes: it was restarted, restored, or is another node.

        A call that finds this raises the number before it returns. See `datasets/caught_up.py`.
        """
        ...

    def close(self) -> None:
        """Close files and connections. The store must not be used afterwards."""
        ...
