"""Writes the snapshot that the columns of a delta make of another one, block by block.

Where a block begins in each column follows from the base and from the changes before it, so blocks are written in any
order: first the index and all blocks with a change, then the copies in the order of the file, while the digest is
computed. In memory are the changes and one block, however large the snapshots are.
"""

import stat
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Hashes, Keys, Numbers
from dieselfs.columns import U8, U64, ends_fault, starts_of
from dieselfs.limits import PATH_BYTES_MAX
from dieselfs.records import DatasetRecord
from dieselfs.snapshot.block_starts import Amounts, RunningSums, Starts, amounts_gone, path_lengths_of
from dieselfs.snapshot.check import Part
from dieselfs.snapshot.encoding import Seal, SnapshotWriter
from dieselfs.snapshot.format import COUNT_MAX, EXTENT_COLUMNS, SECTION_TYPES, SnapshotHeader, exact_lengths
from dieselfs.snapshot.hash_index import changed_slots, hash_bits_for, hash_seed, hashes_of, slot_blocks
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.spill import Spill
from dieselfs.snapshot.splice import Splice, is_ascending, runs_of

BLOCK_NODES = 1 << 16
"""Nodes whose columns are copied at a time."""
CHANGED_NODES = 1 << 12
"""Nodes whose columns are made at a time, around a change."""
INDEX_ENTRIES = 1 << 22
"""Entries of the index that are made at a time."""

_TYPE_MASK = np.uint32(0o170000)
_EXTENTS_AT_ONCE = 1 << 20
_ATTRIBUTES = ("modes", "sizes", "mtimes_ns")

Columns = Mapping[str, npt.NDArray[Any]]


class _Copy(NamedTuple):
    """A block of new nodes, from `first` on, in which nothing changes: the old nodes, their extents and links, and how
    much more is before the new ones.
    """

    first: int
    nodes: slice
    extents: slice
    links: slice
    shift: Amounts


