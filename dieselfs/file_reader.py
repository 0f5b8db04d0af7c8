"""Files of one snapshot, from memory if they are there. This module waits for sockets and is told of forks.

Three ways lead to the bytes of a file, each several times as long as the one before. Where a file of a kept chunk lies
is known once it was read: its path is looked up, and its bytes are sliced out. Else the snapshot says where the file
lies, in a chunk that may be in memory. Else the chunk is fetched, or just the piece of it.
"""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from dieselfs.cache.node_socket import NodeClient
from dieselfs.cache.payloads import LOOKUP_BYTES, Payload
from dieselfs.errors import InvalidInput
from dieselfs.held_chunks import ChunkFigures, HeldChunks
from dieselfs.limits import CHUNK_PAYLOAD_BYTES_MAX, LIBRARY_MEMORY_BYTES
from dieselfs.meta.snapshot import ExtentRef
from dieselfs.names import printable, user_path
from dieselfs.peers.attachment import Attachment
from dieselfs.reader import ChunkReader

Path = str | bytes | os.PathLike[str]

_NOT_KNOWN = (KeyError, IndexError, TypeError)
"""What looking up a path raises that is not known, or when the reader was closed, or that is no path at all."""

# As `os.fsencode`, which takes three times as long.
_ENCODING, _ENCODING_ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()

# Where the bytes of a file lie, as one number: the slot of a kept payload, from where in it, up to where. As tuples
# these would have to be visited whenever garbage is collected, and would be copied to every process that is forked.
_PLACE_BITS = 27
_SLOT_SHIFT = 2 * _PLACE_BITS
_PLACE_MASK = (1 << _PLACE_BITS) - 1
assert CHUNK_PAYLOAD_BYTES_MAX <= _PLACE_MASK


@dataclass(frozen=True, slots=True)
class ReadStatistics(ChunkFigures):
    """What a reader has done in this process. Files are counted without a lock: several threads may lose a few."""

    hit_files: int = 0
    """Files whose bytes were in memory."""
    missed_files: int = 0
    kept_bytes: int = 0
    """Chunks that stay in memory."""
    transit_bytes: int = 0
    """Chunks that are in memory until others need the room."""
    memory_bytes: int = 0
    """What all of that may take, with the lookups."""
    job_nodes: int = 0
    """Nodes of the job that this process knows of; none before it has asked for anything, and without a job."""


