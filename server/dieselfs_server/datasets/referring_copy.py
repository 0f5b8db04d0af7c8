"""Copies that copy no bytes: new chunks, whose payload is that of a chunk which is there. Blocks.

A chunk is referred to if all bytes of its payload are copied. Otherwise who may read the copy could read the rest of
the payload as well, and bytes of deleted files would stay for the sake of the copy. A chunk that refers to another one
is not referred to: its copy refers to the other one too.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import numpy as np

from dieselfs.arrays import Numbers
from dieselfs.chunk.builder import ChunkBuilder, SealedChunk
from dieselfs.chunk.format import Preamble
from dieselfs.chunk.source import AttachedSource
from dieselfs.limits import CHUNK_EXTENTS_PER_PAYLOAD_MAX, MIB
from dieselfs.records import DatasetRecord
from dieselfs.transfer.copy_plan import CopyPlan
from dieselfs_server.datasets.commit import ChunkWriter, read_header, read_preamble
from dieselfs_server.datasets.references import BeingErased, Claim, Pair, References
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.ordered_reads import read_in_order

REFERENCE_BYTES_MIN = 1 * MIB
"""Bytes of smaller chunks are copied: many of them become one."""
REFERENCES_AT_ONCE = 64
"""Chunks that are referred to between two chances to be cancelled."""

Span = tuple[int, int]
"""The positions of the extents of one chunk in the order of a plan."""


class ReferringCopy:
    """`version` gives the version of all extents of a node's file."""

    def __init__(
        self,
        store: ObjectStore,
        writer: ChunkWriter,
        source: DatasetRecord,
        plan: CopyPlan,
        version: Callable[[int], int],
    ) -> None:
        self._store, self._writer, self._plan, self._version = store, writer, plan, version
        self._source_id = source.dataset_id
        self._references = References(store)

    def refer(self, spans: Sequence[Span]) -> list[Span]:
        """Store references to the chunks with these extents; returns those whose bytes must be copied. Raises as
        `ChunkWriter.write`.
        """
        sealed: dict[bytes, list[SealedChunk]] = {}
        found: dict[bytes, list[Span]] = {}
        copied: list[Span] = []
        heads = self._heads(spans)
        for span in spans:
            source = self._whole_source(span, heads[span]) if span in heads else None
            if source is None:
                copied.append(span)
                continue
            dataset_id = source.chunk[0]
            found.setdefault(dataset_id, []).append(span)
            sealed.setdefault(dataset_id, []).extend(self._sealed(span, source))
        for dataset_id, chunks in sealed.items():
            try:
                self._store_all(dataset_id, chunks)
            except BeingErased:  # the copy of a tag, or of what was deleted since
                copied += found[dataset_id]
        return sorted(copied)

    def _heads(self, spans: Sequence[Span]) -> dict[Span, Preamble]:
        """The preambles of the chunks that may be referred to: they alone say where a payload begins in its object, and
        whether it is there. A slow store is asked for several at once.
        """
        snapshot, extents = self._plan.source, self._plan.order.extents
        lengths, chunks = snapshot.column("extent_lengths"), snapshot.column("extent_chunks")
        named = {
            snapshot.chunk_id(int(chunks[extents[span[0]]])): span
            for span in spans
            if lengths[extents[slice(*span)]].sum(dtype=np.int64) >= REFERENCE_BYTES_MIN
        }
        with closing(read_in_order(read_preamble, self._store, self._source_id, named)) as heads:
            return {named[chunk_id]: head.result() for chunk_id, head in heads}

    def _whole_source(self, span: Span, preamble: Preamble) -> AttachedSource | None:
        """The payload of a chunk, if all its bytes are copied, and can be referred to."""
        snapshot, extents = self._plan.source, self._plan.order.extents[slice(*span)]
        offsets, lengths = (
            snapshot.column(f"extent_{name}")[extents].astype(np.int64) for name in ("offsets", "lengths")
        )
        total_bytes, length, chunk_id = int(lengths.sum()), preamble.payload_length, preamble.chunk_id
        if (
            not REFERENCE_BYTES_MIN <= length <= total_bytes <= CHUNK_EXTENTS_PER_PAYLOAD_MAX * length
            or not is_covered(offsets, lengths, length)
        ):
            return None
        if not preamble.is_attached:
            place = self._source_id, chunk_id, preamble.payload_start
            return AttachedSource.of_chunk(*place, length, preamble.payload_digest)
        source = read_header(self._store, self._source_id, chunk_id)[1].source
        if source is None or not source.is_chunk or source.payload_digest != preamble.payload_digest:
            return None  # of a foreign object, or a part of a payload
        return source

    def _sealed(self, span: Span, source: AttachedSource) -> Iterator[SealedChunk]:
        """Chunks with the new entries of the extents; more than one if their paths are longer."""
        snapshot, builder = self._plan.source, ChunkBuilder()
        order, chosen = self._plan.order, slice(*span)
        extents = snapshot.extent_refs(order.extents[chosen])
        for node, extent in zip(order.owners[chosen].tolist(), extents, strict=True):
            if builder.is_full:
                yield builder.seal(source=source)
            stat = snapshot.stat(node)
            builder.add_extent(
                self._plan.new_path(node),
                stat.mode,
                stat.mtime_ns,
                stat.size,
                extent.place,
                extent.offset,
                extent.length,
                extent.digest,
                0 if extent.length == stat.size else self._version(node),
            )
        yield builder.seal(source=source)

    def _store_all(self, dataset_id: bytes, chunks: Sequence[SealedChunk]) -> None:
        """Raises BeingErased before the first one is stored."""
        pairs = [
            (self._writer.new_id(), chunk.source.chunk[1]) for chunk in chunks if chunk.source is not None
        ]
        claim = self._claim(dataset_id, pairs)
        for chunk, pair in zip(chunks, pairs, strict=True):
            claim.check()
            self._writer.put(chunk, self._ids(dataset_id, pair))
        claim.settle()

    def _claim(self, dataset_id: bytes, pairs: Sequence[Pair]) -> Claim:
        return self._references.claim(dataset_id, self._writer.dataset_id, pairs, int(time.time()))

    def _ids(self, dataset_id: bytes, pair: Pair) -> Iterator[bytes]:
        """The ID of a claimed reference, and others if another writer has used it."""
        yield pair[0]
        while True:
            chunk_id = self._writer.new_id()
            self._claim(dataset_id, [(chunk_id, pair[1])])
            yield chunk_id


def is_covered(offsets: Numbers, lengths: Numbers, length: int) -> bool:
    """Whether extents, which may overlap, have all bytes from 0 to `length`."""
    order = np.argsort(offsets, kind="stable")
    starts, ends = offsets[order], np.maximum.accumulate((offsets + lengths)[order])
    return int(starts[0]) == 0 and bool((starts[1:] <= ends[:-1]).all()) and int(ends[-1]) == length
