"""Rebuilds the metadata of a dataset from its chunks (DIESEL 4.1.2). Blocks.

Scenario (b) of the paper, all metadata is lost or suspect: drop it, and apply every chunk. Scenario (a), some of the
newest is lost: apply the chunks since then again. The order does not matter, because versions decide. An interrupted
rebuild leaves a mark, and is run again.
"""

import logging

from dieselfs.errors import AlreadyExists, Damaged, NotFound
from dieselfs.limits import REPORT_LINE_BYTES_MAX, REPORT_LINES_MAX
from dieselfs.records import DatasetRecord
from dieselfs.rpc.records import RebuildReport
from dieselfs_server.datasets.catalog import REBUILD_HOLDER, rebuild_pin
from dieselfs_server.datasets.commit import read_header
from dieselfs_server.leases.pins import put_pin, remove_pin
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.store.interface import ObjectStore

log = logging.getLogger(__name__)


def rebuild(
    store: ObjectStore,
    metadata: MetadataStore,
    name: str,
    dataset_id: bytes,
    now_ns: int,
    since_s: int | None = None,
) -> RebuildReport:
    """Rebuild the metadata of a dataset, or only of its chunks since `since_s` (seconds since 1970).

    Unreadable chunks are skipped and reported; their entries are missing afterwards. During a rebuild the server sends
    no snapshot of the dataset; chunks are read and written as usual.
    """
    next(store.list_chunks(dataset_id), None)  # raises Unavailable while the store is away
    dataset = _known(metadata, name)
    if dataset is None or since_s is None:
        dataset = _emptied(metadata, name, dataset_id, dataset, now_ns)
    chunks = entries = 0
    damaged: list[str] = []
    # The mark of a dataset that is being rebuilt; an error leaves it.
    put_pin(metadata, dataset_id, rebuild_pin(dataset))
    for chunk_id in store.list_chunks(dataset_id, since_s or 0):
        try:
            preamble, header = read_header(store, dataset_id, chunk_id)
        except (Damaged, NotFound) as error:
            log.error("rebuild of %s: %s", name, error)
            damaged = [*damaged, report_line(str(error))][:REPORT_LINES_MAX]
            continue
        metadata.apply(dataset_id, preamble, header, now_ns, is_again=True)
        chunks, entries = chunks + 1, entries + len(header)
    remove_pin(metadata, dataset_id, REBUILD_HOLDER)
    record = metadata.dataset(name)
    log.info("rebuilt %s: %d chunks, %d entries, %d files", name, chunks, entries, record.files)
    return RebuildReport(chunks, entries, record.files, record.generation, tuple(damaged))


def report_line(text: str) -> str:
    """`text`, cut so that a reply can hold many such lines."""
    return text.encode("utf-8", "replace")[:REPORT_LINE_BYTES_MAX].decode("utf-8", "ignore")


def _known(metadata: MetadataStore, name: str) -> DatasetRecord | None:
    try:
        return metadata.dataset(name)
    except (NotFound, Damaged):
        return None


def _emptied(
    metadata: MetadataStore, name: str, dataset_id: bytes, known: DatasetRecord | None, now_ns: int
) -> DatasetRecord:
    """A dataset without entries, with the known generation."""
    generation, updated_ns = (known.generation, known.updated_ns) if known else (0, 0)
    try:
        metadata.drop_dataset(dataset_id)
    except NotFound:
        log.info("rebuild of %s: it is not in the metadata store", name)
    try:
        return metadata.create_dataset(name, dataset_id, generation, max(updated_ns, now_ns))
    except AlreadyExists:  # another server rebuilds it too: applying twice is harmless
        return metadata.dataset(name)
