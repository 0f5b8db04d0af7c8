"""The chunks of a snapshot that a process has in memory, and how it comes to have them. This module takes memory, and
waits for sockets.

    a chunk that is not in memory
        is mapped, if the daemon of this node shares it, or in a job the master of this node: for a while, or just
        for the pieces that are wanted;
        comes whole, if much of it is asked for;
        else comes by the piece, the pieces of many chunks in one request to each node of the job.

What is fetched comes from the nodes of the job if there is one, and from a server otherwise.
"""

import mmap
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock

from dieselfs.cache.node_socket import NodeClient
from dieselfs.cache.payloads import Payload, Payloads, Room
from dieselfs.chunk_source import Excerpts, NodeSource
from dieselfs.errors import Damaged, DieselfsError, Unavailable
from dieselfs.limits import KIB
from dieselfs.meta.snapshot import ExtentRef
from dieselfs.peers.attachment import Attachment
from dieselfs.reader import ChunkReader, first_damaged

_WHOLE_SHARE = 4
"""When a quarter of a payload has been asked for, the whole is fetched, although it will not be kept."""

_REQUEST_BYTES = 256 * KIB
"""What could be sent in the time that a request takes by itself; counts as asked for."""

Wanted = Mapping[int, Sequence[ExtentRef]]
"""Extents by the chunk that they are in."""


@dataclass(frozen=True, slots=True)
class ChunkFigures:
    """What one process has asked for, because it was not in its memory, and where that came from.

    While nothing is under way, `asked_bytes` = `node_bytes` + `peer_bytes` + `server_bytes` + `failed_bytes`.
    """

    asked_bytes: int = 0
    """Whole chunks, and pieces of others."""
    node_bytes: int = 0
    """What the daemon of this node had."""
    peer_bytes: int = 0
    """What came from other nodes of the job."""
    server_bytes: int = 0
    failed_bytes: int = 0
    """What could not be had."""
    shared_chunks: int = 0
    """Chunks that were mapped from the daemon of this node: this process takes no memory of its own for them."""
    fetched_chunks: int = 0
    """Other chunks that came whole."""
    fetched_chunk_bytes: int = 0
    fetched_piece_bytes: int = 0


