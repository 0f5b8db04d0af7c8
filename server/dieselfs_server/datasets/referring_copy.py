"""Copies that copy no bytes: new chunks, whose payload is that of a chunk which is there. Blocks.

A chunk is referred to if all bytes of its payload are copied. Otherwise who may read the copy could read the rest of
the payload as well, and bytes of deleted files would stay for the sake of the copy. A chunk that refers to another one
is not referred to: its copy refers to the other one too. New chunks are stored many at once, in bundles.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from dieselfs.arrays import Numbers
from dieselfs.chunk.builder import ChunkBuilder, SealedChunk
from dieselfs.chunk.bundle import BUNDLE_BYTES, BUNDLE_CHUNKS_MAX, new_bundle_id
from dieselfs.chunk.format import ENTRY_BYTES, Preamble
from dieselfs.chunk.source import AttachedSource
from dieselfs.errors import AlreadyExists
from dieselfs.limits import CHUNK_EXTENTS_PER_PAYLOAD_MAX, MIB
from dieselfs.records import DatasetRecord
from dieselfs.transfer.copy_plan import CopyPlan
from dieselfs_server.datasets.commit import ChunkWriter, read_header, read_preamble
from dieselfs_server.datasets.references import BeingErased
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.ordered_reads import read_in_order

REFERENCE_BYTES_MIN = 1 * MIB
"""Bytes of smaller chunks are copied: many of them become one."""
REFERENCES_AT_ONCE, EXTENTS_AT_ONCE = 1024, 65_536
"""Chunks that are referred to between two chances to be cancelled, and their extents, of several chunks."""

Span = tuple[int, int]
"""The positions of the extents of one chunk in the order of a plan."""


@dataclass(eq=False)
class _Group:
    """Chunks that are stored together, with the extents in them."""

    spans: list[Span] = field(default_factory=list)
    chunks: list[SealedChunk] = field(default_factory=list)
    _bytes: int = 0

    def add(self, span: Span, chunk: SealedChunk) -> None:
        self.spans.append(span)
        self.chunks.append(chunk)
        self._bytes += sum(ENTRY_BYTES + len(entry[0]) for entry in chunk.entries)

    @property
    def is_full(self) -> bool:
        return len(self.chunks) >= BUNDLE_CHUNKS_MAX or self._bytes >= BUNDLE_BYTES


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

    def refer(self, spans: Sequence[Span]) -> list[Span]:
        """Store references to the chunks with these extents; returns those whose bytes must be copied. Raises as
        `ChunkWriter.write`.
        """
        copied: list[Span] = []
        sources = self._sources(spans)
        groups = defaultdict[bytes, _Group](_Group)
        for span in spans:
            if span not in sources:
                copied.append(span)
                continue
            dataset_id = sources[span].chunk[0]
            for chunk in self._sealed(span, sources[span]):
                groups[dataset_id].add(span, chunk)
                if groups[dataset_id].is_full:
                    copied += self._store_group(groups.pop(dataset_id))
        for group in groups.values():
            copied += self._store_group(group)
        return sorted({*copied})

    def _store_group(self, group: _Group) -> list[Span]:
        """Store chunks that refer to one dataset; returns the extents that must be copied instead."""
        try:
            self._store_all(group.chunks)
        except BeingErased:  # the copy of a tag, or of what was deleted since
            return group.spans
        return []

    def _sources(self, spans: Sequence[Span]) -> dict[Span, AttachedSource]:
        """The payloads of the chunks that can be referred to. Their heads alone say where a payload begins in its
        object, and whether it is there. A slow store is asked for several at once.
        """
        snapshot, extents = self._plan.source, self._plan.order.extents
        lengths, chunks = snapshot.column("extent_lengths"), snapshot.column("extent_chunks")
        named = {
            snapshot.chunk_id(int(chunks[extents[span[0]]])): span
            for span in spans
            if lengths[extents[slice(*span)]].sum(dtype=np.int64) >= REFERENCE_BYTES_MIN
        }
        with closing(read_in_order(_head, self._store, self._source_id, named)) as heads:
            found = {named[each]: self._whole_source(named[each], *head.result()) for each, head in heads}
        return {span: source for span, source in found.items() if source is not None}

    def _whole_source(
        self, span: Span, preamble: Preamble, referred: AttachedSource | None
    ) -> AttachedSource | None:
        """The payload of a chunk, if all its bytes are copied, and can be referred to. `referred`: the source of an
        attached one.
        """
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
        if referred is None or not referred.is_chunk or referred.payload_digest != preamble.payload_digest:
            return None  # of a foreign object, or a part of a payload
        return referred

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

    def _store_all(self, chunks: Sequence[SealedChunk]) -> None:
        """Raises BeingErased before the first one is stored."""
        while True:
            chunk_id = self._writer.new_id()
            with suppress(AlreadyExists):  # another writer has used the same ID: take the next one
                if len(chunks) == 1:
                    return self._writer.put(chunks[0], chunk_id)
                return self._writer.put_bundle(new_bundle_id(chunk_id), chunks)


def batches(starts: Sequence[int]) -> Iterator[list[Span]]:
    """The spans between `starts`, REFERENCES_AT_ONCE at a time, or fewer with EXTENTS_AT_ONCE together."""
    batch: list[Span] = []
    for span in pairwise(starts):
        if len(batch) == REFERENCES_AT_ONCE or (batch and span[1] - batch[0][0] > EXTENTS_AT_ONCE):
            yield batch
            batch = []
        batch.append(span)
    if batch:
        yield batch


def _head(store: ObjectStore, dataset_id: bytes, chunk_id: bytes) -> tuple[Preamble, AttachedSource | None]:
    """The preamble of a chunk, and its source if it is attached."""
    preamble = read_preamble(store, dataset_id, chunk_id)
    return preamble, read_header(store, dataset_id, chunk_id)[1].source if preamble.is_attached else None


def is_covered(offsets: Numbers, lengths: Numbers, length: int) -> bool:
    """Whether extents, which may overlap, have all bytes from 0 to `length`."""
    order = np.argsort(offsets, kind="stable")
    starts, ends = offsets[order], np.maximum.accumulate((offsets + lengths)[order])
    return int(starts[0]) == 0 and bool((starts[1:] <= ends[:-1]).all()) and int(ends[-1]) == length
