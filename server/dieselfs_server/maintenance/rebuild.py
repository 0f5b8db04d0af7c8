"""Rebuilds the metadata of a dataset from its chunks (DIESEL 4.1.2). Blocks.

Three cases. The metadata exists, but is suspect: a copy is made from all chunks and put in its place; meanwhile writers
and readers use the present metadata, and chunks that are put are applied to both. All metadata is lost: the dataset is
created again and marked until all chunks are applied. Some of the newest is lost: the chunks since then are applied
again. The order of chunks does not matter, because versions decide. An interrupted rebuild is run again.
"""

import logging
from collections import defaultdict
from contextlib import closing, suppress
from dataclasses import dataclass, field

from dieselfs.chunk.format import ChunkHeader
from dieselfs.errors import AlreadyExists, Damaged, DieselfsError, InvalidInput, NotFound, Unavailable
from dieselfs.limits import REPORT_LINE_BYTES_MAX, REPORT_LINES_MAX
from dieselfs.records import DatasetRecord
from dieselfs.rpc.records import RebuildReport
from dieselfs_server.datasets.catalog import REBUILD_HOLDER, rebuild_pin
from dieselfs_server.datasets.commit import check_source, lacks_entries, read_header
from dieselfs_server.datasets.references import Pair, References, note_reference
from dieselfs_server.leases.lease import PINS_FOLDER, pin_change, put_pin, remove_pin
from dieselfs_server.maintenance.jobs import Proceed
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.metadata.rules import first_generation
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.ordered_reads import read_in_order

TRIES_MAX = 8
"""Tries of a rebuild that applies chunks which are removed before it ends."""

log = logging.getLogger(__name__)


