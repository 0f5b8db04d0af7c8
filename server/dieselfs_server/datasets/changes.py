"""The next snapshot from one that is kept and the chunks applied since. This module reads metadata and chunk headers.

Their headers say which paths may have changed; the live entries at these come from the metadata store. That costs as
much as the changes, where reading all entries costs as much as the dataset.
"""

import logging
from collections.abc import Callable

from dieselfs.chunk.format import ChunkHeader
from dieselfs.errors import Damaged, NotFound, Unavailable
from dieselfs.records import ChunkRecord, DatasetRecord
from dieselfs.snapshot.format import COUNT_MAX, decode_snapshot_header
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.successor import chunk_ids, next_snapshot, with_folders
from dieselfs_server.metadata.interface import MetadataStore

CHANGES_MAX = 20_000
"""With more entries in the chunks since, all entries are read instead: each path takes a request to the metadata."""
CHANGES_SHARE = 0.1
"""The same for more than this share of the dataset."""
ATTEMPTS_MAX = 3
"""The live entries are read again if a chunk is applied meanwhile."""

log = logging.getLogger(__name__)

Headers = Callable[[bytes, bytes], ChunkHeader]
"""The header of a stored chunk, by dataset and chunk ID. Raises NotFound, Damaged, Unavailable."""


def content_since(base: Snapshot, metadata: MetadataStore, headers: Headers) -> bytes | None:
    """The snapshot file of the newest generation, without a signature; None where it must be built from all entries.

    Blocks. Raises what the metadata store raises.
    """
    for _ in range(ATTEMPTS_MAX):
        dataset = metadata.dataset(base.dataset)
        chunks = metadata.chunks(base.header.dataset_id)
        new = _chunks_since(base, dataset, chunks)
        if new is None:
            return None
        try:
            changed = {path for chunk in new for path in headers(dataset.dataset_id, chunk.chunk_id).paths}
            live = {path: metadata.lookup(dataset.dataset_id, path) for path in with_folders(changed)}
            if metadata.dataset(base.dataset) != dataset:
                continue
            content = next_snapshot(base, dataset, chunks, live)
            header = decode_snapshot_header(content, len(content), "snapshot")
        except (Damaged, NotFound, Unavailable) as error:  # all entries are read from the metadata alone
            log.warning("the snapshot of %s is built from all entries: %s", base.dataset, error)
            return None
        is_right = (header.files, header.total_bytes) == (dataset.files, dataset.total_bytes)
        return content if is_right and header.nodes <= COUNT_MAX else None
    return None


def _chunks_since(
    base: Snapshot, dataset: DatasetRecord, chunks: list[ChunkRecord]
) -> list[ChunkRecord] | None:
    """The chunks applied since `base`; None if they do not say all that changed, or are too many."""
    header = base.header
    if dataset.dataset_id != header.dataset_id or dataset.updated_ns <= header.updated_ns:
        return None
    known = set(chunk_ids(base))
    new = [chunk for chunk in chunks if chunk.chunk_id not in known]
    # Each raises the generation by one. Purge may have removed others since, with their deletes.
    if not new or dataset.generation - header.generation != len(new):
        return None
    changes = sum(chunk.entries for chunk in new)
    return new if changes <= min(CHANGES_MAX, CHANGES_SHARE * len(base)) else None
