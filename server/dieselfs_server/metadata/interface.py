"""What the server asks of a metadata store.

The comments are the contract; `tests/conformance/metadata_suite.py` holds every store to it.

A metadata store is an index over the chunks and can always be rebuilt from them: replaying all chunks of a dataset, in
any order and any number of times, gives the same live entries. For that, applying is decided by versions alone:

- Of all entries for one path, the one with the largest version counts. If it is a delete, the path does not exist;
  the store keeps it (a tombstone), so that an older put that is applied later does not bring the path back.
- Of two entries (or copies of one piece) with the same version, the one in the chunk with the larger ID counts, and in
  one chunk the later: purge copies what is alive into new chunks with the versions it had, and from then on the copies
  are read.
- A file that spans chunks (its pieces have one version) counts once pieces follow each other from its beginning to its
  end; until then the path stays what it was, and an incomplete upload never becomes visible. Should the pieces allow
  several ways, the longest piece is taken at each place. A whole entry of the same version goes before pieces.
- An entry replaced, deleted, or out of date on arrival is marked in the deletion bitmap of its chunk. Pieces of a file
  that is not complete are not, as long as the file is newer than what its path is.

All methods block and may be called from any number of threads at once; the server calls them in worker threads.
Every method raises Unavailable when the store cannot be reached, and StorageFull when it has no room. Methods that take
a dataset ID raise NotFound when there is no such dataset.
"""

from collections.abc import Sequence
from typing import Protocol

from dieselfs.chunk.format import ChunkHeader, Preamble
from dieselfs.meta.records import ChunkRecord, DatasetRecord, EntryTable, FileRecord, NoteChange, PendingFile


class MetadataStore(Protocol):
    def create_dataset(
        self, name: str, dataset_id: bytes, generation: int = 0, updated_ns: int = 0
    ) -> DatasetRecord:
        """Create a dataset without entries. Raises AlreadyExists if the name or the ID is taken.

        A rebuild goes on from the `generation` and the time that are known, so that both keep rising.
        """
        ...

    def dataset(self, name: str) -> DatasetRecord:
        """The dataset called `name`. Raises NotFound."""
        ...

    def datasets(self) -> list[DatasetRecord]:
        """All datasets, ordered by name."""
        ...

    def drop_dataset(self, dataset_id: bytes) -> None:
        """Forget a dataset with all that belongs to it. Atomic. Raises NotFound."""
        ...

    def reserve_versions(self, dataset_id: bytes, count: int, now_ns: int) -> int:
        """The first of `count` consecutive versions that nobody else gets.

        Each reservation is larger than all before it and all applied versions, and at least `now_ns` (nanoseconds since
        1970): so the order of versions follows the order of writing even if clocks differ, and stays close to it even
        if the store has just lost everything. Raises InvalidInput when there are none left.
        """
        ...

    def apply(
        self, dataset_id: bytes, preamble: Preamble, header: ChunkHeader, now_ns: int, is_again: bool = False
    ) -> int:
        """Make a chunk's entries count. Atomic and idempotent: applying a chunk again changes nothing.

        A store that can lose some of what it was told (a node of a cluster) looks only at its record of the chunk,
        unless `is_again`: then it looks at every entry, and puts back what is missing.

        Returns the dataset's generation, which rises by one with each chunk that is applied for the first time; its
        `updated_ns` rises with it, to `now_ns` or, if that clock has stepped back, by one.
        """
        ...

    def has_chunk(self, dataset_id: bytes, chunk_id: bytes) -> bool:
        """Whether the chunk has been applied."""
        ...

    def forget_chunk(self, dataset_id: bytes, chunk_id: bytes) -> None:
        """Drop the record of a chunk all of whose entries are marked deleted. Raises InvalidInput if one still counts.

        Without error if there is no such record.
        """
        ...

    def chunks(self, dataset_id: bytes) -> list[ChunkRecord]:
        """All applied chunks, ordered by ID."""
        ...

    def newest_chunk_time_s(self, dataset_id: bytes) -> int:
        """Time in the ID of the newest applied chunk, seconds since 1970; 0 without chunks."""
        ...

    def notes(self, dataset_id: bytes, names: Sequence[str]) -> list[bytes | None]:
        """The notes of these names, at one instant; None for one that is not there.

        Notes are small values beside the entries, for what holds only for now, such as leases. They are not made from
        chunks: a store that is lost and rebuilt has none, so only what is written again and again belongs here.
        """
        ...

    def notes_below(self, dataset_id: bytes, folder: str) -> dict[str, bytes]:
        """All notes whose names begin with `folder` (empty, or with a "/" at its end), ordered by name.

        At one instant as long as they are no more than NOTES_AT_ONCE_MAX.
        """
        ...

    def change_notes(self, dataset_id: bytes, changes: Sequence[NoteChange]) -> bool:
        """Change notes, all at one instant, if every one is as expected; else none. Returns whether it was done.

        If an answer of the store was lost on the way, it may have been done although this says that it was not.
        """
        ...

    def pending(self, dataset_id: bytes, path: bytes) -> PendingFile:
        """The newest file at `path` that is newer than the live entry there and of which pieces are missing."""
        ...

    def lookup(self, dataset_id: bytes, path: bytes) -> FileRecord | None:
        """The live entry at `path`, or None. A folder that exists only because something is in it has no entry."""
        ...

    def list_folder(self, dataset_id: bytes, folder: bytes, after: bytes, limit: int) -> Sequence[FileRecord]:
        """Up to `limit` live entries directly in `folder` whose names sort behind `after`, ordered by name (as bytes).

        Reads what it returns, not the whole dataset. Extents are left out. Folders without an entry of their own do
        appear, as folders with mode 0755, time 0 and version 0; also in the place of a file of the same path.
        Empty if there is no such folder.
        """
        ...

    def entry_table(self, dataset_id: bytes) -> EntryTable:
        """All live entries of the present generation, at one instant."""
        ...

    def close(self) -> None:
        """Let go of files and connections. The store is of no further use."""
        ...
