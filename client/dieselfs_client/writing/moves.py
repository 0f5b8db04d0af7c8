"""Stores what renamed folders show of the base under its new paths. This module calls the server.

The servers copy it, without its bytes. They refuse that in an encrypted dataset, and a copy replaces nothing, so some
of it may be left: a round uploads that, from the base.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress

import numpy as np

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.errors import AlreadyExists, Damaged, InvalidInput, NotFound
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.records import CopyRequest, Existing
from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.plain import node_source, readable
from dieselfs.transfer.copy_plan import is_equal
from dieselfs_client.writing.changes import Changes


class Origin:
    """The content of a base. `node`: the entry of the snapshot at one of its paths, or -1."""

    def __init__(self, client: ServerClient, snapshot: Snapshot, node: Callable[[bytes], int]) -> None:
        self.snapshot, self.node = snapshot, node
        self._chunks = readable(node_source(client, snapshot, None, 0, opens_ahead=False), client)

    def read(self, node: int, start: int, end: int) -> bytes:
        """Raises Damaged, also if the chunk is gone; Unavailable."""
        parts = []
        for extent in self.snapshot.extents(node, start, end):
            try:
                (content,) = self._chunks.fetch_extents(extent.chunk, [extent])
            except NotFound as error:
                raise Damaged(str(error)) from None
            parts.append(bytes(content)[max(start - extent.place, 0) : end - extent.place])
        return b"".join(parts)


class MovedEntry:
    """An entry of the base, to upload; an `UploadEntry`. `path`: in the dataset; `source`: for messages."""

    is_streamed = False

    def __init__(self, origin: Origin, node: int, path: bytes, source: bytes) -> None:
        self._origin, self._node = origin, node
        self.path, self.source = path, source
        _, self.mode, size, self.mtime_ns = stat = origin.snapshot.stat(node)
        self.is_folder, self._is_link = stat.is_folder, stat.is_link
        self.file_bytes = size if stat.is_file else 0

    def is_same(self, mode: int, size: int, mtime_ns: int, target: bytes) -> bool:
        return False  # `left` has compared it

    def load(self) -> None:
        """Nothing: readers fetch it."""

    def pack(self, builder: ChunkBuilder) -> None:
        if self.is_folder:
            builder.add_directory(self.path, self.mode, self.mtime_ns)
        elif self._is_link:
            target = self._origin.snapshot.target(self._node)
            builder.add_symlink(self.path, target, self.mode, self.mtime_ns)
        else:
            content = self._origin.read(self._node, 0, self.file_bytes)
            builder.add_file(self.path, content, self.mode, self.mtime_ns)

    def contents(self, ranges: Iterable[tuple[int, int]]) -> Generator[bytes]:
        for place, length in ranges:
            yield self._origin.read(self._node, place, place + length)


def left(
    moved: Mapping[bytes, bytes], paths: Iterable[bytes], head: bytes, origin: Origin, current: Snapshot
) -> list[bytes]:
    """The paths of `moved` at which the dataset does not have what is moved there. `head`: of all paths, in the
    dataset.
    """

    def is_there(path: bytes) -> bool:
        there = current.find(head + path)
        return there >= 0 and is_equal(origin.snapshot, origin.node(moved[path]), current, there)

    return [path for path in paths if not is_there(path)]


def copy(
    client: ServerClient,
    work: Changes,
    wanted: Iterable[bytes],
    head: bytes,
    places: Mapping[bytes, bytes],
    origin: Origin,
    current: Snapshot,
) -> bool:
    """Have the servers copy the paths `wanted` of `work.moved`, if nothing is there and the dataset has what the base
    has. `places`: where it has what was moved before, by its path in the base; `current`: its newest snapshot. Returns
    whether it has changed.

    Raises Unavailable, StorageFull.
    """
    groups = defaultdict[tuple[bytes, bytes], list[int]](list)
    folders = dict(work.folders)
    for path in wanted:
        folder = os.path.dirname(path)
        while folder and folder not in folders:
            folder = os.path.dirname(folder)
        place = places.get(work.moved[path], work.moved[path])
        below = path[len(folder) :]
        node = current.find(head + place)
        if not folder or node < 0 or not place.endswith(below) or current.find(head + path) >= 0:
            continue
        if is_equal(origin.snapshot, origin.node(work.moved[path]), current, node):
            groups[head + folder, head + place[: -len(below)]].append(node)
    is_changed = False
    for (folder, source), nodes in groups.items():
        bits = np.zeros(len(current), np.bool_)
        bits[nodes] = True
        request = CopyRequest(
            *(current.dataset, source, current.dataset, folder),
            existing=Existing.KEEP,
            is_merged=True,
            generation=current.generation,
            selection=np.packbits(bits, bitorder="little").tobytes(),
        )
        with suppress(InvalidInput, AlreadyExists, NotFound):  # then its bytes are uploaded
            client.copy_entries(request)
            is_changed = True
    return is_changed
