"""The order of a commit: the chunk durable in the object store, its entries in the metadata store, the reply.

A crash after the first step leaves a chunk that is stored but not applied; `catch_up` applies such chunks when a server
starts. All functions block.
"""

import logging

from dieselfs.chunk.format import (
    PREAMBLE_BYTES,
    ChunkHeader,
    Preamble,
    decode_chunk,
    decode_header,
    decode_preamble,
)
from dieselfs.chunk.ids import chunk_name
from dieselfs.errors import AlreadyExists, Damaged, InvalidInput, NotFound
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.store.interface import ObjectStore

VERSION_AHEAD_NS_MAX = 24 * 3600 * 10**9
"""Versions follow the clock. No server has reserved one that is further ahead; it would win over all later writes."""

CATCH_UP_OVERLAP_S = 3600
"""A starting server checks chunks from this long before the newest applied one: clocks differ, uploads take time."""

log = logging.getLogger(__name__)


def commit_chunk(
    store: ObjectStore,
    metadata: MetadataStore,
    dataset_id: bytes,
    chunk_id: bytes,
    data: bytearray | bytes,
    now_ns: int,
) -> int:
    """Verify, store and apply a chunk; returns the dataset's generation. May be repeated.

    Raises Damaged if the bytes are not this chunk of this dataset, AlreadyExists if another chunk has this
    ID, NotFound if there is no such dataset.
    """
    source = f"chunk {chunk_name(chunk_id)}"
    preamble, header, _ = decode_chunk(data, source, chunk_id, dataset_id, are_extents_checked=False)
    if len(header) and int(header.versions.max()) > now_ns + VERSION_AHEAD_NS_MAX:
        raise InvalidInput(f"{source}: its versions were not reserved here")
    try:
        store.put(dataset_id, chunk_id, [data])
    except AlreadyExists:
        # The reply to an earlier attempt may have been lost. The preamble has the digests of all other bytes.
        stored = store.get_range(dataset_id, chunk_id, 0, PREAMBLE_BYTES)
        if stored != bytes(data[:PREAMBLE_BYTES]):
            raise
    try:
        return metadata.apply(dataset_id, preamble, header, now_ns)
    except NotFound:  # the dataset was dropped meanwhile; no later operation would find this chunk
        store.delete(dataset_id, chunk_id)
        raise


def read_header(store: ObjectStore, dataset_id: bytes, chunk_id: bytes) -> tuple[Preamble, ChunkHeader]:
    """Preamble and header of a stored chunk. Raises NotFound, Damaged."""
    source = f"chunk {chunk_name(chunk_id)}"
    preamble = decode_preamble(store.get_range(dataset_id, chunk_id, 0, PREAMBLE_BYTES), source, chunk_id)
    header = store.get_range(dataset_id, chunk_id, PREAMBLE_BYTES, preamble.header_length)
    return preamble, decode_header(preamble, header, source, dataset_id)


def catch_up(store: ObjectStore, metadata: MetadataStore, now_ns: int) -> int:
    """Apply chunks that are stored but not applied; returns their number. Skips damaged ones."""
    applied = 0
    for dataset in metadata.datasets():
        since_s = max(metadata.newest_chunk_time_s(dataset.dataset_id) - CATCH_UP_OVERLAP_S, 0)
        for chunk_id in store.list_chunks(dataset.dataset_id, since_s):
            if metadata.has_chunk(dataset.dataset_id, chunk_id):
                continue
            try:
                preamble, header = read_header(store, dataset.dataset_id, chunk_id)
            except Damaged as error:
                log.error("dataset %s: %s", dataset.name, error)
                continue
            metadata.apply(dataset.dataset_id, preamble, header, now_ns)
            applied += 1
    return applied
