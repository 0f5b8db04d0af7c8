"""Files of one snapshot, from memory if they are there. This module waits for sockets and takes memory.

Three ways lead to the bytes of a file, each several times as long as the one before. Where a file of a kept chunk lies
is known once it was read: its path is looked up, and its bytes are sliced out. Else the snapshot says where the file
lies, in a chunk that may be in memory. Else the chunk is fetched, or just the piece of it.
"""

import mmap
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt

from dieselfs.cache.node_socket import NodeClient
from dieselfs.cache.payloads import LOOKUP_BYTES, Payload, Payloads, Room
from dieselfs.errors import Damaged, InvalidInput, Unavailable
from dieselfs.limits import CHUNK_PAYLOAD_BYTES_MAX, KIB, LIBRARY_MEMORY_BYTES
from dieselfs.meta.snapshot import ExtentRef
from dieselfs.names import printable, user_path
from dieselfs.reader import ChunkReader

Path = str | bytes | os.PathLike[str]

_WHOLE_SHARE = 4
"""When a quarter of a payload has been asked for, the whole is fetched, although it will not be kept."""

_NOT_KNOWN = (KeyError, IndexError, TypeError)
"""What looking up a path raises that is not known, or when the reader was closed, or that is no path at all."""

_REQUEST_BYTES = 256 * KIB
"""What could be sent in the time that a request takes by itself; counts as asked for."""

# As `os.fsencode`, which takes three times as long.
_ENCODING, _ENCODING_ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()

# Where the bytes of a file lie, as one number: the slot of a kept payload, from where in it, up to where. As tuples
# these would have to be visited whenever garbage is collected, and would be copied to every process that is forked.
_PLACE_BITS = 27
_SLOT_SHIFT = 2 * _PLACE_BITS
_PLACE_MASK = (1 << _PLACE_BITS) - 1
assert CHUNK_PAYLOAD_BYTES_MAX <= _PLACE_MASK


