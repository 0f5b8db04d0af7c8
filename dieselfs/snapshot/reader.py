"""Reads a snapshot in place, through `mmap`. This module opens files.

Opening takes the same time for a thousand entries and for a hundred million: only the header is read, no object is made
per file, and all processes of a machine share the pages. A node is an index into the columns; node 0 is the root; the
inode of a node is `node + 1`.
"""

import mmap
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from dieselfs.columns import I64, U8, U32, U64
from dieselfs.digests import DIGEST_BYTES, DIGESTS, EXTENT_DIGEST_BYTES, EXTENT_DIGESTS
from dieselfs.errors import Damaged, InvalidInput, NotFound, PathNotFound
from dieselfs.names import printable
from dieselfs.snapshot.format import (
    SECTION_TYPES,
    SnapshotHeader,
    check_digest,
    decode_snapshot_header,
)
from dieselfs.snapshot.hash_index import hash_seed

if TYPE_CHECKING:
    from dieselfs.snapshot.check import Part

ROOT = 0
LINK_HOPS_MAX = 40
"""Symbolic links followed on the way to one file, as in Linux."""

# Columns are used in place, and memoryviews support only the byte order of the machine.
assert sys.byteorder == "little"
_FORMATS: dict[np.dtype[np.generic], Literal["B", "I", "Q", "q"]] = {
    U8: "B",
    U32: "I",
    U64: "Q",
    I64: "q",
    EXTENT_DIGESTS: "B",
    DIGESTS: "B",
}

_TYPE_BITS = 0o170000
"""Of a mode, for many nodes, or hot paths, instead of `stat.S_ISREG`."""
_ALL = slice(None)

_HALF_BITS, _LOW_HALF = np.uint64(32), np.uint64(0xFFFF_FFFF)

_BLOCK_NODES = 1024
"""Nodes whose extents are put together at the first look-up of one of them, which takes 30 us."""
_BLOCKS_MAX = 8192
"""Of a larger snapshot, extents are looked up in the columns: the blocks of one process could have 96 MiB."""


class Stat(NamedTuple):
    """The status of a node. `mode` has the type bits; `inode` is the same in every process and mount."""

    inode: int
    mode: int
    size: int
    mtime_ns: int

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.mode)


class ExtentRef(NamedTuple):
    """An extent: its place in the file, the index of its chunk, its range in the payload, and its digest."""

    place: int
    chunk: int
    offset: int
    length: int
    digest: bytes


