"""Copies the nodes of a plan into new chunks, and deletes what was moved. Cancelled at any point, all entries that were
stored are complete, and nothing is deleted before everything is stored.

Copies have newly reserved versions. The deletion of a moved entry has the version of the entry plus one: it wins over
what was copied, also over copies of it that a purge makes, and loses against everything that was written later.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import trio

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.ids import chunk_name
from dieselfs.digests import extent_digest_of
from dieselfs.errors import AlreadyExists, Damaged
from dieselfs.limits import CHUNK_PAYLOAD_BYTES_MAX
from dieselfs.names import printable
from dieselfs.records import DatasetRecord, Op
from dieselfs.rpc.records import CopyProgress
from dieselfs.snapshot.reader import ExtentRef
from dieselfs_server.copying.copy_plan import CopyPlan
from dieselfs_server.datasets.commit import commit_chunk
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.service import Service

NODES_AT_ONCE = 4096
"""Entries without bytes that are packed between two chances to be cancelled."""

Contents = Sequence[tuple[int, ExtentRef, memoryview]]
"""Extents with their bytes, and the nodes of their files."""


class ChunkWriter:
    """Packs entries of one dataset, and commits each chunk when it is full. Blocks. For one thread at a time."""

    def __init__(
        self, service: Service, dataset: DatasetRecord, stored: Callable[[int, int], None] = lambda *_: None
    ) -> None:
        """`stored` is called after each commit, with its entries and bytes."""
        self._service = service
        self._dataset = dataset
        self._stored = stored
        self.builder = ChunkBuilder()
        self.generation = dataset.generation

    def make_room(self, length_bytes: int) -> None:
        if self.builder.is_full or self.builder.payload_bytes + length_bytes > CHUNK_PAYLOAD_BYTES_MAX:
            self.write()

    def reserve(self, count: int) -> int:
        service = self._service
        return service.metadata.reserve_versions(self._dataset.dataset_id, count, service.now_ns())

    def write(self) -> None:
        """Store and apply the entries so far. Raises StorageFull, Unavailable; then they are not visible."""
        if not len(self.builder):
            return
        service, dataset = self._service, self._dataset
        sealed = self.builder.seal()
        first = self.reserve(len(sealed.entries))
        while True:
            chunk_id = service.ids.next()
            data = b"".join(sealed.encode(chunk_id, dataset.name, dataset.dataset_id, first))
            try:
                self.generation = commit_chunk(
                    service.store,
                    service.metadata,
                    dataset.dataset_id,
                    chunk_id,
                    data,
                    service.now_ns(),
                    admitted=partial(service.quotas.admitted, dataset),
                )
                break
            except AlreadyExists:
                continue  # another writer has used the same ID: take the next one
        self._stored(sealed.whole_entries, len(sealed.payload))


class TreeCopy:
    """One copy, by `run`; `progress` has its state."""

    def __init__(
        self, service: Service, source: DatasetRecord, target: DatasetRecord, plan: CopyPlan
    ) -> None:
        self._service = service
        self._source = source
        self._plan = plan
        self._writer = ChunkWriter(service, target, self._count)
        self._versions: dict[int, int] = {}  # of files of several extents
        self.progress = CopyProgress(0, 0, plan.order.entries, plan.order.total_bytes)

    @property
    def generation(self) -> int:
        """Of the dataset that it copies to, after the last chunk."""
        return self._writer.generation

    def _count(self, entries: int, length_bytes: int) -> None:
        done = self.progress.done + entries, self.progress.done_bytes + length_bytes
        self.progress = CopyProgress(*done, *self.progress[2:])

    async def run(self) -> None:
        """Copy. Raises Damaged, NotFound if bytes of the source cannot be read, StorageFull, Unavailable."""
        order = self._plan.order
        for kind in (order.folders, order.links, order.empty_files):
            for start in range(0, len(kind), NODES_AT_ONCE):
                await self._in_thread(self._add_empty, kind[start : start + NODES_AT_ONCE].tolist())
        for start, end in zip(order.starts[:-1], order.starts[1:], strict=True):
            await self._in_thread(self._add_files, await self._read(start, end))
        await self._in_thread(self._writer.write)

    async def _in_thread(self, work: Callable[..., None], *arguments: object) -> None:
        await trio.to_thread.run_sync(work, *arguments, limiter=self._service.copy_writes)

    async def _read(self, start: int, end: int) -> Contents:
        """The extents of one chunk."""
        source, order = self._plan.source, self._plan.order
        column = {
            name: source.column(f"extent_{name}")[order.extents[start:end]]
            for name in ("places", "chunks", "offsets", "lengths", "digests")
        }
        extents = list(map(ExtentRef._make, zip(*(each.tolist() for each in column.values()), strict=True)))
        ranges = np.stack((column["offsets"], column["lengths"]), axis=1).astype(np.int64)
        chunk_id = source.chunk_id(extents[0].chunk)
        contents = await self._service.executor.ranges(self._source.dataset_id, chunk_id, ranges)
        return list(zip(order.owners[start:end].tolist(), extents, contents, strict=True))

    def _add_empty(self, nodes: Sequence[int]) -> None:
        """Folders, links and empty files."""
        source = self._plan.source
        for node in nodes:
            self._writer.make_room(0)
            path, stat, builder = self._plan.new_path(node), source.stat(node), self._writer.builder
            if stat.is_folder:
                builder.add_directory(path, stat.mode, stat.mtime_ns)
            elif stat.is_link:
                builder.add_symlink(path, source.target(node), stat.mode, stat.mtime_ns)
            else:
                builder.add_file(path, b"", stat.mode, stat.mtime_ns)

    def _add_files(self, contents: Contents) -> None:
        source = self._plan.source
        for node, extent, view in contents:
            content = bytes(view)
            if extent_digest_of(content) != extent.digest:
                raise Damaged(
                    f"dl://{source.dataset}/{printable(source.path(node))}: the bytes in chunk "
                    f"{chunk_name(source.chunk_id(extent.chunk))} have another digest; 'dlcmd fsck' explains"
                )
            stat = source.stat(node)
            version = 0 if extent.length == stat.size else self._version(node)
            self._writer.make_room(len(content))
            self._writer.builder.add_file(
                self._plan.new_path(node), content, stat.mode, stat.mtime_ns, stat.size, extent.place, version
            )

    def _version(self, node: int) -> int:
        """The version of all extents of a file, which may be in several chunks."""
        if node not in self._versions:
            self._versions[node] = self._writer.reserve(1)
        return self._versions[node]


async def delete_moved(
    service: Service, source: DatasetRecord, plan: CopyPlan, versions: Mapping[bytes, int]
) -> int:
    """Delete what `plan` has moved; returns the number of entries. `versions`: those of the copied entries, or older
    ones; then the newer entry stays.
    """
    writer, deleted = ChunkWriter(service, source), 0

    def add(nodes: Sequence[int]) -> int:
        found = 0
        for path in map(plan.source.path, nodes):
            if (version := versions.get(path)) is not None:
                writer.make_room(0)
                writer.builder.add_delete(path, version + 1)
                found += 1
        return found

    for start in range(0, len(plan.moved), NODES_AT_ONCE):
        batch = plan.moved[start : start + NODES_AT_ONCE]
        deleted += await trio.to_thread.run_sync(add, batch, limiter=service.copy_writes)
    await trio.to_thread.run_sync(writer.write, limiter=service.copy_writes)
    return deleted


def entry_versions(metadata: MetadataStore, dataset_id: bytes, path: bytes) -> Iterator[tuple[bytes, int]]:
    """Path and version of each entry at and below `path`. Blocks."""
    top = metadata.lookup(dataset_id, path)
    if top is not None:
        yield path, top.version
    pending = [path]
    while pending:
        folder, after = pending.pop(), b""
        while page := metadata.list_folder(dataset_id, folder, after, NODES_AT_ONCE):
            for record in page:
                if record.version:
                    yield record.path, record.version
                if record.op == Op.DIRECTORY:
                    pending.append(record.path)
            after = page[-1].path.rpartition(b"/")[2]
