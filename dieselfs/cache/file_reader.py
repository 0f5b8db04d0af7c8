"""Reads files of one snapshot, from memory if they are there. This module waits for sockets.

Three ways lead to the bytes of a file, each several times slower than the one before. The place of a file in a pinned
chunk is remembered by its path after the first read. Else the snapshot finds the chunk, which may be in memory. Else
the chunk is fetched, or just the extent in it.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers, distinct
from dieselfs.cache.look_ahead import LookAhead
from dieselfs.cache.policy import LOOKUP_BYTES
from dieselfs.cache.thread_cache import COPIES, VIEWS, Form, HeldPayload, Sliceable, ThreadCache
from dieselfs.cluster.holdings import HERE
from dieselfs.cluster.node_client import NodeClient
from dieselfs.errors import InvalidInput
from dieselfs.limits import CHUNK_PAYLOAD_BYTES_MAX, CHUNK_TARGET_BYTES, LIBRARY_MEMORY_BYTES, MIB
from dieselfs.names import printable, user_path
from dieselfs.snapshot.reader import ExtentRef
from dieselfs.snapshot.splice import runs_of
from dieselfs.sources.interface import Wanted
from dieselfs.sources.server import ServerSource

if TYPE_CHECKING:  # imported in a job alone
    from dieselfs.cluster.attachment import Attachment

Path = str | bytes | os.PathLike[str]

# As `os.fsencode`, which takes three times as long.
_ENCODING, _ENCODING_ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()

_encoded: Callable[[Any], bytes] = (
    str.encode if _ENCODING == "utf-8" else lambda path: str.encode(path, _ENCODING)
)
"""The bytes of a path of plain text. Raises one of `_NOT_PLAIN` for any other."""
_NOT_PLAIN = (TypeError, UnicodeEncodeError)

# The place of a file as one number: the slot of a pinned payload, first byte, end. The garbage collector would visit
# tuples in each collection, and so copy them in each forked process.
_PLACE_BITS = 27
_SLOT_SHIFT = 2 * _PLACE_BITS
_PLACE_MASK = (1 << _PLACE_BITS) - 1
assert CHUNK_PAYLOAD_BYTES_MAX <= _PLACE_MASK

KEPT_MEMORY_BYTES = 64 * MIB
"""Memory that a process may keep after it was freed: two batches of 256 files of 110 KB."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>

_TOGETHER_MIN = 64
"""Looking up this many files and more together takes less time than one after the other."""

_Content = TypeVar("_Content", bound=bytes | memoryview)


class _Plain(NamedTuple):
    """Files of one extent, by their encoded paths; `extents`: chunk, start, end of each; `nodes`: shape (n,), None for
    few files.
    """

    encoded: Sequence[bytes]
    extents: Iterable[Any]
    nodes: npt.NDArray[np.int64] | None