class Snapshot:
    """One frozen generation of a dataset. Safe to share between threads and across a fork."""

    def __init__(self, data: bytes | mmap.mmap, source: str, folder: bytes = b"") -> None:
        """`folder`: the one of the dataset that the snapshot is of (`dieselfs.snapshot.subtree`); empty: all."""
        self._data = data
        self.folder = folder
        self.tag = ""  # by which it was opened; set by who did
        self._view = memoryview(data)
        self.source = source
        self.header: SnapshotHeader = decode_snapshot_header(self._view, len(self._view), source)
        self._columns = {name: self._section(name) for name in SECTION_TYPES}
        columns = self._columns
        # Memoryviews, because an element takes a third of the time of one of a NumPy array.
        self._path_ends = columns["path_ends"]
        self._paths = columns["paths"]
        self._paths_start = self.header.sections["paths"].offset
        self._name_lengths = columns["name_lengths"]
        self._parents = columns["parents"]
        self._modes = columns["modes"]
        self._sizes = columns["sizes"]
        self._mtimes_ns = columns["mtimes_ns"]
        self._firsts = columns["firsts"]
        self._counts = columns["counts"]
        self._hash_slots = columns["hash_slots"]
        self._hash_shift = 64 - self.header.hash_bits
        self._hash_seed = hash_seed(self.header.dataset_id)
        self.sole_extent, self.sole_extent_at = self._specialised()

    @classmethod
    def open(cls, path: str | os.PathLike[str], folder: bytes = b"", source: str = "") -> "Snapshot":
        """Map the snapshot file at `path`; errors name `source`, by default the path. Raises NotFound, Damaged, or
        InvalidInput (no file).
        """
        try:
            with Path(path).open("rb") as file:
                if os.fstat(file.fileno()).st_size == 0:
                    raise Damaged(f"{source or path}: offset 0: the snapshot file is empty")
                return cls(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), source or str(path), folder)
        except FileNotFoundError:
            raise NotFound(f"{path}: snapshot file not found") from None
        except OSError as error:
            raise InvalidInput(f"{path}: cannot be read as a snapshot: {error.strerror}") from None

    def _section(self, name: str) -> memoryview:
        section = self.header.sections[name]
        raw = self._view[section.offset : section.offset + section.length]
        return raw.cast(_FORMATS[SECTION_TYPES[name]])

    def column(self, name: str) -> npt.NDArray[Any]:
        """A column as a NumPy array, in place; for arithmetic over many nodes. Names: `SECTION_TYPES`."""
        return _column(self._columns, name)

    def types(self, nodes: slice | npt.NDArray[np.integer] = _ALL) -> npt.NDArray[np.uint32]:
        """The type bits of the modes of these nodes, as `stat.S_IFREG`: shape (n,)."""
        types: npt.NDArray[np.uint32] = self.column("modes")[nodes] & np.uint32(_TYPE_BITS)
        return types

    # -- whole snapshot ----------------------------------------------------------------------------------

    @property
    def dataset(self) -> str:
        return self.header.dataset

    @property
    def location(self) -> str:
        """`NAME[@TAG][/FOLDER]`: the dataset, and the folder of it that the snapshot is of; for people."""
        state = f"{self.dataset}@{self.tag}" if self.tag else self.dataset
        return f"{state}/{printable(self.folder)}" if self.folder else state

    @property
    def generation(self) -> int:
        return self.header.generation

    @property
    def digest(self) -> bytes:
        """BLAKE3 that names this exact content."""
        return self.header.digest

    @property
    def content(self) -> memoryview:
        """The bytes of the snapshot file."""
        return self._view

    def __len__(self) -> int:
        """Number of nodes, the root included."""
        return self.header.nodes

    # -- finding nodes -----------------------------------------------------------------------------------

    def find(self, path: bytes) -> int:
        """The node of a full path, or -1."""
        data, first, ends, slots = self._data, self._paths_start, self._path_ends, self._hash_slots
        digest = xxh3_64_intdigest(path, self._hash_seed)
        slot, mark = digest >> self._hash_shift, digest & 0xFFFF_FFFF
        while entry := slots[slot]:
            if entry >> 32 == mark:
                node = (entry & 0xFFFF_FFFF) - 1
                # For the root this is empty, as its path: from the last end to the first.
                if data[first + ends[node - 1] : first + ends[node]] == path:
                    return node
            slot += 1
        return -1

    def find_many(self, paths: Sequence[bytes]) -> npt.NDArray[np.int64]:
        """The nodes of full paths, -1 where there is none: shape (n,). For hundreds of paths, a third of the time of
        `find`.
        """
        slots = self.column("hash_slots")
        digests = np.fromiter(map(xxh3_64_intdigest, paths, repeat(self._hash_seed)), np.uint64, len(paths))
        places = (digests >> np.uint64(self._hash_shift)).astype(np.int64)
        marks, entries = digests & _LOW_HALF, slots[places]
        while len(passed := np.flatnonzero((entries >> _HALF_BITS != marks) & (entries != 0))):
            places[passed] += 1
            entries[passed] = slots[places[passed]]
        nodes = (entries & _LOW_HALF).astype(np.int64) - 1
        if len(paths) and nodes.min() > ROOT and self._are_paths(nodes, paths):
            return nodes
        return np.fromiter(map(self.find, paths), np.int64, len(paths))

    def _are_paths(self, nodes: npt.NDArray[np.int64], paths: Sequence[bytes]) -> bool:
        """Whether these are the paths of nodes, none of which is the root."""
        ends = self.column("path_ends").view(I64)
        starts = ends[nodes - 1]
        lengths = ends[nodes] - starts
        if not np.array_equal(lengths, np.fromiter(map(len, paths), np.int64, len(paths))):
            return False
        joined = np.frombuffer(b"".join(paths), np.uint8)
        shifts = starts - (np.cumsum(lengths) - lengths)
        places = np.arange(len(joined)) + np.repeat(shifts, lengths)
        return np.array_equal(np.frombuffer(self._paths, np.uint8)[places], joined)

    def _specialised(
        self,
    ) -> tuple[Callable[[int], tuple[int, int, int] | None], Callable[[bytes], tuple[int, int, int] | None]]:
        """`sole_extent` and `sole_extent_at`: closures, as attributes would cost a third of their time.

        Of a file in no particular order, each column costs a miss of the processor's caches. So the rows of
        `sole_extents` are put together, in blocks: 12 bytes per node, in the memory of each process.
        """
        data, first, ends, slots = self._data, self._paths_start, self._path_ends, self._hash_slots
        shift, seed, hashed = self._hash_shift, self._hash_seed, xxh3_64_intdigest
        columns, nodes, size = self._columns, len(self), _BLOCK_NODES
        blocks: list[memoryview | None] = [None] * -(-nodes // size)

        def block_of(number: int) -> memoryview:
            numbers = np.arange(number * size, min((number + 1) * size, nodes))
            rows = np.stack(_sole_extents(columns, numbers), axis=1).astype(np.int32)
            block = blocks[number] = rows.ravel().data
            return block

        def in_blocks(node: int) -> tuple[int, int, int] | None:
            """`(chunk, offset, end)` of a file of one extent, in the payload; None for all other nodes."""
            block = blocks[node // size] or block_of(node // size)
            at = node % size * 3
            chunk = block[at]
            return None if chunk < 0 else (chunk, block[at + 1], block[at + 2])

        modes, counts, firsts = self._modes, self._counts, self._firsts
        chunks, offsets, lengths = (columns[f"extent_{name}"] for name in ("chunks", "offsets", "lengths"))

        def in_columns(node: int) -> tuple[int, int, int] | None:
            if counts[node] != 1 or modes[node] & _TYPE_BITS != stat.S_IFREG:
                return None
            extent = firsts[node]
            return chunks[extent], offsets[extent], offsets[extent] + lengths[extent]

        sole_extent = in_blocks if len(blocks) <= _BLOCKS_MAX else in_columns

        def sole_extent_at(path: bytes) -> tuple[int, int, int] | None:
            """As `sole_extent` of the node at a full path; None also without one."""
            digest = hashed(path, seed)
            slot, mark = digest >> shift, digest & 0xFFFF_FFFF
            while entry := slots[slot]:
                if entry >> 32 == mark:
                    node = (entry & 0xFFFF_FFFF) - 1
                    if data[first + ends[node - 1] : first + ends[node]] == path:
                        return sole_extent(node)
                slot += 1
            return None

        return sole_extent, sole_extent_at

    def require(self, path: bytes) -> int:
        """The node of a full path. Raises PathNotFound."""
        node = self.find(path)
        if node < 0:
            raise PathNotFound(f"dl://{self.dataset}/{printable(path)}: no such file or folder")
        return node

    def require_folder(self, path: bytes) -> int:
        """The node of a folder. Raises PathNotFound, and InvalidInput if it is not a folder."""
        node = self.require(path)
        if not stat.S_ISDIR(self._modes[node]):
            raise InvalidInput(f"dl://{self.dataset}/{printable(path)} is not a folder")
        return node

    def follow(self, path: bytes) -> int:
        """The node that `path` leads to through symbolic links.

        Raises PathNotFound if they leave the dataset or go in circles.
        """
        reached: list[bytes] = []
        ahead = path.split(b"/")[::-1] if path else []
        hops = 0
        while ahead:
            part = ahead.pop()
            if part in (b"", b"."):
                continue
            if part == b"..":
                if not reached:
                    break
                reached.pop()
                continue
            node = self.find(b"/".join([*reached, part]))
            if node < 0:
                break
            if not stat.S_ISLNK(self._modes[node]):
                reached.append(part)
                continue
            target, hops = self.target(node), hops + 1
            if target.startswith(b"/") or hops > LINK_HOPS_MAX:
                break
            ahead += target.split(b"/")[::-1]
        else:
            return self.require(b"/".join(reached))
        raise PathNotFound(f"dl://{self.dataset}/{printable(path)}: no such file or folder")

    def child(self, folder: int, name: bytes) -> int:
        """The node called `name` in `folder`, or -1."""
        return self.find(self.path(folder) + b"/" + name if folder else name)

    def children(self, folder: int) -> range:
        """The nodes in `folder`, sorted by name; empty for anything that is not a folder."""
        if not stat.S_ISDIR(self._modes[folder]):
            return range(0)
        first = self._firsts[folder]
        return range(first, first + self._counts[folder])

    def walk(self, folder: int = ROOT) -> Iterator[int]:
        """Every node below `folder`, each folder before its content, ordered by the parts of the paths."""
        stack = [iter(self.children(folder))]
        while stack:
            node = next(stack[-1], None)
            if node is None:
                stack.pop()
                continue
            yield node
            if self._counts[node] and stat.S_ISDIR(self._modes[node]):
                stack.append(iter(self.children(node)))

    # -- one node ----------------------------------------------------------------------------------------

    def path(self, node: int) -> bytes:
        return bytes(self._paths[self._path_ends[node - 1] if node else 0 : self._path_ends[node]])

    def path_many(self, nodes: npt.NDArray[np.integer]) -> list[bytes]:
        """The paths of many nodes at once. Takes about 0.3 us per node."""
        nodes = nodes.astype(np.int64)
        ends = self.column("path_ends").view(I64)
        starts = self._paths_start + np.where(nodes > 0, ends[nodes - 1], 0)
        places = map(slice, starts.tolist(), (self._paths_start + ends[nodes]).tolist())
        return list(map(self._data.__getitem__, places))

    def path_lines(self, nodes: npt.NDArray[np.integer], terminator: bytes) -> bytes:
        """The paths of many files in one text, each with one byte behind it. Takes a third of `path_many`, and most of
        it without the interpreter lock.
        """
        nodes = nodes.astype(np.int64)
        ends = self.column("path_ends").view(I64)
        starts, stops = ends[nodes - 1], ends[nodes]  # no file is node 0
        line_ends = np.cumsum(stops - starts + 1)
        places = np.repeat(stops + 1 - line_ends, stops - starts + 1)
        places += np.arange(len(places))
        text = self.column("paths").take(places, mode="clip")
        text[line_ends - 1] = ord(terminator)
        return text.tobytes()

    def name(self, node: int) -> bytes:
        end = self._path_ends[node]
        return bytes(self._paths[end - self._name_lengths[node] : end])

    def parent(self, node: int) -> int:
        return self._parents[node]

    def mode(self, node: int) -> int:
        """Type and permission bits."""
        return self._modes[node]

    def size(self, node: int) -> int:
        """Bytes of a file; 0 for a folder; length of the target for a link."""
        return self._sizes[node]

    def stat(self, node: int) -> Stat:
        # As `Stat(...)`, without the Python function of a named tuple: a hot path.
        return tuple.__new__(Stat, (node + 1, self._modes[node], self._sizes[node], self._mtimes_ns[node]))

    def target(self, node: int) -> bytes:
        """Target of the symbolic link `node`. Raises NotFound if it is not a link."""
        nodes = self.column("link_nodes")
        link = int(np.searchsorted(nodes, node))
        if link == len(nodes) or nodes[link] != node:
            raise NotFound(f"{printable(self.path(node))}: not a symbolic link")
        ends = self._columns["link_ends"]
        return bytes(self._columns["links"][ends[link - 1] if link else 0 : ends[link]])

    def extents(self, node: int, start: int = 0, end: int | None = None) -> list[ExtentRef]:
        """The extents of a file that hold its bytes from `start` up to `end` (default: all), in order."""
        if not stat.S_ISREG(self._modes[node]):
            return []
        first, count = self._firsts[node], self._counts[node]
        chosen = range(first, first + count)
        if count > 1:
            places = self.column("extent_places")[first : first + count]
            stop = self._sizes[node] if end is None else end
            chosen = range(
                first + max(int(np.searchsorted(places, start, side="right")) - 1, 0),
                first + int(np.searchsorted(places, stop, side="left")),
            )
        columns = self._columns
        digests = columns["extent_digests"]
        return [
            ExtentRef(
                columns["extent_places"][extent],
                columns["extent_chunks"][extent],
                columns["extent_offsets"][extent],
                columns["extent_lengths"][extent],
                bytes(digests[EXTENT_DIGEST_BYTES * extent : EXTENT_DIGEST_BYTES * (extent + 1)]),
            )
            for extent in chosen
        ]

    def extent_numbers(self, node: int, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The number of the extent with each of these bytes of a file, which has bytes: shape (n,), as `places`."""
        first, count = int(self._firsts[node]), int(self._counts[node])
        begins = self.column("extent_places")[first : first + count].astype(
            np.int64
        )  # a search in one type is faster
        numbers: npt.NDArray[np.int64] = first + np.searchsorted(begins, places, side="right") - 1
        return numbers

    def extent_refs(self, numbers: npt.NDArray[np.integer]) -> list[ExtentRef]:
        """Extents by their numbers, which are places in the columns of extents: shape (n,)."""
        names = ("places", "chunks", "offsets", "lengths", "digests")
        return [*map(ExtentRef, *(self.column(f"extent_{name}")[numbers].tolist() for name in names))]

    def sole_extents(self, nodes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], ...]:
        """As `sole_extent` of many nodes, as three columns of shape (n,); chunk -1 stands for None."""
        return _sole_extents(self._columns, nodes)

    def sole_extent_refs(self, nodes: Sequence[int]) -> list[ExtentRef]:
        """The extent of each node; empty unless all are files of one extent."""
        wanted = np.asarray(nodes, np.int64)
        chunks, *_ = self.sole_extents(wanted)
        if not len(wanted) or chunks.min() < 0:
            return []
        return self.extent_refs(self.column("firsts")[wanted])

    # -- chunks ------------------------------------------------------------------------------------------

    @property
    def chunk_count(self) -> int:
        return self.header.chunks

    def chunk_id(self, chunk: int) -> bytes:
        return bytes(self._columns["chunk_ids"][16 * chunk : 16 * chunk + 16])

    def chunk_payload_length(self, chunk: int) -> int:
        return int(self._columns["chunk_payload_lengths"][chunk])

    def chunk_digest(self, chunk: int) -> bytes:
        """The digest of the chunk's payload."""
        return bytes(self._columns["chunk_digests"][DIGEST_BYTES * chunk : DIGEST_BYTES * (chunk + 1)])

    # -- verification ------------------------------------------------------------------------------------

    def verify(self, parts: "Sequence[Part] | None" = None) -> None:
        """Check the digest and the consistency of all columns. Raises Damaged.

        Called once, when a snapshot arrives. Later, the columns are used without checks. `parts`: those that
        `apply_delta` gave for this one, made of a verified snapshot. Only these are checked then, and not the digest,
        which was computed as the file was written.
        """
        from dieselfs.snapshot.check import ColumnFault, check_changed, check_columns  # mounts do not verify

        columns = {name: self.column(name) for name in SECTION_TYPES}
        if parts is None:
            check_digest(self._view, self.header, self.source)
        try:
            if parts is None:
                check_columns(self.header, columns)
            else:
                check_changed(self.header, columns, parts)
        except ColumnFault as fault:
            offset = self.header.sections[fault.section].offset
            raise Damaged(f"{self.source}: offset {offset}: {fault}") from None


def _column(columns: Mapping[str, memoryview], name: str) -> npt.NDArray[Any]:
    return np.frombuffer(columns[name], SECTION_TYPES[name])


def _sole_extents(
    columns: Mapping[str, memoryview], nodes: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], ...]:
    """See `Snapshot.sole_extents`. A function, so that a closure of a snapshot need not refer to it: it could not be
    freed before a garbage collection.
    """
    modes, counts = _column(columns, "modes")[nodes], _column(columns, "counts")[nodes]
    is_sole = (counts == 1) & (modes & np.uint32(_TYPE_BITS) == stat.S_IFREG)
    if not is_sole.any():
        return np.full(len(nodes), -1), np.zeros(len(nodes), np.int64), np.zeros(len(nodes), np.int64)
    extents = np.where(is_sole, _column(columns, "firsts")[nodes], 0)
    chunks, offsets, lengths = (
        _column(columns, f"extent_{name}")[extents].astype(np.int64)
        for name in ("chunks", "offsets", "lengths")
    )
    return np.where(is_sole, chunks, -1), offsets, offsets + lengths
