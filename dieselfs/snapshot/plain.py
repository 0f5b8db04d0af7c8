"""The snapshot of an encrypted dataset as its readers use it: with plain names, sizes and places. No I/O.

Chunks, offsets and digests stay those of the ciphertext, so bytes are verified as in any dataset before they are
decrypted. Extents keep their first byte, and end where their trailers begin (`dieselfs.encryption.segments`). The file
is marked as encrypted, and is not signed: a client makes it of a signed one, for itself.
"""

import stat
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.digests import EXTENT_DIGESTS
from dieselfs.encryption.cipher import DatasetCipher
from dieselfs.encryption.segments import SEGMENT_BYTES, TRAILER_BYTES
from dieselfs.errors import Damaged
from dieselfs.records import ChunkRecord, DatasetRecord, EntryTable, ExtentColumns, Op
from dieselfs.snapshot.builder import build_snapshot
from dieselfs.snapshot.reader import ROOT, Snapshot

Column = npt.NDArray[Any]

_OPS = {stat.S_IFREG: Op.FILE, stat.S_IFDIR: Op.DIRECTORY, stat.S_IFLNK: Op.SYMLINK}


def plain_snapshot(snapshot: Snapshot, cipher: DatasetCipher) -> bytes:
    """The snapshot file with the plain names. Takes about 10 us per entry. Raises Damaged for names and sizes that were
    not made with this key.
    """
    header = snapshot.header
    try:
        paths, links = _opened_paths(snapshot, cipher)
        lengths = _plain(snapshot.column("extent_lengths"))
        places = _plain_places(snapshot.column("extent_places"))
    except Damaged as error:
        raise Damaged(f"dl://{header.dataset}, generation {header.generation}: {error}") from None
    parts = [path.rpartition(b"/") for path in paths]
    order = sorted(range(len(paths)), key=lambda node: (parts[node][0], parts[node][2]))
    nodes = np.array(order, np.int64)
    kinds = snapshot.types(nodes)
    counts = np.where(kinds == stat.S_IFREG, snapshot.column("counts")[nodes], 0).astype(np.int64)
    firsts = snapshot.column("firsts")[nodes].astype(np.int64)
    is_sole = counts == 1
    sole = np.where(is_sole, firsts, 0) if header.extents else np.zeros(len(nodes), np.int64)
    sizes = np.zeros(len(nodes), np.uint64)
    if header.extents:
        sizes[is_sole] = lengths[firsts[is_sole]]
    spanning = np.flatnonzero(counts > 1)
    for row in spanning.tolist():
        sizes[row] = lengths[firsts[row] : firsts[row] + counts[row]].sum()
    spans = [np.arange(firsts[row], firsts[row] + counts[row]) for row in spanning.tolist()]
    extents = np.concatenate(spans) if spans else np.zeros(0, np.int64)

    def of(name: str, numbers: Column, default: object) -> Column:
        column = snapshot.column(name)
        return column[numbers] if len(column) else np.full(len(numbers), default, column.dtype)

    record = DatasetRecord(header.dataset_id, header.dataset, header.generation, header.updated_ns, 0, 0, 0)
    table = EntryTable(
        record,
        _chunk_table(snapshot),
        [parts[node][0] for node in order],
        [parts[node][2] for node in order],
        np.array([_OPS[kind] for kind in kinds.tolist()], np.uint8),
        snapshot.column("modes")[nodes] & np.uint32(0o7777),
        snapshot.column("mtimes_ns")[nodes],
        sizes,
        np.where(is_sole, of("extent_chunks", sole, 0).astype(np.int64), -1),
        of("extent_offsets", sole, 0),
        of("extent_digests", sole, np.zeros((), EXTENT_DIGESTS)),
        {row: links[node] for row, node in enumerate(order) if node in links},
        ExtentColumns(
            np.repeat(spanning, counts[spanning]),
            places[extents],
            snapshot.column("extent_chunks")[extents].astype(np.int64),
            snapshot.column("extent_offsets")[extents],
            lengths[extents].astype(np.uint32),
            snapshot.column("extent_digests")[extents],
        ),
    )
    return build_snapshot(table, replace(header, is_encrypted=True))


def _opened_paths(snapshot: Snapshot, cipher: DatasetCipher) -> tuple[list[bytes], dict[int, bytes]]:
    """The plain path of each node, and the plain target of each link. A folder comes before what is in it."""
    paths, names, links = [b""], [b""], {}
    parents = snapshot.column("parents").tolist()
    is_link = (snapshot.types() == stat.S_IFLNK).tolist()
    for node in range(ROOT + 1, len(snapshot)):
        name, parent = snapshot.name(node), parents[node]
        names.append(name)
        plain = cipher.names.open_name(name, names[parent])
        paths.append(paths[parent] + b"/" + plain if paths[parent] else plain)
        if is_link[node]:
            links[node] = cipher.names.open_target(snapshot.target(node), name)
    return paths, links


def _plain(lengths: Column) -> Column:
    """As `plain_length`, of a column."""
    sealed = lengths.astype(np.int64)
    segments = -(-sealed // (SEGMENT_BYTES + TRAILER_BYTES))
    plain = sealed - TRAILER_BYTES * segments
    bad = np.flatnonzero((plain <= 0) | (-(-plain // SEGMENT_BYTES) != segments))
    if len(bad):
        raise Damaged(f"an encrypted extent of {sealed[bad[0]]} bytes")
    return plain.astype(np.uint64)


def _plain_places(places: Column) -> Column:
    """Extents begin with a segment."""
    segments, rest = np.divmod(places.astype(np.int64), SEGMENT_BYTES + TRAILER_BYTES)
    if rest.any():
        raise Damaged(f"an encrypted extent at {places[np.flatnonzero(rest)[0]]}")
    return (segments * SEGMENT_BYTES).astype(np.uint64)


def _chunk_table(snapshot: Snapshot) -> list[ChunkRecord]:
    return [
        ChunkRecord(
            snapshot.chunk_id(chunk),
            0,
            0,
            snapshot.chunk_payload_length(chunk),
            snapshot.chunk_digest(chunk),
            0,
            0,
            b"",
        )
        for chunk in range(snapshot.chunk_count)
    ]
