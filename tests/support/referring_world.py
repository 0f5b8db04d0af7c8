"""Datasets with the service of a server in this process, for tests of copies that refer to chunks."""

import os
import time
from pathlib import Path
from typing import Any

from dieselfs.chunk.format import PREAMBLE_BYTES, Op, decode_preamble
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.rpc.records import CopyRequest, PurgeReport
from dieselfs_server.datasets.commit import ChunkWriter, read_header
from dieselfs_server.maintenance.purge import purge
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.store.attached import AttachedStore, Sources
from dieselfs_server.store.bundled import BundledStore
from dieselfs_server.store.interface import ObjectStore
from tests.support.own_service import call, own_service

FILES = {f"d/{folder}/f{number}".encode(): os.urandom(700) for folder in "xy" for number in range(3)}


class World:
    """A dataset `a` with FILES in two chunks, one for each folder, and the empty `b` and `c`."""

    def __init__(self, folder: Path, metadata: MetadataStore, store: ObjectStore) -> None:
        self.folder, self.metadata, self.objects = folder, metadata, store
        self.store = AttachedStore(BundledStore(store), Sources())
        self.chunk = b"", b""  # what a test puts later: ID and object
        self.service = own_service(folder, store, metadata)
        for name in "abc":
            call(self.service, "create_dataset", name=name)
        for part in (b"d/x/", b"d/y/"):
            writer = self.writer("a")
            for path, content in FILES.items():
                if path.startswith(part):
                    writer.builder.add_file(path, content, 0o640, 5)
            writer.write()

    def id(self, dataset: str) -> bytes:
        return self.metadata.dataset(dataset).dataset_id

    def writer(self, dataset: str) -> ChunkWriter:
        return ChunkWriter(
            self.store, self.metadata, ChunkIdSource(time.time), self.metadata.dataset(dataset)
        )

    def copy(self, source: str, path: bytes, target: str, new: bytes, **options: Any) -> Any:
        request = CopyRequest(source, path, target, new, **options)
        return call(self.service, "copy_entries", **request._asdict())

    def remove(self, dataset: str, below: bytes = b"") -> None:
        writer = self.writer(dataset)
        for path in self.contents(dataset, is_read=False):
            if path.startswith(below):
                writer.builder.add_delete(path)
        writer.write()

    def purge(self, dataset: str, later_s: int = 1) -> PurgeReport:
        now_ns = time.time_ns() + later_s * 10**9
        record = self.metadata.dataset(dataset)
        return purge(self.store, self.metadata, record, self.service.tags, now_ns, 0, False)

    def contents(self, dataset: str, is_read: bool = True) -> dict[bytes, bytes]:
        found, pending = dict[bytes, bytes](), [b""]
        while pending:
            for record in self.metadata.list_folder(self.id(dataset), pending.pop(), b"", 1000):
                if record.op == Op.DIRECTORY:
                    pending.append(record.path)
                    continue
                full = self.metadata.lookup(self.id(dataset), record.path)
                assert full is not None
                extents = full.extents if is_read else ()
                found[record.path] = b"".join(self.read(dataset, *extent[1:4]) for extent in extents)
        return found

    def read(self, dataset: str, chunk_id: bytes, offset: int, length: int) -> bytes:
        chunk = self.id(dataset), chunk_id
        start = decode_preamble(self.store.get_range(*chunk, 0, PREAMBLE_BYTES), "chunk").payload_start
        return self.store.get_range(*chunk, start + offset, length)

    def chunks(self, dataset: str) -> list[bytes]:
        return list(self.store.list_chunks(self.id(dataset)))

    def references(self, dataset: str) -> list[tuple[bytes, bytes]]:
        """IDs: of the chunks that refer to others, and of these."""
        headers = {each: read_header(self.store, self.id(dataset), each)[1] for each in self.chunks(dataset)}
        sources = {each: header.source for each, header in headers.items()}
        return [(each, source.chunk[1]) for each, source in sources.items() if source and source.is_chunk]

    def stored_bytes(self, dataset: str) -> int:
        return sum(self.store.size(self.id(dataset), chunk_id) for chunk_id in self.chunks(dataset))

    def records(self) -> list[str]:
        return [
            name
            for name in self.objects.list_records("")
            if name.startswith(("refers-", "erasing-", "remains-", "erased-"))
        ]


def copied(new: bytes = b"d", below: bytes = b"d") -> dict[bytes, bytes]:
    return {new + path[len(below) :]: FILES[path] for path in FILES if path.startswith(below)}
