"""Rebuilds the metadata of a dataset from its chunks (DIESEL 4.1.2). Blocks.

Three cases. The metadata exists, but is suspect: a copy is made from all chunks and put in its place; meanwhile writers
and readers use the present metadata, and chunks that are put are applied to both. All metadata is lost: the dataset is
created again and marked until all chunks are applied. Some of the newest is lost: the chunks since then are applied
again. The order of chunks does not matter, because versions decide. An interrupted rebuild is run again.
"""

import logging
from contextlib import closing, suppress
from dataclasses import dataclass, field

from dieselfs.errors import AlreadyExists, Damaged, DieselfsError, NotFound, Unavailable
from dieselfs.limits import REPORT_LINE_BYTES_MAX, REPORT_LINES_MAX
from dieselfs.records import DatasetRecord
from dieselfs.rpc.records import RebuildReport
from dieselfs_server.datasets.catalog import REBUILD_HOLDER, rebuild_pin
from dieselfs_server.datasets.commit import read_header
from dieselfs_server.leases.pins import put_pin, remove_pin
from dieselfs_server.maintenance.jobs import Proceed
from dieselfs_server.maintenance.parallel_reads import read_in_order
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.store.interface import ObjectStore

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
    proceed: Proceed | None = None,
) -> RebuildReport:
    """Rebuild the metadata of a dataset, or only of its chunks since `since_s` (seconds since 1970).

    Unreadable chunks are skipped and reported; their entries are missing afterwards. Raises Unavailable, before
    anything is changed, if the object store is away.
    """
    next(store.list_chunks(dataset_id), None)
    proceed = proceed or Proceed()
    if since_s is None:
        with suppress(NotFound):  # lost metadata does not say how many there are
            proceed.expect(metadata.dataset(name).chunks)
    found = None if since_s is not None else _fill_copy(store, metadata, name, dataset_id, now_ns, proceed)
    found = found or _fill_in_place(store, metadata, name, dataset_id, now_ns, since_s, proceed)
    record = metadata.dataset(name)
    log.info(
        "rebuilt %s: %d chunks, %d entries, %d files", name, len(found.chunks), found.entries, record.files
    )
    return RebuildReport(
        len(found.chunks), found.entries, record.files, record.generation, tuple(found.damaged)
    )


@dataclass(eq=False)
class _Found:
    """What a pass over the chunks has found; `chunks` has the IDs of the applied ones."""

    chunks: set[bytes] = field(default_factory=set)
    entries: int = 0
    damaged: list[str] = field(default_factory=list)


def _fill_copy(
    store: ObjectStore, metadata: MetadataStore, name: str, dataset_id: bytes, now_ns: int, proceed: Proceed
) -> _Found | None:
    """None if the metadata is lost. Raises NotFound if the dataset is dropped meanwhile."""
    for _ in range(TRIES_MAX):
        try:
            copy_id = metadata.begin_rebuild(dataset_id)
        except NotFound:
            return None
        try:
            found = _apply_all(store, metadata, name, dataset_id, copy_id, now_ns, 0, proceed)
            if _all_exist(store, dataset_id, found.chunks):
                metadata.finish_rebuild(dataset_id, copy_id, now_ns)
                remove_pin(metadata, dataset_id, REBUILD_HOLDER)  # of an earlier rebuild of lost metadata
                return found
        except BaseException:
            with suppress(DieselfsError):
                metadata.cancel_rebuild(dataset_id, copy_id)
            raise
    raise _unsettled(name)


def _fill_in_place(
    store: ObjectStore,
    metadata: MetadataStore,
    name: str,
    dataset_id: bytes,
    now_ns: int,
    since_s: int | None,
    proceed: Proceed,
) -> _Found:
    for _ in range(TRIES_MAX):
        dataset = _present(metadata, name, dataset_id, now_ns)
        # The mark of a dataset that is being rebuilt; an error leaves it.
        put_pin(metadata, dataset_id, rebuild_pin(dataset))
        found = _apply_all(store, metadata, name, dataset_id, dataset_id, now_ns, since_s or 0, proceed)
        if _all_exist(store, dataset_id, found.chunks):
            remove_pin(metadata, dataset_id, REBUILD_HOLDER)
            return found
        if since_s is None:
            metadata.drop_dataset(dataset_id)
    raise _unsettled(name)


def _apply_all(
    store: ObjectStore,
    metadata: MetadataStore,
    name: str,
    dataset_id: bytes,
    target_id: bytes,
    now_ns: int,
    since_s: int,
    proceed: Proceed,
) -> _Found:
    """Apply the chunks of a dataset since a time to the dataset or its copy."""
    found = _Found()
    with closing(
        read_in_order(read_header, store, dataset_id, store.list_chunks(dataset_id, since_s))
    ) as chunks:
        for chunk_id, chunk in chunks:
            proceed()
            try:
                preamble, header = chunk.result()
            except (Damaged, NotFound) as error:
                log.error("rebuild of %s: %s", name, error)
                found.damaged = [*found.damaged, report_line(str(error))][:REPORT_LINES_MAX]
                continue
            metadata.apply(target_id, preamble, header, now_ns, is_again=True)
            found.chunks.add(chunk_id)
            found.entries += len(header)
    return found


def _all_exist(store: ObjectStore, dataset_id: bytes, chunks: set[bytes]) -> bool:
    """Whether no applied chunk was removed meanwhile: a put of a dataset that is not known removes its chunk."""
    return chunks.issubset(store.list_chunks(dataset_id))


def _unsettled(name: str) -> Unavailable:
    return Unavailable(f"chunks of {name} were removed during each of {TRIES_MAX} rebuilds; try again later")


def report_line(text: str) -> str:
    """`text`, cut so that a reply can hold many such lines."""
    return text.encode("utf-8", "replace")[:REPORT_LINE_BYTES_MAX].decode("utf-8", "ignore")


def _present(metadata: MetadataStore, name: str, dataset_id: bytes, now_ns: int) -> DatasetRecord:
    """The dataset, which is created if its metadata is lost."""
    with suppress(NotFound, Damaged):
        return metadata.dataset(name)
    with suppress(AlreadyExists):  # another server rebuilds it too: applying twice is harmless
        return metadata.create_dataset(name, dataset_id, 0, now_ns)
    return metadata.dataset(name)