class FileReader:
    """Reads files of one snapshot. Blocks; safe to use from several threads, and after a fork.

    A chunk of which much is asked for, at once or in requests that follow soon, is fetched and held whole:
    readers that follow the chunk-wise order come back to it. As long as there is room to keep it, asking twice is
    enough. Others get just their pieces; for a chunk that is dropped before they come back, each file would cost
    a whole one.
    """

    def __init__(
        self,
        chunks: ChunkReader,
        memory_bytes: int = LIBRARY_MEMORY_BYTES,
        daemon: NodeClient | Attachment | None = None,
    ) -> None:
        """`daemon`: of this node, which may have chunks in memory already, or what attaches this process to its job,
        whose nodes may; `close` closes it.
        """
        self.chunks = chunks
        self._snapshot = chunks.snapshot
        self._memory_bytes = memory_bytes
        self._held = HeldChunks(chunks, memory_bytes, daemon)
        self._payloads = self._held.payloads
        self._known: dict[Path, int] = {}
        self._known_bytes_left = self._payloads.room.lookups  # guarded by the lock of what is held
        self._missed_files = 0
        self.get, self._count_hits = self._specialised()
        _readers.add(self)

    def _specialised(self) -> tuple[Callable[[Path], bytes], Callable[[int], int]]:
        """`get`, and what adds to the count of hits: closures, as attributes would cost a third of a hit's time."""
        known, memories, fetched = self._known, self._payloads.memories, self._get
        hits = 0

        def get(path: Path) -> bytes:
            """All bytes of a file. Symbolic links are followed. Raises NotFound, InvalidInput, Damaged, Unavailable."""
            nonlocal hits
            try:
                at = known[path]
                content = memories[at >> _SLOT_SHIFT][at >> _PLACE_BITS & _PLACE_MASK : at & _PLACE_MASK]
            except _NOT_KNOWN:
                return fetched(path)
            hits += 1
            return content

        def count(files: int) -> int:
            nonlocal hits
            hits += files
            return hits

        return get, count

    def statistics(self) -> ReadStatistics:
        return ReadStatistics(
            **asdict(self._held.figures()),
            hit_files=self._count_hits(0),
            missed_files=self._missed_files,
            kept_bytes=self._payloads.kept_bytes,
            transit_bytes=self._payloads.transit_bytes,
            memory_bytes=self._memory_bytes,
            job_nodes=self._held.job_nodes,
        )

    def begin_anew(self) -> None:
        """In a forked child: with locks of its own, and without the counts of its parent."""
        self._held.begin_anew()
        self._missed_files = 0
        self._count_hits(-self._count_hits(0))

    # -- by path -----------------------------------------------------------------------------------------

    def get_many(self, paths: Iterable[Path]) -> list[bytes]:
        """All bytes of each file, in this order; each chunk is asked for once. Raises as `get`."""
        paths = paths if isinstance(paths, list) else list(paths)
        memories = self._payloads.memories
        try:
            contents = [
                memories[at >> _SLOT_SHIFT][at >> _PLACE_BITS & _PLACE_MASK : at & _PLACE_MASK]
                for at in map(self._known.__getitem__, paths)
            ]
        except _NOT_KNOWN:
            found = list(map(self._found, paths))
            fetched = iter(self._read_pieces([node for node in found if isinstance(node, int)]))
            return [next(fetched) if isinstance(at, int) else at[0].memory[at[1] : at[2]] for at in found]
        self._count_hits(len(paths))
        return contents

    def views(self, paths: Iterable[Path]) -> list[memoryview]:
        """As `get_many`, but without a copy for files that are in memory. A view keeps the memory of a whole chunk."""
        paths = paths if isinstance(paths, list) else list(paths)
        kept = self._payloads.views
        try:
            views = [
                kept[at >> _SLOT_SHIFT][at >> _PLACE_BITS & _PLACE_MASK : at & _PLACE_MASK]
                for at in map(self._known.__getitem__, paths)
            ]
        except _NOT_KNOWN:
            found = list(map(self._found, paths))
            fetched = iter(self._read_pieces([node for node in found if isinstance(node, int)]))
            return [
                memoryview(next(fetched)) if isinstance(at, int) else at[0].view[at[1] : at[2]]
                for at in found
            ]
        self._count_hits(len(paths))
        return views

    def _get(self, path: Path) -> bytes:
        found = self._found(path)
        if isinstance(found, int):
            return self._read_pieces([found])[0]
        payload, start, end = found
        return payload.memory[start:end]

    def _found(self, path: Path) -> tuple[Payload, int, int] | int:
        """Where the bytes of a file lie, which counts as a hit; its node if it is not one piece in memory."""
        snapshot, text = self._snapshot, os.fspath(path)
        node = snapshot.find(text.encode(_ENCODING, _ENCODING_ERRORS) if isinstance(text, str) else text)
        extent = snapshot.sole_extent(node) if node >= 0 else None
        if extent is None:
            node = snapshot.follow(user_path(text))
            extent = snapshot.sole_extent(node)
            if extent is None:
                return node
        chunk, start, end = extent
        payload = self._payloads.kept.get(chunk)
        if payload is None:
            with self._held.lock:
                payload = self._payloads.get(chunk)
            if payload is None:
                return node
        elif self._known_bytes_left > 0:
            with self._held.lock:
                self._known_bytes_left -= LOOKUP_BYTES + len(text)
                self._known[text] = payload.slot << _SLOT_SHIFT | start << _PLACE_BITS | end
        self._count_hits(1)
        return payload, start, end

    # -- by node -----------------------------------------------------------------------------------------

    def read(self, node: int) -> bytes:
        """All bytes of a file. Raises InvalidInput if it is none, Damaged, Unavailable."""
        return self._read_pieces([node])[0]

    def read_many(
        self, nodes: Sequence[int] | npt.NDArray[np.integer], is_common: bool = False
    ) -> list[bytes]:
        """All bytes of each file, in the order of `nodes`; each chunk is asked for once. Raises as `read`.

        `is_common`: other processes of the job read the same chunks now, because all follow one order.
        """
        columns = self._snapshot.sole_extents(np.asarray(nodes, np.int64))
        chunks, starts, ends = (column.tolist() for column in columns)
        with self._held.lock:
            held = {chunk: self._payloads.get(chunk) for chunk in set(chunks)}
        missing = [int(node) for node, chunk in zip(nodes, chunks, strict=True) if held[chunk] is None]
        self._count_hits(len(nodes) - len(missing))
        fetched = iter(self._read_pieces(missing, is_common))
        return [
            next(fetched) if (payload := held[chunk]) is None else payload.memory[start:end]
            for chunk, start, end in zip(chunks, starts, ends, strict=True)
        ]

    def _read_pieces(self, nodes: Sequence[int], is_common: bool = False) -> list[bytes]:
        """As `read_many`, for files of any number of pieces, which may have to be fetched."""
        extents = [self._extents(node) for node in nodes]
        wanted: dict[int, dict[ExtentRef, None]] = {}
        for of_file in extents:
            for extent in of_file:
                wanted.setdefault(extent.chunk, {})[extent] = None
        pieces, missed = self._held.pieces(
            {chunk: [*of_chunk] for chunk, of_chunk in wanted.items()}, is_common
        )
        missed_files = sum(any(extent.chunk in missed for extent in of_file) for of_file in extents)
        self._missed_files += missed_files
        self._count_hits(len(nodes) - missed_files)
        return [
            pieces[of_file[0]] if len(of_file) == 1 else b"".join([pieces[extent] for extent in of_file])
            for of_file in extents
        ]

    def _extents(self, node: int) -> list[ExtentRef]:
        extents = self._snapshot.extents(node)
        if not extents and not self._snapshot.stat(node).is_file:
            path = printable(self._snapshot.path(node))
            raise InvalidInput(f"dl://{self._snapshot.dataset}/{path}: not a file")
        return extents

    def close(self) -> None:
        """Let go of all memory, and of the daemon of this node. Reads that are under way end as they would."""
        self._held.close()
        with self._held.lock:
            self._known.clear()
            self._known_bytes_left = 0


_readers: WeakSet[FileReader] = WeakSet()


def _begin_anew() -> None:
    for reader in list(_readers):
        reader.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)