@dataclass(frozen=True, slots=True)
class ReadStatistics:
    """What a reader has done since it was made. Files are counted without a lock: several threads may lose a few."""

    hit_files: int
    """Files whose bytes were in memory."""
    missed_files: int
    shared_chunks: int
    """Chunks that the daemon of this node had in memory; this process takes no memory of its own for them."""
    fetched_chunks: int
    fetched_chunk_bytes: int
    fetched_piece_bytes: int
    kept_bytes: int
    """Chunks that stay in memory."""
    transit_bytes: int
    """Chunks that are in memory until others need the room."""
    memory_bytes: int
    """What all of that may take, with the lookups."""


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
        daemon: NodeClient | None = None,
    ) -> None:
        """`daemon`: of this node, which may have chunks in memory already; `close` closes it."""
        self.chunks = chunks
        self._daemon = daemon
        self._snapshot = chunks.snapshot
        self._memory_bytes = memory_bytes
        dataset_bytes = int(self._snapshot.column("chunk_payload_lengths").sum(dtype="int64"))
        room = Room.of(memory_bytes, dataset_bytes)
        self._process_id = os.getpid()
        self._lock = Lock()  # guards all below, but looking into `_known` and `_payloads.kept`
        self._payloads = Payloads(room)
        self._flights: dict[int, Lock] = {}  # for each chunk on its way; held by the thread that fetches it
        # Bytes asked for lately of chunks that are not held, the chunk asked for last at the end.
        self._asked_bytes: OrderedDict[int, int] = OrderedDict()
        self._known: dict[Path, int] = {}
        self._known_bytes_left = room.lookups
        self._missed_files = self._shared_chunks = 0
        self._fetched_chunks = self._fetched_chunk_bytes = self._fetched_piece_bytes = 0
        self.get, self._count_hits = self._specialised()

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
            self._count_hits(0),
            self._missed_files,
            self._shared_chunks,
            self._fetched_chunks,
            self._fetched_chunk_bytes,
            self._fetched_piece_bytes,
            self._payloads.kept_bytes,
            self._payloads.transit_bytes,
            self._memory_bytes,
        )

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
            with self._guard():
                payload = self._payloads.get(chunk)
            if payload is None:
                return node
        elif self._known_bytes_left > 0:
            with self._guard():
                self._known_bytes_left -= LOOKUP_BYTES + len(text)
                self._known[text] = payload.slot << _SLOT_SHIFT | start << _PLACE_BITS | end
        self._count_hits(1)
        return payload, start, end

    # -- by node -----------------------------------------------------------------------------------------

    def read(self, node: int) -> bytes:
        """All bytes of a file. Raises InvalidInput if it is none, Damaged, Unavailable."""
        return self._read_pieces([node])[0]

    def read_many(self, nodes: Sequence[int] | npt.NDArray[np.integer]) -> list[bytes]:
        """All bytes of each file, in the order of `nodes`; each chunk is asked for once. Raises as `read`."""
        columns = self._snapshot.sole_extents(np.asarray(nodes, np.int64))
        with self._guard():
            held = {chunk: self._payloads.get(chunk) for chunk in np.unique(columns[0]).tolist()}
        chunks, starts, ends = (column.tolist() for column in columns)
        missing = [int(node) for node, chunk in zip(nodes, chunks, strict=True) if held[chunk] is None]
        self._count_hits(len(nodes) - len(missing))
        fetched = iter(self._read_pieces(missing))
        return [
            next(fetched) if (payload := held[chunk]) is None else payload.memory[start:end]
            for chunk, start, end in zip(chunks, starts, ends, strict=True)
        ]

    def _read_pieces(self, nodes: Sequence[int]) -> list[bytes]:
        """As `read_many`, for files of any number of pieces, which may have to be fetched."""
        extents = [self._extents(node) for node in nodes]
        wanted: dict[int, list[ExtentRef]] = {}
        for of_file in extents:
            for extent in of_file:
                wanted.setdefault(extent.chunk, []).append(extent)
        pieces: dict[ExtentRef, bytes] = {}
        missed: set[int] = set()
        for chunk, of_chunk in wanted.items():
            pieces.update(zip(of_chunk, self._pieces(chunk, of_chunk, missed), strict=True))
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

    def _pieces(self, chunk: int, extents: Sequence[ExtentRef], missed: set[int]) -> list[bytes]:
        """The bytes of extents of one chunk, which is added to `missed` if they were not in memory."""
        with self._guard():
            payload = self._payloads.get(chunk)
        if payload is None:
            missed.add(chunk)
            with suppress(Damaged):  # damage elsewhere in the chunk: the pieces may still be whole
                payload = self._brought(chunk, extents)
        if payload is None:
            self._fetched_piece_bytes += sum(extent.length for extent in extents)
            return self.chunks.fetch_extents(chunk, extents)
        memory = payload.memory
        return [memory[extent.offset : extent.offset + extent.length] for extent in extents]

    def _is_worth_whole(self, chunk: int, extents: Sequence[ExtentRef]) -> bool:
        """Whether a chunk that is not in memory, and has room there, is to be fetched whole. Called under the lock."""
        payload_bytes = self._snapshot.chunk_payload_length(chunk)
        would_keep = self._payloads.would_keep(payload_bytes)
        earlier_bytes = self._asked_bytes.pop(chunk, 0)
        if earlier_bytes and would_keep:
            return True
        asked_bytes = earlier_bytes + _REQUEST_BYTES + sum(extent.length for extent in extents)
        if asked_bytes * _WHOLE_SHARE >= payload_bytes:
            return True
        self._asked_bytes[chunk] = asked_bytes
        # A group that does not fit is read by the piece: its chunks would push each other out.
        soon_bytes = self._memory_bytes if would_keep else self._payloads.room.transit
        while len(self._asked_bytes) * payload_bytes > soon_bytes:
            self._asked_bytes.popitem(last=False)
        return False

    # -- chunks ------------------------------------------------------------------------------------------

    def _brought(self, chunk: int, extents: Sequence[ExtentRef]) -> Payload | None:
        """The payload of a chunk, brought here by this thread or by another; None if it is not worth having whole.

        Raises as `ChunkReader`.
        """
        with self._guard():
            if not self._payloads.has_room(self._snapshot.chunk_payload_length(chunk)):
                return None
            flight = self._flights.setdefault(chunk, Lock())
        with flight:
            with self._guard():
                payload = self._payloads.get(chunk)
            if payload is not None:
                return payload
            try:
                payload = self._shared(chunk, extents) or self._fetched(chunk, extents)
                if payload is not None:
                    with self._guard():
                        self._payloads.add(chunk, payload)
            finally:
                with self._guard():
                    self._flights.pop(chunk, None)
        return payload

    def _shared(self, chunk: int, extents: Sequence[ExtentRef]) -> Payload | None:
        """What the daemon of this node has of a chunk, if it has it right."""
        if self._daemon is None:
            return None
        length_bytes = self._snapshot.chunk_payload_length(chunk)
        wanted_bytes = sum(extent.length for extent in set(extents))
        memory = self._daemon.memory(chunk, length_bytes, wanted_bytes)
        if memory is None:
            return None
        payload = Payload.of(memory)
        if not self.chunks.is_payload(chunk, payload.view):
            return None
        self._shared_chunks += 1
        return payload

    def _fetched(self, chunk: int, extents: Sequence[ExtentRef]) -> Payload | None:
        with self._guard():
            if not self._is_worth_whole(chunk, extents):
                return None
        length_bytes = self._snapshot.chunk_payload_length(chunk)
        memory = _new_memory(length_bytes)
        with memoryview(memory) as destination:
            self.chunks.fetch_chunk_into(chunk, destination)
        self._fetched_chunks += 1
        self._fetched_chunk_bytes += length_bytes
        return Payload.of(memory)

    def close(self) -> None:
        """Let go of all memory, and of the daemon of this node. Reads that are under way end as they would."""
        if self._daemon is not None:
            self._daemon.close()
        with self._guard():
            self._known.clear()
            self._known_bytes_left = 0
            self._payloads.clear()

    def _guard(self) -> Lock:
        """The lock: a new one in a forked child, where a thread of the parent may have held the old one forever."""
        if self._process_id != os.getpid():
            self._process_id, self._lock, self._flights = os.getpid(), Lock(), {}
        return self._lock


def _new_memory(length_bytes: int) -> mmap.mmap:
    """Memory that no file stands behind. Raises Unavailable if there is none.

    In large pages where the kernel has them: new memory comes page by page, and each one of 4 KB costs about as much
    time as reading 4 KB over a network.
    """
    try:
        memory = mmap.mmap(-1, length_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise Unavailable(f"no memory for a chunk of {length_bytes} bytes: {error.strerror}") from None
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