class HeldChunks:
    """Blocks; safe to use from several threads, and in a forked child after `begin_anew`."""

    def __init__(
        self, reader: ChunkReader, memory_bytes: int, daemon: NodeClient | Attachment | None = None
    ) -> None:
        """`daemon`: of this node, or what attaches this process to a job; `close` closes it."""
        self._reader = reader
        self._snapshot = reader.snapshot
        self._daemon = daemon
        self._job = daemon if isinstance(daemon, Attachment) else None
        self._memory_bytes = memory_bytes
        dataset_bytes = int(self._snapshot.column("chunk_payload_lengths").sum(dtype="int64"))
        self.lock = Lock()  # guards all below, but looking into what is kept
        self.payloads = Payloads(Room.of(memory_bytes, dataset_bytes))
        self._flights: dict[int, Lock] = {}  # for each chunk on its way; held by the thread that fetches it
        # Bytes asked for lately of chunks that are not held, the chunk asked for last at the end.
        self._asked_bytes: OrderedDict[int, int] = OrderedDict()
        self._counted: Counter[str] = Counter()  # what `ChunkFigures` tells, by its names

    def begin_anew(self) -> None:
        """In a forked child, where threads of the parent may have held the locks for ever."""
        self.lock, self._flights, self._counted = Lock(), {}, Counter()

    def close(self) -> None:
        """Let go of all memory, and of the daemon of this node. Reads that are under way end as they would."""
        if self._daemon is not None:
            self._daemon.close()
        with self.lock:
            self.payloads.clear()

    def figures(self) -> ChunkFigures:
        of_job = {} if self._job is None else self._job.figures()
        with self.lock:
            counted = self._counted.copy()
        counted["node_bytes"] += of_job.get("own_bytes", 0)
        counted["peer_bytes"] += of_job.get("peer_bytes", 0)
        counted["server_bytes"] += of_job.get("server_bytes", 0)
        return ChunkFigures(**counted)

    @property
    def job_nodes(self) -> int:
        """Nodes of the job that this process knows of."""
        return 0 if self._job is None else len(self._job.members)

    # -- pieces ------------------------------------------------------------------------------------------

    def pieces(self, wanted: Wanted, is_common: bool = False) -> tuple[dict[ExtentRef, bytes], set[int]]:
        """The bytes of extents, and the chunks among them that were not in memory. Each chunk is asked for once.

        `is_common`: other processes of the job will soon want the rest of these chunks. Raises Damaged, Unavailable.
        """
        pieces: dict[ExtentRef, bytes] = {}
        missed: set[int] = set()
        left: dict[int, Sequence[ExtentRef]] = {}
        for chunk, extents in wanted.items():
            with self.lock:
                payload = self.payloads.get(chunk)
            if payload is None:
                missed.add(chunk)
                with suppress(Damaged):  # damage elsewhere in the chunk: the pieces may still be whole
                    payload = self._brought(chunk, extents, is_common)
            if payload is None:
                left[chunk] = extents
            else:
                memory = payload.memory
                for extent in extents:
                    pieces[extent] = memory[extent.offset : extent.offset + extent.length]
        if left:
            self._fetch_pieces(left, is_common, pieces)
        return pieces, missed

    def _fetch_pieces(self, wanted: Wanted, is_common: bool, pieces: dict[ExtentRef, bytes]) -> None:
        """The bytes of extents, added to `pieces`. Raises the first error when all that can be had is there."""
        if self._job is None:
            self._take_pieces(self._reader, wanted, is_common, pieces)
            return
        refused: dict[int, Sequence[ExtentRef]] = {}
        pooled: dict[int, Sequence[ExtentRef]] = {}
        for chunk, extents in wanted.items():
            # Whatever there is room for has been asked of the master of this node, and it has said no.
            is_refused = self._has_room(chunk) and self._job.is_own(chunk)
            (refused if is_refused else pooled)[chunk] = extents
        errors = []
        for source, part in ((self._job.source, pooled), (self._reader, refused)):
            if not part:
                continue
            try:
                self._take_pieces(source, part, is_common, pieces)
            except DieselfsError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _take_pieces(
        self, source: NodeSource, wanted: Wanted, is_common: bool, pieces: dict[ExtentRef, bytes]
    ) -> None:
        asked_bytes = failed_bytes = 0
        error: DieselfsError | None = None
        for arrival in source.fetch_many(wanted, is_common):
            for chunk, brought in arrival.items():
                length_bytes = sum(extent.length for extent in wanted[chunk])
                asked_bytes += length_bytes
                if isinstance(brought, DieselfsError):
                    error = error or brought
                    failed_bytes += length_bytes
                else:
                    pieces.update(zip(wanted[chunk], map(bytes, brought), strict=True))
        self._count_from(source, asked_bytes, failed_bytes, fetched_piece_bytes=asked_bytes - failed_bytes)
        if error is not None:
            raise error

    # -- whole chunks ------------------------------------------------------------------------------------

    def _brought(self, chunk: int, extents: Sequence[ExtentRef], is_common: bool) -> Payload | None:
        """The payload of a chunk, brought here by this thread or by another; None if it is not worth having whole.

        Of one that others share, and that will not be held, no more than the extents may be right. Raises as
        `ChunkReader`.
        """
        with self.lock:
            if not self.payloads.has_room(self._snapshot.chunk_payload_length(chunk)):
                return None
            flight = self._flights.setdefault(chunk, Lock())
        with flight:
            with self.lock:
                payload = self.payloads.get(chunk)
            if payload is not None:
                return payload
            try:
                shared = self._shared(chunk, extents, is_common)
                with self.lock:
                    is_whole = self._is_worth_whole(chunk, extents, is_common, shared is not None)
                if shared is not None:
                    payload = self._verified(shared, chunk, None if is_whole else extents)
                if payload is None and is_whole:
                    payload = self._fetched(chunk)
                if payload is not None and is_whole:
                    with self.lock:
                        self.payloads.add(chunk, payload)
            finally:
                with self.lock:
                    self._flights.pop(chunk, None)
        return payload

    def _shared(self, chunk: int, extents: Sequence[ExtentRef], is_common: bool) -> Payload | None:
        """What the daemon of this node has of a chunk, still to be verified."""
        if self._daemon is None:
            return None
        length_bytes = self._snapshot.chunk_payload_length(chunk)
        is_whole = is_common and self._job is not None
        wanted_bytes = length_bytes if is_whole else sum(extent.length for extent in extents)
        memory = self._daemon.memory(chunk, length_bytes, wanted_bytes)
        return None if memory is None else Payload.of(memory)

    def _verified(self, shared: Payload, chunk: int, extents: Sequence[ExtentRef] | None) -> Payload | None:
        """What is shared, if these extents of it are right, or without any, all of it. To verify a chunk takes as long
        as a hundred of its small files.
        """
        if extents is None:
            if not self._reader.is_payload(chunk, shared.view):
                return None
            self._count(shared_chunks=1, asked_bytes=len(shared.view), node_bytes=len(shared.view))
            return shared
        if first_damaged(extents, Excerpts.of_payload(shared.view, extents)) is not None:
            return None
        size_bytes = sum(extent.length for extent in extents)
        self._count(asked_bytes=size_bytes, node_bytes=size_bytes, fetched_piece_bytes=size_bytes)
        return shared

    def _fetched(self, chunk: int) -> Payload:
        length_bytes = self._snapshot.chunk_payload_length(chunk)
        memory = _new_memory(length_bytes)
        source: NodeSource = self._reader if self._job is None else self._job.source
        try:
            with memoryview(memory) as destination:
                source.fetch_chunk_into(chunk, destination)
        except DieselfsError:
            self._count_from(source, length_bytes, length_bytes)
            raise
        self._count_from(source, length_bytes, 0, fetched_chunks=1, fetched_chunk_bytes=length_bytes)
        return Payload.of(memory)

    def _is_worth_whole(
        self, chunk: int, extents: Sequence[ExtentRef], is_common: bool, is_shared: bool
    ) -> bool:
        """Whether a chunk that is not in memory, and has room there, is to be held whole. Called under the lock.

        `is_shared`: it does not have to be fetched, only verified.
        """
        payload_bytes = self._snapshot.chunk_payload_length(chunk)
        would_keep = self.payloads.would_keep(payload_bytes)
        if is_shared and (would_keep or is_common):
            return True
        if is_common and self._job is not None:
            # Of n readers each wants an n-th: whole, the job would send every chunk n times.
            return sum(extent.length for extent in extents) * _WHOLE_SHARE >= payload_bytes
        earlier_bytes = self._asked_bytes.pop(chunk, 0)
        if earlier_bytes and would_keep:
            return True
        asked_bytes = earlier_bytes + _REQUEST_BYTES + sum(extent.length for extent in extents)
        if asked_bytes * _WHOLE_SHARE >= payload_bytes:
            return True
        self._asked_bytes[chunk] = asked_bytes
        # A group that does not fit is read by the piece: its chunks would push each other out.
        soon_bytes = self._memory_bytes if would_keep else self.payloads.room.transit
        while len(self._asked_bytes) * payload_bytes > soon_bytes:
            self._asked_bytes.popitem(last=False)
        return False

    def _has_room(self, chunk: int) -> bool:
        with self.lock:
            return self.payloads.has_room(self._snapshot.chunk_payload_length(chunk))

    def _count_from(self, source: NodeSource, asked_bytes: int, failed_bytes: int, **more: int) -> None:
        """What was asked of a source. That of a job counts by itself where it came from."""
        came_bytes = asked_bytes - failed_bytes if source is self._reader else 0
        self._count(asked_bytes=asked_bytes, failed_bytes=failed_bytes, server_bytes=came_bytes, **more)

    def _count(self, **more: int) -> None:
        with self.lock:
            self._counted.update(more)


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