class FileReader:
    """Reads files of one snapshot. Blocks; safe to use from several threads, and after a fork.

    A chunk of which a large part is requested, in one or several requests, is fetched and held whole: readers of the
    chunk-wise order return to it. While it would be pinned, the second request is enough; in a job, if it is for this
    chunk alone. Otherwise only extents are fetched: if a chunk is evicted before its next file is read, each file costs
    a whole chunk.
    """

    def __init__(
        self,
        chunks: ServerSource,
        memory_bytes: int = LIBRARY_MEMORY_BYTES,
        daemon: "NodeClient | Attachment | None" = None,
    ) -> None:
        """`daemon`: the client of this node's daemon, or the attachment to the job; both may have chunks in memory.
        `close` closes it.
        """
        self.chunks = chunks
        self._snapshot = chunks.snapshot
        self._held = ThreadCache(chunks, memory_bytes, daemon)
        self._policy = self._held.policy
        self._known: dict[Path, int] = {}
        # Two numbers that are changed without a lock: a lost change makes the table grow a little later, or larger.
        self._unread_files = [self._snapshot.header.files]  # one number, for a closure
        self._known_bytes_left = self._held.budget.lookups
        self.metrics = self._held.metrics
        budget = self._held.budget
        self.look_ahead = LookAhead(
            self._snapshot, self._held, budget.evictable or budget.pinned, self.metrics
        )
        # Both are changed without a lock.
        self._hits = self.metrics.counter("files.hits", "Files whose bytes were in memory.")
        self._misses = self.metrics.counter("files.misses", "Files whose bytes had to be mapped or fetched.")
        self.get = self._specialised_get()
        _keep_freed_memory()

    def _specialised_get(self) -> Callable[[Path], bytes]:
        """`get`: a closure, as attributes would cost a third of a hit's time.

        Each `try` has one statement, so that only a file that is not in memory is read slowly. A `try` costs nothing,
        where tests would.
        """
        known_place, sole_extent_at, remember = self._known.get, self._snapshot.sole_extent_at, self._remember
        memories, slots, hits, read = self._held.memories, self._held.slots, self._hits, self._get
        unread_files = self._unread_files

        def get(path: Path) -> bytes:
            """All bytes of a file. Symbolic links are followed. Raises NotFound, InvalidInput, Damaged, Unavailable."""
            try:
                at = known_place(path)
            except TypeError:  # without a hash: no path, which `read` reports
                return read(path)
            if at is not None:
                try:
                    memory = memories[at >> _SLOT_SHIFT]
                except IndexError:  # the reader was closed
                    return read(path)
                hits.value += 1
                return memory[at >> _PLACE_BITS & _PLACE_MASK : at & _PLACE_MASK]
            try:
                encoded = _encoded(path)
            except _NOT_PLAIN:
                return read(path)
            found = sole_extent_at(encoded)
            if found is None:  # a link, a file of several extents, or nothing
                return read(path)
            chunk, start, end = found
            try:
                memory = memories[slot := slots[chunk]]
            except (KeyError, IndexError):  # the chunk is not pinned, or the reader was closed
                return read(path)
            if unread_files[0] > 0:
                unread_files[0] -= 1
            else:
                remember(path, len(encoded), slot, start, end)
            hits.value += 1
            return memory[start:end]

        return get

    def _remember(self, path: Path, path_bytes: int, slot: int, start: int, end: int) -> None:
        """Remember the place of a file in a pinned chunk, if there is room. Called from the second time on that files
        are read: a process that reads each file once would lose time.
        """
        if self._known_bytes_left > 0:
            self._known_bytes_left -= LOOKUP_BYTES + path_bytes
            self._known[path] = slot << _SLOT_SHIFT | start << _PLACE_BITS | end

    # -- by path -----------------------------------------------------------------------------------------

    def get_many(self, paths: Iterable[Path]) -> list[bytes]:
        """All bytes of each file, in this order; each chunk is requested once. Raises as `get`."""
        return self._many(paths, self._held.memories, COPIES)

    def views(self, paths: Iterable[Path]) -> list[memoryview]:
        """As `get_many`, but without a copy for files that are in memory. A view keeps the memory of a whole chunk."""
        return self._many(paths, self._held.views, VIEWS)

    def _many(
        self, paths: Iterable[Path], pinned: Sequence[Sliceable[_Content]], form: Form[_Content]
    ) -> list[_Content]:
        """Slices of `pinned` memory, else what `form` makes."""
        paths = paths if isinstance(paths, list) else list(paths)
        contents = self._known_many(paths, pinned)
        plain = None if contents is not None else self._plain(paths)
        if plain is not None:
            contents = self._pinned_many(paths, plain, pinned)
        if contents is not None:
            self._hits.value += len(paths)
            return contents
        if plain is not None and plain.nodes is not None:
            return self._nodes(plain.nodes, False, form)
        found = list(map(self._found, paths))
        fetched = iter(self._read_extents([node for node in found if isinstance(node, int)], form))
        return [next(fetched) if isinstance(at, int) else form.held(at[0])[at[1] : at[2]] for at in found]

    def _known_many(
        self, paths: Sequence[Path], pinned: Sequence[Sliceable[_Content]]
    ) -> list[_Content] | None:
        """Slices of `pinned` memory; None unless all places are remembered."""
        if len(paths) < 2 or not self._known:
            return None
        try:
            places = itemgetter(*paths)(self._known)  # one call for all look-ups takes half the time
        except (KeyError, TypeError):  # not remembered; or without a hash, so no path
            return None
        try:
            return [
                pinned[at >> _SLOT_SHIFT][at >> _PLACE_BITS & _PLACE_MASK : at & _PLACE_MASK] for at in places
            ]
        except IndexError:  # the reader was closed
            return None

    def _plain(self, paths: Sequence[Path]) -> _Plain | None:
        """None unless all are plain text and files of one extent."""
        snapshot = self._snapshot
        try:
            encoded = list(map(_encoded, paths))
        except _NOT_PLAIN:
            return None
        if len(paths) < _TOGETHER_MIN:
            extents = [*map(snapshot.sole_extent_at, encoded)]
            return None if None in extents else _Plain(encoded, extents, None)
        nodes = snapshot.find_many(encoded)
        columns = snapshot.sole_extents(nodes)
        if nodes.min() < 0 or columns[0].min() < 0:
            return None
        return _Plain(encoded, zip(*(column.tolist() for column in columns), strict=True), nodes)

    def _pinned_many(
        self, paths: Sequence[Path], plain: _Plain, pinned: Sequence[Sliceable[_Content]]
    ) -> list[_Content] | None:
        """Slices of `pinned` memory; None unless all files are in pinned chunks."""
        slots = self._held.slots
        try:
            if self._unread_files[0] > 0:
                contents = [pinned[slots[chunk]][start:end] for chunk, start, end in plain.extents]
                self._unread_files[0] -= len(paths)
                return contents
            contents = []
            for path, text, (chunk, start, end) in zip(paths, plain.encoded, plain.extents, strict=True):
                contents.append(pinned[slot := slots[chunk]][start:end])
                self._remember(path, len(text), slot, start, end)
        except (KeyError, IndexError):  # a chunk is not pinned, or the reader was closed
            return None
        return contents

    def _get(self, path: Path) -> bytes:
        found = self._found(path)
        if isinstance(found, int):
            content = self.look_ahead.take_one(found)
            if content is None:
                return self._read_extents([found], COPIES)[0]
            self._hits.value += 1
            return content
        payload, start, end = found
        return payload.memory[start:end]

    def _found(self, path: Path) -> tuple[HeldPayload, int, int] | int:
        """Where the bytes of a file lie, which counts as a hit; its node if it is not one extent in memory."""
        snapshot, text = self._snapshot, os.fspath(path)
        node = snapshot.find(text.encode(_ENCODING, _ENCODING_ERRORS) if isinstance(text, str) else text)
        extent = snapshot.sole_extent(node) if node >= 0 else None
        if extent is None:
            node = snapshot.follow(user_path(text))
            extent = snapshot.sole_extent(node)
            if extent is None:
                return node
        chunk, start, end = extent
        payload = self._policy.pinned.get(chunk)
        if payload is None:
            with self._held.lock:
                payload = self._policy.get(chunk)
            if payload is None:
                return node
        self._hits.value += 1
        return payload, start, end

    def distances(self) -> Numbers:
        """How far each chunk is, see `cluster.holdings`: shape (chunks,). Daemons of the node or the job are asked."""
        found = self._held.distances_of_daemons()
        with self._held.lock:
            found[[*self._policy]] = HERE
        return found

    # -- by node -----------------------------------------------------------------------------------------

    def read_many(
        self, nodes: Sequence[int] | npt.NDArray[np.integer], is_shared_plan: bool = False
    ) -> list[bytes]:
        """All bytes of each file, in the order of `nodes`; each chunk is requested once.

        Raises InvalidInput if one is no file, Damaged, Unavailable.
        `is_shared_plan`: see `Wanted`.
        """
        return self._nodes(nodes, is_shared_plan, COPIES)

    def node_views(
        self, nodes: Sequence[int] | npt.NDArray[np.integer], is_shared_plan: bool = False
    ) -> list[memoryview]:
        """As `read_many`, but without a copy, as `views`."""
        return self._nodes(nodes, is_shared_plan, VIEWS)

    def _nodes(
        self,
        nodes: Sequence[int] | npt.NDArray[np.integer],
        is_shared_plan: bool,
        form: Form[_Content],
    ) -> list[_Content]:
        wanted: npt.NDArray[np.int64] = np.asarray(nodes, np.int64)
        if (waiting := self.look_ahead.take(wanted.tolist())) is not None:
            self._hits.value += len(wanted)
            return [*map(form.made_of, waiting)]
        columns = self._snapshot.sole_extents(wanted)
        chunks, starts, ends = (column.tolist() for column in columns)
        with self._held.lock:
            payloads = {chunk: self._policy.get(chunk) for chunk in set(chunks)}
        held = {chunk: form.held(payload) for chunk, payload in payloads.items() if payload is not None}
        missing = [node for node, chunk in zip(wanted.tolist(), chunks, strict=True) if chunk not in held]
        self._hits.value += len(nodes) - len(missing)
        if not missing:
            return [held[chunk][start:end] for chunk, start, end in zip(chunks, starts, ends, strict=True)]
        fetched = iter(self._read_extents(missing, form, is_shared_plan))
        return [
            held[chunk][start:end] if chunk in held else next(fetched)
            for chunk, start, end in zip(chunks, starts, ends, strict=True)
        ]

    def _read_extents(
        self, nodes: Sequence[int], form: Form[_Content], is_shared_plan: bool = False
    ) -> list[_Content]:
        """As `read_many`, for files of any number of extents, which may have to be fetched."""
        waiting = self.look_ahead.take_some(nodes)
        if not waiting:
            return self._fetch_files(nodes, form, is_shared_plan)
        self._hits.value += len(waiting)
        missing = [node for node in nodes if node not in waiting]
        left = iter(self._fetch_files(missing, form, is_shared_plan))
        return [form.made_of(waiting[node]) if node in waiting else next(left) for node in nodes]

    def _fetch_files(
        self, nodes: Sequence[int], form: Form[_Content], is_shared_plan: bool
    ) -> list[_Content]:
        sole = self._snapshot.sole_extent_refs(nodes)
        extents = [] if sole else [self._extents(node) for node in nodes]
        by_chunk: dict[int, list[ExtentRef]] = {}
        for extent in dict.fromkeys(sole or chain.from_iterable(extents)):
            by_chunk.setdefault(extent.chunk, []).append(extent)
        contents, missed = self._held.contents(Wanted(by_chunk, is_shared_plan), form)
        missed_files = sum([extent.chunk in missed for extent in sole])
        missed_files += sum(any(extent.chunk in missed for extent in of_file) for of_file in extents)
        self._misses.value += missed_files
        self._hits.value += len(nodes) - missed_files
        if sole:
            return [contents[extent] for extent in sole]
        return [
            contents[of_file[0]]
            if len(of_file) == 1
            else form.made_of(b"".join([memoryview(contents[extent]) for extent in of_file]))
            for of_file in extents
        ]

    def read_range(self, node: int, start: int, end: int) -> bytes:
        """The bytes of a file from `start` up to `end`, which must not be behind its end. Fetches the extents that have
        them. Raises as `read_many`.
        """
        extents = self._extents(node, start, end)
        wanted: dict[int, list[ExtentRef]] = {}
        for extent in extents:
            wanted.setdefault(extent.chunk, []).append(extent)
        contents, _ = self._held.contents(Wanted(wanted), VIEWS)
        return b"".join(
            contents[extent][max(start - extent.place, 0) : end - extent.place] for extent in extents
        )

    def read_rows(self, node: int, firsts: Numbers, rows: npt.NDArray[np.uint8]) -> None:
        """As `read_range`, many ranges of equal length of one file at once, each chunk once. Row i gets the bytes from
        `firsts[i]` on. `firsts`: shape (n,); `rows`: shape (n, bytes), contiguous.
        """
        snapshot, length = self._snapshot, rows.shape[1]
        lows = snapshot.extent_numbers(node, firsts)
        counts = snapshot.extent_numbers(node, firsts + length - 1) - lows + 1
        numbers = distinct(runs_of(lows, counts))
        refs = snapshot.extent_refs(numbers)
        by_chunk: dict[int, list[ExtentRef]] = {}
        for ref in refs:
            by_chunk.setdefault(ref.chunk, []).append(ref)
        contents, missed = self._held.contents(Wanted(by_chunk), VIEWS)
        (self._misses if missed else self._hits).value += len(rows)
        memory = [contents[ref] for ref in refs]
        begins = firsts - snapshot.column("extent_places")[lows].astype(np.int64)
        columns = np.searchsorted(numbers, lows), begins, counts
        target, place = rows.data.cast("B"), 0
        for extent, begin, count in zip(*(column.tolist() for column in columns), strict=True):
            if count == 1:
                target[place : place + length] = memory[extent][begin : begin + length]
            else:  # it crosses the border of extents
                joined = b"".join(memory[extent : extent + count])
                target[place : place + length] = joined[begin : begin + length]
            place += length

    def _extents(self, node: int, start: int = 0, end: int | None = None) -> list[ExtentRef]:
        extents = self._snapshot.extents(node, start, end)
        if not extents and not self._snapshot.stat(node).is_file:
            path = printable(self._snapshot.path(node))
            raise InvalidInput(f"dl://{self._snapshot.dataset}/{path}: not a file")
        return extents

    def close(self) -> None:
        """Release all memory and the connection to the daemon, and end threads. Reads in flight end normally."""
        self.look_ahead.close()
        self._held.close()
        with self._held.lock:
            self._known_bytes_left = 0
            self._known.clear()


def _keep_freed_memory() -> None:
    """Let the C library keep memory that was freed (KEPT_MEMORY_BYTES at most, in blocks smaller than a chunk): else
    each batch is given back to the kernel and comes again, with a page fault for every 4 KiB, which takes several times
    as long as copying the files. Settings of glibc in the environment stay.
    """
    if not any(name in os.environ for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")):
        with suppress(AttributeError):  # another C library
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_M_MMAP_THRESHOLD, CHUNK_TARGET_BYTES)
            mallopt(_M_TRIM_THRESHOLD, KEPT_MEMORY_BYTES)