class Spliced:
    """The snapshot that `changes`, the columns of a delta, make of `base`. Methods raise IndexError, ValueError and
    OverflowError if they do not fit.
    """

    def __init__(self, base: Snapshot, changes: Columns) -> None:
        _check_lengths(changes)
        self._base, self._changes = base, changes
        self._numbers = changes["nodes"].astype(np.int64)
        self._is_added = changes["path_lengths"] > 0
        self._nodes = Splice(len(base), changes["removed"], self._numbers[self._is_added])
        if not is_ascending(self._numbers, self._nodes.count):
            raise IndexError("nodes do not ascend, or are out of range")
        self._chunks = Splice(base.chunk_count, changes["removed_chunks"], changes["chunks"])
        replaced = self._nodes.old_of_new(self._numbers[~self._is_added])
        gone = np.concatenate((self._nodes.removed, replaced))
        order = np.argsort(gone)
        self._gone = gone[order]
        """Old nodes whose attributes, extents and targets are not in the new snapshot."""
        self._gone_types = base.types(self._gone)
        self._types = changes["modes"] & _TYPE_MASK
        if changes["extent_counts"][self._types != stat.S_IFREG].any():
            raise IndexError("column 'extent_counts': not a file")
        self._extent_starts = starts_of(changes["extent_counts"])
        self._path_ends = np.cumsum(changes["path_lengths"][self._is_added], dtype=np.int64)
        is_link = self._types == stat.S_IFLNK
        if is_link.any() and changes["sizes"][is_link].max() > PATH_BYTES_MAX:  # their sum could overflow
            raise IndexError("column 'sizes': a target is too long")
        link_lengths = np.where(is_link, changes["sizes"], 0)
        self._link_ends = np.cumsum(link_lengths, dtype=np.int64)
        for ends, name in ((self._path_ends, "paths"), (self._link_ends, "links")):
            if (fault := ends_fault(ends, len(changes[name]))) is not None:
                raise IndexError(f"column {name!r}: {fault}")
        self._name_lengths = self._added_name_lengths()
        self._children = self._changed_children()
        gone_amounts = amounts_gone(base, self._gone, order < len(self._nodes.removed))
        of_changed = (changes["path_lengths"], 0, changes["extent_counts"], is_link, link_lengths)
        self._starts = Starts(
            base,
            self._nodes,
            RunningSums(self._gone, gone_amounts),
            RunningSums(self._numbers, of_changed),
            RunningSums(self._children[0], (0, self._children[1], 0, 0, 0)),
        )
        if max(map(self.counts().__getitem__, ("nodes", "extents"))) > COUNT_MAX:
            raise IndexError(f"a snapshot holds at most {COUNT_MAX} entries")
        self.parts: list[Part] = []
        """Blocks with a change, and the first one: set by `write`."""

    def counts(self) -> dict[str, int]:
        """Of the new snapshot: nodes, files, total_bytes, extents, links, hash_bits."""
        header, base = self._base.header, self._base
        is_old, is_new = self._gone_types == stat.S_IFREG, self._types == stat.S_IFREG
        shift = self._starts.shift(self._nodes.count, self._nodes.old_count)
        return {
            "nodes": self._nodes.count,
            "files": header.files - int(is_old.sum()) + int(is_new.sum()),
            "total_bytes": header.total_bytes
            - int(base.column("sizes")[self._gone[is_old]].sum())
            + int(self._changes["sizes"][is_new].sum()),
            "extents": header.extents + shift.extents,
            "links": header.links + shift.links,
            "hash_bits": hash_bits_for(self._nodes.count),
        }

    def write(
        self, file: BinaryIO, about: DatasetRecord | SnapshotHeader, seal: Seal, is_each_chunk_listed: bool
    ) -> bytes:
        """Write the snapshot into `file`, which is empty, seekable and readable; returns its digest. By default chunks
        without an extent are not listed. Raises OSError of the file. May be repeated.
        """
        base, count = self._base, self._nodes.count
        is_listed = np.ones(self._chunks.count, np.bool_) if is_each_chunk_listed else self._is_used
        numbers = {**self.counts(), "chunks": int(is_listed.sum())}
        shift = self._starts.shift(count, len(base))
        if len(base) + shift.children != count:
            raise IndexError("not every node is in exactly one folder")
        lengths = {
            **exact_lengths(numbers),
            "paths": len(base.column("paths")) + shift.path_bytes,
            "links": len(base.column("links")) + shift.link_bytes,
        }
        writer = SnapshotWriter(file, about, numbers, lengths)
        for name, column in self._chunk_columns().items():
            writer.put(name, column[is_listed])
        self.parts = []
        self._new_chunks = np.cumsum(is_listed) - 1
        # The last is for removed chunks.
        moved = np.append(self._new_chunks, -1)[self._chunks.new_of_old(np.arange(base.chunk_count))]
        self._moved_chunks = None if np.array_equal(moved, np.arange(base.chunk_count)) else moved
        copies = [*self._copies(writer)]
        if numbers["hash_bits"] == base.header.hash_bits:
            self._write_index(writer, self._changed_index())
            with writer.in_order():
                self._write_copies(writer, copies)
        else:
            self._write_copies(writer, copies)
            self._write_index(writer, slot_blocks(self._hashes(writer), INDEX_ENTRIES))
        return writer.finish(seal)

    def _copies(self, writer: SnapshotWriter) -> Iterator[_Copy]:
        """Writes the blocks with a change; yields the others."""
        for first, end, old in self._blocks(0, self._nodes.count, BLOCK_NODES):
            if old is None or not first:
                before = self._starts.before(first)
                self.parts.append(Part(slice(first, end), before.children, before.extents, before.links))
            if old is None:
                self._write_block(writer, first, end, before)
            else:
                yield self._copy(first, old)

    def _blocks(self, first: int, end: int, size: int) -> Iterator[tuple[int, int, slice | None]]:
        """Blocks of new nodes, and the old nodes that stand there if none of these changes."""
        for start in range(first, end, size):
            stop = min(start + size, end)
            old = self._unchanged(start, stop)
            if (old is None or not start) and size > CHANGED_NODES:
                yield from self._blocks(start, stop, CHANGED_NODES)
            else:
                yield start, stop, old

    def _added_name_lengths(self) -> Numbers:
        paths = [self._added_path(number) for number in range(len(self._path_ends))]
        lengths = np.array([len(path) - path.rfind(b"/") - 1 for path in paths], np.int64)
        if int(lengths.max(initial=0)) > 255:
            raise IndexError("a name is too long")
        return lengths

    def _added_path(self, number: int) -> bytes:
        start = int(self._path_ends[number - 1]) if number else 0
        path: bytes = self._changes["paths"][start : self._path_ends[number]].tobytes()
        return path

    def _changed_children(self) -> tuple[Numbers, Numbers]:
        """The new folders that have other children than before, ascending, and by how many more."""
        before = self._nodes.new_of_old(self._base.column("parents")[self._nodes.removed].astype(np.int64))
        now = self._changes["parents"][self._is_added].astype(np.int64)
        if int(now.max(initial=0)) >= self._nodes.count:
            raise IndexError("a node is in no folder")
        folders, places = np.unique(np.concatenate((before[before >= 0], now)), return_inverse=True)
        signs = np.concatenate((np.full(int((before >= 0).sum()), -1), np.ones(len(now), np.int64)))
        return folders, np.bincount(places, signs, len(folders)).astype(np.int64)

    @cached_property
    def _is_used(self) -> npt.NDArray[np.bool_]:
        """In which chunks an extent lies: shape (chunks of the new snapshot,)."""
        base, files = self._base, self._gone[self._gone_types != stat.S_IFDIR]
        gone = runs_of(
            base.column("firsts")[files].astype(np.int64), base.column("counts")[files].astype(np.int64)
        )
        was_used = np.zeros(base.chunk_count, np.bool_)
        for start in range(0, base.header.extents, _EXTENTS_AT_ONCE):
            chunks = base.column("extent_chunks")[start : start + _EXTENTS_AT_ONCE]
            first, last = np.searchsorted(gone, (start, start + len(chunks)))
            chunks = np.delete(chunks, gone[first:last] - start) if first < last else chunks
            # Neighbours mostly share a chunk: one of each run is enough.
            was_used[chunks[np.flatnonzero(chunks[1:] != chunks[:-1])]] = True
            was_used[chunks[-1:]] = True
        kept = self._chunks.new_of_old(np.flatnonzero(was_used))
        if int(kept.min(initial=0)) < 0:
            raise IndexError("an extent is in a chunk that is removed")
        is_used = np.zeros(self._chunks.count, np.bool_)
        is_used[kept] = True
        is_used[self._changes["extent_chunks"]] = True
        return is_used

    def _unchanged(self, first: int, end: int) -> slice | None:
        """The old nodes that stand at the places from `first` to `end`, if none of these is changed, added, or a folder
        with other children.
        """
        for places in (self._numbers, self._children[0]):
            if np.ptp(np.searchsorted(places, (first, end))):
                return None
        start, last = self._nodes.old_of_new(np.array([first, end - 1])).tolist()
        return slice(start, last + 1) if last - start == end - 1 - first else None

    def _copy(self, first: int, old: slice) -> _Copy:
        base = self._base
        others, extents = np.flatnonzero(base.types(old) != stat.S_IFDIR), slice(0, 0)
        if len(others):
            begin, last = (old.start + others[[0, -1]]).tolist()
            firsts, counts = base.column("firsts"), base.column("counts")
            extents = slice(int(firsts[begin]), int(firsts[last]) + int(counts[last]))
        bounds = np.array([old.start, old.stop], np.uint32)  # with another type, the column would be copied
        links = slice(*np.searchsorted(base.column("link_nodes"), bounds).tolist())
        return _Copy(first, old, extents, links, self._starts.shift(first, old.start))

    def _write_copies(self, writer: SnapshotWriter, copies: Sequence[_Copy]) -> None:
        """Write nodes that stay together, a column at a time: what points to others is shifted by a constant."""
        base = self._base
        for name in SECTION_TYPES:
            if name in ("chunk_ids", "chunk_digests", "chunk_payload_lengths", "hash_slots"):
                continue
            column = base.column(name)
            for copy in copies:
                place = copy.first
                if name in EXTENT_COLUMNS:
                    some, place = copy.extents, copy.extents.start + copy.shift.extents
                elif name.startswith("link_"):
                    some, place = copy.links, copy.links.start + copy.shift.links
                elif name == "paths":
                    some = _range(base.column("path_ends"), copy.nodes)
                    place = some.start + copy.shift.path_bytes
                elif name == "links":
                    some = _range(base.column("link_ends"), copy.links)
                    place = some.start + copy.shift.link_bytes
                else:
                    some = copy.nodes
                if some.start < some.stop:
                    writer.put(name, self._moved(name, column[some], copy), place)

    def _moved(self, name: str, values: npt.NDArray[Any], copy: _Copy) -> npt.NDArray[Any]:
        """The new values of copied nodes in a column."""
        if name == "path_ends":
            return _plus(values, copy.shift.path_bytes)
        if name == "link_ends":
            return _plus(values, copy.shift.link_bytes)
        if name == "link_nodes":
            return _plus(values, copy.first - copy.nodes.start)
        if name == "extent_chunks":
            return self._moved_extents(values)
        if name == "parents":
            return self._moved_parents(values)
        if name == "firsts":
            is_folder, moved = self._base.types(copy.nodes) == stat.S_IFDIR, _plus(values, copy.shift.extents)
            if is_folder.any():
                moved = np.where(is_folder, _plus(values, copy.shift.children), moved)
            return moved
        return values

    def _moved_extents(self, chunks: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
        """The new numbers of chunks in which extents of the base lie."""
        if self._moved_chunks is None:
            return chunks
        moved: Numbers = self._moved_chunks[chunks]
        if int(moved.min(initial=0)) < 0:
            raise IndexError("an extent is in a chunk that is removed")
        return moved

    def _moved_parents(self, old: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The new numbers of folders, which ascend."""
        bounds = old[[0, -1]].astype(np.int64)
        moved = self._nodes.new_of_old(bounds)
        is_constant = not np.ptp(moved - bounds) and not np.ptp(np.searchsorted(self._nodes.removed, bounds))
        if not is_constant:
            moved = self._nodes.new_of_old(old.astype(np.int64))
        if int(moved.min()) < 0:
            raise IndexError("a node is in no folder")
        return _plus(old, int(moved[0] - bounds[0])) if is_constant else moved

    def _hashes(self, writer: SnapshotWriter) -> Hashes:
        """Of the paths of all nodes, which were written."""
        hashes, start = Spill(U64, None), 0
        for first in range(0, self._nodes.count, BLOCK_NODES):
            count = min(BLOCK_NODES, self._nodes.count - first)
            ends = writer.read("path_ends", first, count).astype(np.int64)
            blob = writer.read("paths", start, int(ends[-1]) - start).tobytes()
            hashes.append(hashes_of(blob, ends - start, hash_seed(self._base.header.dataset_id)))
            start = int(ends[-1])
        return hashes.values()

    def _write_block(self, writer: SnapshotWriter, first: int, end: int, before: Amounts) -> None:
        """`before`: what the nodes before `first` have."""
        base, changes = self._base, self._changes
        old = self._nodes.old_of_new(np.arange(first, end))
        is_added = old < 0
        sources = np.where(is_added, 0, old)
        changed = slice(*np.searchsorted(self._numbers, (first, end)).tolist())
        places = self._numbers[changed] - first
        attributes = {}
        for name in _ATTRIBUTES:
            attributes[name] = base.column(name)[sources]
            attributes[name][places] = changes[name][changed]
            writer.put(name, attributes[name], first)
        parents = self._nodes.new_of_old(base.column("parents")[sources].astype(np.int64))
        parents[is_added] = changes["parents"][changed][self._is_added[changed]]
        if int(parents.min()) < 0:
            raise IndexError("a node is in no folder")
        writer.put("parents", parents, first)
        self._write_paths(writer, first, old, before.path_bytes)

        types = attributes["modes"] & _TYPE_MASK
        was_folder = base.types(sources) == stat.S_IFDIR
        counts = base.column("counts")[sources].astype(np.int64)
        extents = np.where(was_folder, 0, counts)
        extents[places] = changes["extent_counts"][changed]
        children = np.where(was_folder & ~is_added, counts, 0)
        folders, more = self._children
        some = slice(*np.searchsorted(folders, (first, end)).tolist())
        children[folders[some] - first] += more[some]
        is_folder = types == stat.S_IFDIR
        if children[~is_folder].any():
            raise IndexError("not every node is in exactly one folder")
        writer.put("counts", np.where(is_folder, children, extents), first)
        child_firsts, extent_firsts = (
            1 + before.children + starts_of(children),
            before.extents + starts_of(extents),
        )
        writer.put("firsts", np.where(is_folder, child_firsts, extent_firsts), first)
        starts = base.column("firsts")[sources].astype(np.int64)
        starts[places] = base.header.extents + self._extent_starts[changed]
        self._write_extents(writer, runs_of(starts, extents), before.extents)
        is_link = types == stat.S_IFLNK
        if is_link.any():
            self._write_links(writer, first + np.flatnonzero(is_link), old[is_link], before)

    def _write_paths(self, writer: SnapshotWriter, first: int, old: Numbers, before: int) -> None:
        base = self._base
        is_added = old < 0
        added = np.searchsorted(self._nodes.added, first) + np.arange(int(is_added.sum()))
        lengths = path_lengths_of(base, np.maximum(old, 0))
        lengths[is_added] = np.diff(self._path_ends, prepend=0)[added]
        names = base.column("name_lengths")[np.maximum(old, 0)]
        names[is_added] = self._name_lengths[added]
        writer.put("name_lengths", names, first)
        ends = before + np.cumsum(lengths)
        writer.put("path_ends", ends, first)
        bounds = [0, *(np.flatnonzero((np.diff(old) != 1) | is_added[1:]) + 1).tolist(), len(old)]
        paths, old_ends, numbers = base.column("paths"), base.column("path_ends"), iter(added.tolist())
        parts = []
        for start, end in pairwise(bounds):
            node, last = int(old[start]), int(old[end - 1])
            if node < 0:
                parts.append(np.frombuffer(self._added_path(next(numbers)), U8))
            else:
                parts.append(paths[int(old_ends[node - 1]) if node else 0 : int(old_ends[last])])
        writer.put("paths", np.concatenate(parts), before)

    def _write_extents(self, writer: SnapshotWriter, sources: Numbers, first: int) -> None:
        """`sources`: extents of the base, and behind these those of the changes."""
        base, count = self._base, self._base.header.extents
        is_new = sources >= count
        kept, new = sources[~is_new], sources[is_new] - count
        for name in EXTENT_COLUMNS:
            values, added = base.column(name)[kept], self._changes[name][new]
            if name == "extent_chunks":
                values, added = self._moved_extents(values), self._new_chunks[added]
            column = np.empty(len(sources), SECTION_TYPES[name])
            column[~is_new], column[is_new] = values, added
            writer.put(name, column, first)

    def _write_links(self, writer: SnapshotWriter, nodes: Numbers, old: Numbers, before: Amounts) -> None:
        """`nodes`: the links of a block; `old`: where these are in the base."""
        base, targets = self._base, self._base.column("links")
        changed = np.searchsorted(self._numbers, nodes)
        is_new = np.zeros(len(nodes), np.bool_)
        inside = changed < len(self._numbers)
        is_new[inside] = self._numbers[changed[inside]] == nodes[inside]
        ends = np.empty(len(nodes), np.int64)
        lengths = np.empty(len(nodes), np.int64)
        ends[is_new] = len(targets) + self._link_ends[changed[is_new]]
        lengths[is_new] = self._changes["sizes"][changed[is_new]]
        kept = old[~is_new]
        of_base = np.searchsorted(base.column("link_nodes"), kept.astype(np.uint32))
        ends[~is_new] = base.column("link_ends")[of_base]
        lengths[~is_new] = base.column("sizes")[kept]
        content = runs_of(ends - lengths, lengths)
        joined = np.empty(len(content), U8)
        is_old = content < len(targets)
        joined[is_old] = targets[content[is_old]]
        joined[~is_old] = self._changes["links"][content[~is_old] - len(targets)]
        writer.put("link_nodes", nodes, before.links)
        writer.put("link_ends", before.link_bytes + np.cumsum(lengths), before.links)
        writer.put("links", joined, before.link_bytes)

    def _chunk_columns(self) -> dict[str, npt.NDArray[Any]]:
        base, changes, chunks = self._base, self._changes, self._chunks
        return {
            "chunk_ids": chunks.column(
                base.column("chunk_ids").reshape(-1, 16), changes["chunk_ids"].reshape(-1, 16)
            ),
            **{
                name: chunks.column(base.column(name), changes[name])
                for name in ("chunk_digests", "chunk_payload_lengths")
            },
        }

    def _changed_index(self) -> Iterator[Keys]:
        base = self._base
        added = [self._added_path(number) for number in range(len(self._path_ends))]
        return changed_slots(
            base.column("hash_slots"),
            base.header.hash_bits,
            self._nodes,
            added,
            base.path_many,
            base.header.dataset_id,
        )

    def _write_index(self, writer: SnapshotWriter, blocks: Iterator[Keys]) -> None:
        found = 0
        for slots in blocks:
            writer.put("hash_slots", slots)
            found += int(np.count_nonzero(slots))
        if found != self._nodes.count:
            raise IndexError("not every node is in the index")


def _range(ends: npt.NDArray[Any], strings: slice) -> slice:
    """Where these strings are in a column of joined ones."""
    start, stop = (int(ends[number - 1]) if number else 0 for number in (strings.start, strings.stop))
    return slice(start, stop)


def _plus(values: npt.NDArray[Any], more: int) -> npt.NDArray[Any]:
    """Unsigned values, each larger by the same; the same object for 0."""
    return values + values.dtype.type(more % (1 << 8 * values.itemsize)) if more else values


def _check_lengths(changes: Columns) -> None:
    counts = {
        **dict.fromkeys(("path_lengths", "parents", *_ATTRIBUTES, "extent_counts"), len(changes["nodes"])),
        **dict.fromkeys(EXTENT_COLUMNS, int(changes["extent_counts"].sum(dtype=np.uint64))),
        "chunk_ids": 16 * len(changes["chunks"]),
        **dict.fromkeys(("chunk_digests", "chunk_payload_lengths"), len(changes["chunks"])),
    }
    for name, count in counts.items():
        if len(changes[name]) != count:
            raise IndexError(f"column {name!r} has {len(changes[name])} elements, not {count}")