def rebuild(
    store: ObjectStore,
    metadata: MetadataStore,
    name: str,
    dataset_id: bytes,
    now_ns: int,
    since_s: int | None = None,
    is_forced: bool = False,
    proceed: Proceed | None = None,
) -> RebuildReport:
    """Rebuild the metadata of a dataset, or only of its chunks since `since_s` (seconds since 1970).

    Raises Unavailable, before anything is changed, if the object store is away. Raises Damaged, and changes nothing,
    if recorded chunks with live entries are not in the object store, or unreadable, or refer to such; with `is_forced`,
    their entries are forgotten. Other unreadable chunks are skipped and reported. Chunks with entries of a promotion
    that has not stored all of them are skipped.
    """
    next(store.list_chunks(dataset_id), None)
    work = _Rebuild(store, metadata, name, dataset_id, now_ns, since_s or 0, proceed or Proceed(), is_forced)
    is_filled = False
    if since_s is None:
        with suppress(NotFound):  # lost metadata does not say how many there are
            work.proceed.expect(metadata.dataset(name).chunks)
        is_filled = work.fill_copy()
    if not is_filled:
        work.fill_in_place(is_partial=since_s is not None)
    references = References(store)
    references.record(dataset_id, references.unrecorded(dataset_id, work.references), now_ns // 10**9)
    record, applied = metadata.dataset(name), len(work.chunks)
    log.info("rebuilt %s: %d chunks, %d entries, %d files", name, applied, work.entries, record.files)
    return RebuildReport(applied, work.entries, record.files, record.generation, tuple(work.damaged))


@dataclass(eq=False)
class _Rebuild:
    """One rebuild, and what its last pass over the chunks has found; `chunks` has the IDs of the applied ones."""

    store: ObjectStore
    metadata: MetadataStore
    name: str
    dataset_id: bytes
    now_ns: int
    since_s: int
    proceed: Proceed
    is_forced: bool
    chunks: set[bytes] = field(default_factory=set)
    listed: set[bytes] = field(default_factory=set)
    """IDs of the chunks that the object store had after the last pass."""
    entries: int = 0
    damaged: list[str] = field(default_factory=list)
    references: defaultdict[bytes, list[Pair]] = field(default_factory=lambda: defaultdict(list))
    """To chunks of datasets with these IDs."""
    sources: dict[bytes, set[bytes]] = field(default_factory=dict)
    """The chunks of these datasets, as they were listed once."""

    def fill_copy(self) -> bool:
        """False if the metadata is lost. Raises NotFound if the dataset is dropped meanwhile."""
        metadata, dataset_id = self.metadata, self.dataset_id
        for _ in range(TRIES_MAX):
            recorded = self._live_chunks()
            try:
                copy_id = metadata.begin_rebuild(dataset_id)
            except NotFound:
                return False
            try:
                if self._apply_all(copy_id):
                    # Purge removes a record before its chunk: what has a record before and after must be there.
                    self._check_found(recorded & self._live_chunks())
                    metadata.finish_rebuild(dataset_id, copy_id, self.now_ns)
                    remove_pin(metadata, dataset_id, REBUILD_HOLDER)  # of an earlier rebuild of lost metadata
                    return True
            except BaseException:
                with suppress(DieselfsError):
                    metadata.cancel_rebuild(dataset_id, copy_id)
                raise
        raise self._unsettled()

    def fill_in_place(self, is_partial: bool) -> None:
        for _ in range(TRIES_MAX):
            # The mark of a dataset that is being rebuilt; an error leaves it.
            present = self._present()
            if self.metadata.notes(self.dataset_id, [PINS_FOLDER + REBUILD_HOLDER]) != [None]:
                self.since_s = 0  # what is older may be missing, too
            put_pin(self.metadata, self.dataset_id, rebuild_pin(present.generation, present.updated_ns))
            if self._apply_all(self.dataset_id):
                remove_pin(self.metadata, self.dataset_id, REBUILD_HOLDER)
                return
            if not is_partial:
                self.metadata.drop_dataset(self.dataset_id)
        raise self._unsettled()

    def _apply_all(self, target_id: bytes) -> bool:
        """Apply the chunks since `since_s` to the dataset or its copy; whether none of them was removed meanwhile: a
        put of a dataset that is not known removes its chunk.
        """
        self.chunks, self.entries, self.damaged = set(), 0, []
        self.references.clear()
        is_partly_promoted = lacks_entries(self.store, self.dataset_id)
        listing = self.store.list_chunks(self.dataset_id, self.since_s)
        with closing(read_in_order(read_header, self.store, self.dataset_id, listing)) as chunks:
            for chunk_id, chunk in chunks:
                self.proceed()
                try:
                    preamble, header = chunk.result()
                    if is_partly_promoted and len(header):
                        continue
                    self._check_source(header)
                except (Damaged, NotFound) as error:
                    log.error("rebuild of %s: %s", self.name, error)
                    self.damaged = [*self.damaged, report_line(str(error))][:REPORT_LINES_MAX]
                    continue
                self.metadata.apply(target_id, preamble, header, self.now_ns, is_again=True)
                self.chunks.add(chunk_id)
                note_reference(self.references, chunk_id, header)
                self.entries += len(header)
        self.listed = set(self.store.list_chunks(self.dataset_id))
        return self.chunks <= self.listed

    def _check_source(self, header: ChunkHeader) -> None:
        """As the function of `commit`, with a listing in place of a read for each chunk."""
        if header.source is None or not header.source.is_chunk:
            return
        source_id, source_chunk = header.source.chunk
        if source_id not in self.sources:
            self.sources[source_id] = set(self.store.list_chunks(source_id))
        if source_chunk not in self.sources[source_id]:  # lost, or stored since they were listed
            check_source(self.store, header)

    def _live_chunks(self) -> set[bytes]:
        """IDs of the recorded chunks that have live entries; none if the metadata is lost or damaged."""
        with suppress(NotFound, Damaged):
            records = self.metadata.chunks(self.dataset_id)
            return {record.chunk_id for record in records if record.deleted_entries < record.entries}
        return set()

    def _check_found(self, recorded: set[bytes]) -> None:
        missing, damaged = len(recorded - self.listed), len((recorded & self.listed) - self.chunks)
        if (missing or damaged) and not self.is_forced:
            which = " and ".join(
                f"{count:,} of {len(recorded):,} chunks with files of {self.name} are {what}"
                for count, what in ((missing, "missing in the object store"), (damaged, "damaged"))
                if count
            )
            raise Damaged(
                f"not rebuilt: {which}; bring them back, or forget their files: dlcmd rebuild --force dl://{self.name}"
            )

    def _present(self) -> DatasetRecord:
        """The dataset; if its metadata is lost, it is created with the mark: no reader sees it without its files."""
        with suppress(NotFound, Damaged):
            present = self.metadata.dataset(self.name)
            if present.dataset_id == self.dataset_id:
                return present
            self._check_empty(present)
            self.metadata.drop_dataset(present.dataset_id)
        with suppress(AlreadyExists):  # another server rebuilds it too: applying twice is harmless
            generation = first_generation(self.now_ns)
            mark = pin_change(rebuild_pin(generation, self.now_ns))
            return self.metadata.create_dataset(self.name, self.dataset_id, generation, self.now_ns, [mark])
        return self.metadata.dataset(self.name)

    def _check_empty(self, other: DatasetRecord) -> None:
        """Raise InvalidInput if the dataset that has the name in the metadata alone has chunks."""
        if any(self.store.list_chunks(other.dataset_id)):
            raise InvalidInput(
                f"not rebuilt: dl://{self.name} is another dataset in the metadata, with {other.files:,} files; copy "
                f"those that you need (dlcmd cp -r dl://{self.name} dl://NAME), remove it (dlcmd rb dl://{self.name}), "
                f"then rebuild the lost one: dlcmd rebuild dl://{self.name}"
            )

    def _unsettled(self) -> Unavailable:
        what = f"chunks of {self.name} were removed during each of {TRIES_MAX} rebuilds"
        return Unavailable(f"{what}; try again later")


def report_line(text: str) -> str:
    """`text`, cut so that a reply can hold many such lines."""
    return text.encode("utf-8", "replace")[:REPORT_LINE_BYTES_MAX].decode("utf-8", "ignore")
