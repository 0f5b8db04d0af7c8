"""Writes the snapshot that the columns of a delta make of another one, block by block.

In memory are the changes and one block, however large the snapshots are.
"""

import stat
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Hashes, Keys, Numbers
from dieselfs.columns import U8, U64, ends_fault, starts_of
from dieselfs.limits import PATH_BYTES_MAX
from dieselfs.records import DatasetRecord
from dieselfs.snapshot.check import Part
from dieselfs.snapshot.encoding import Seal, SnapshotWriter
from dieselfs.snapshot.format import COUNT_MAX, EXTENT_COLUMNS, SECTION_TYPES, SnapshotHeader, exact_lengths
from dieselfs.snapshot.hash_index import changed_slots, hash_bits_for, hash_seed, hashes_of, slot_blocks
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.spill import Spill
from dieselfs.snapshot.splice import Splice, is_ascending, runs_of

BLOCK_NODES = 1 << 16
"""Nodes whose columns are made at a time."""
INDEX_ENTRIES = 1 << 22
"""Entries of the index that are made at a time."""

_TYPE_MASK = np.uint32(0o170000)
_EXTENTS_AT_ONCE = 1 << 20
_ATTRIBUTES = ("modes", "sizes", "mtimes_ns")

Columns = Mapping[str, npt.NDArray[Any]]


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
        self._gone = np.sort(np.concatenate((self._nodes.removed, replaced)))
        """Old nodes whose attributes, extents and targets are not in the new snapshot."""
        self._gone_types = base.column("modes")[self._gone] & _TYPE_MASK
        self._types = changes["modes"] & _TYPE_MASK
        if changes["extent_counts"][self._types != stat.S_IFREG].any():
            raise IndexError("column 'extent_counts': not a file")
        self._extent_starts = starts_of(changes["extent_counts"])
        self._path_ends = np.cumsum(changes["path_lengths"][self._is_added], dtype=np.int64)
        is_link = self._types == stat.S_IFLNK
        if is_link.any() and changes["sizes"][is_link].max() > PATH_BYTES_MAX:  # their sum could overflow
            raise IndexError("column 'sizes': a target is too long")
        self._link_ends = np.cumsum(np.where(is_link, changes["sizes"], 0), dtype=np.int64)
        for ends, name in ((self._path_ends, "paths"), (self._link_ends, "links")):
            if (fault := ends_fault(ends, len(changes[name]))) is not None:
                raise IndexError(f"column {name!r}: {fault}")
        self._name_lengths = self._added_name_lengths()
        self._children = self._changed_children()
        if max(map(self.counts().__getitem__, ("nodes", "extents"))) > COUNT_MAX:
            raise IndexError(f"a snapshot holds at most {COUNT_MAX} entries")
        self._done = _Done()
        self.parts: list[Part] = []
        """Blocks with a change, and the first one: set by `write`."""

    def counts(self) -> dict[str, int]:
        """Of the new snapshot: nodes, files, total_bytes, extents, links, hash_bits."""
        header, base = self._base.header, self._base
        is_old, is_new = self._gone_types == stat.S_IFREG, self._types == stat.S_IFREG
        counts = base.column("counts")[self._gone[self._gone_types != stat.S_IFDIR]]
        return {
            "nodes": self._nodes.count,
            "files": header.files - int(is_old.sum()) + int(is_new.sum()),
            "total_bytes": header.total_bytes
            - int(base.column("sizes")[self._gone[is_old]].sum())
            + int(self._changes["sizes"][is_new].sum()),
            "extents": header.extents - int(counts.sum()) + len(self._changes["extent_chunks"]),
            "links": header.links
            - int((self._gone_types == stat.S_IFLNK).sum())
            + int((self._types == stat.S_IFLNK).sum()),
            "hash_bits": hash_bits_for(self._nodes.count),
        }

    def write(
        self, file: BinaryIO, about: DatasetRecord | SnapshotHeader, seal: Seal, is_each_chunk_listed: bool
    ) -> bytes:
        """Write the snapshot into `file`, which is empty, seekable and readable; returns its digest. By default chunks
        without an extent are not listed. Raises OSError of the file. May be repeated.
        """
        base = self._base
        is_listed = self._is_used | is_each_chunk_listed
        numbers = {**self.counts(), "chunks": int(is_listed.sum())}
        gone_links = self._gone[self._gone_types == stat.S_IFLNK]
        lengths = {
            **exact_lengths(numbers),
            "paths": len(base.column("paths"))
            - int(_path_lengths(base, self._nodes.removed).sum())
            + len(self._changes["paths"]),
            "links": len(base.column("links"))
            - int(base.column("sizes")[gone_links].sum())
            + len(self._changes["links"]),
        }
        writer = SnapshotWriter(file, about, numbers, lengths)
        self._done, self.parts = _Done(), []
        listed = np.cumsum(is_listed) - 1
        # The last is for removed chunks, in which no extent is left.
        moved = np.append(listed, 0)[self._chunks.new_of_old(np.arange(base.chunk_count))]
        hashes = Spill(U64, None) if numbers["hash_bits"] != base.header.hash_bits else None
        for first in range(0, self._nodes.count, BLOCK_NODES):
            end = min(first + BLOCK_NODES, self._nodes.count)
            old = self._unchanged(first, end)
            if old is None or not first:
                done = self._done
                self.parts.append(Part(slice(first, end), done.children, done.extents, done.links))
            if old is None:
                self._write_block(writer, first, end, (moved, listed))
            else:
                self._copy_block(writer, first, old, moved)
            if hashes is not None:
                hashes.append(self._hashes(writer, first, end))
        if self._done.children != self._nodes.count - 1:
            raise IndexError("not every node is in exactly one folder")
        for name, column in self._chunk_columns().items():
            writer.put(name, column[is_listed])
        found = 0
        for slots in self._index() if hashes is None else slot_blocks(hashes.values(), INDEX_ENTRIES):
            writer.put("hash_slots", slots)
            found += int(np.count_nonzero(slots))
        if found != self._nodes.count:
            raise IndexError("not every node is in the index")
        return writer.finish(seal)

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
            was_used[np.delete(chunks, gone[first:last] - start) if first < last else chunks] = True
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

    def _copy_block(self, writer: SnapshotWriter, first: int, old: slice, moved: Numbers) -> None:
        """Write nodes that stay together: what points to others is shifted by a constant."""
        base, done = self._base, self._done
        for name in ("name_lengths", "counts", *_ATTRIBUTES):
            writer.put(name, base.column(name)[old])
        parents = base.column("parents")[old]
        bounds = parents[[0, -1]].astype(np.int64)
        shifts = self._nodes.new_of_old(bounds) - bounds
        if np.ptp(shifts) or np.ptp(np.searchsorted(self._nodes.removed, bounds)):
            parents = self._moved_parents(parents)
        else:
            parents = parents + shifts[0]
            if int(parents[0]) < 0:
                raise IndexError("a node is in no folder")
        writer.put("parents", parents)
        ends = base.column("path_ends")[old]
        start = int(base.column("path_ends")[old.start - 1]) if old.start else 0
        writer.put("path_ends", ends.astype(np.int64) + (done.path_bytes - start))
        writer.put("paths", base.column("paths")[start : int(ends[-1])])
        done.path_bytes += int(ends[-1]) - start

        firsts, counts = base.column("firsts")[old].astype(np.int64), base.column("counts")[old]
        types = base.column("modes")[old] & _TYPE_MASK
        folders, others = np.flatnonzero(types == stat.S_IFDIR), np.flatnonzero(types != stat.S_IFDIR)
        if len(folders):
            firsts[folders] += 1 + done.children - firsts[folders[0]]
            done.children += int(counts[folders].sum())
        if len(others):
            extent, end = int(firsts[others[0]]), int(firsts[others[-1]] + counts[others[-1]])
            if len(folders):
                firsts[others] += done.extents - extent
            else:
                firsts += done.extents - extent
            for name in EXTENT_COLUMNS:
                values = base.column(name)[extent:end]
                if name == "extent_chunks":
                    writer.put(name, moved[values])
                else:
                    writer.put(name, values)
            done.extents += end - extent
        writer.put("firsts", firsts)
        is_link = types == stat.S_IFLNK
        if is_link.any():
            self._write_links(writer, first, np.flatnonzero(is_link), np.arange(old.start, old.stop))

    def _moved_parents(self, old: npt.NDArray[np.integer]) -> Numbers:
        parents = self._nodes.new_of_old(old.astype(np.int64))
        if int(parents.min()) < 0:
            raise IndexError("a node is in no folder")
        return parents

    def _hashes(self, writer: SnapshotWriter, first: int, end: int) -> Hashes:
        """Of the paths of the nodes from `first` to `end`, which were written last."""
        ends = writer.read("path_ends", first, end - first).astype(np.int64)
        start = int(writer.read("path_ends", first - 1, 1)[0]) if first else 0
        blob = writer.read("paths", start, int(ends[-1]) - start).tobytes()
        return hashes_of(blob, ends - start, hash_seed(self._base.header.dataset_id))

    def _write_block(
        self, writer: SnapshotWriter, first: int, end: int, chunks: tuple[Numbers, Numbers]
    ) -> None:
        """`chunks`: the new numbers of the chunks of the base, and those of the changes."""
        base, changes, done = self._base, self._changes, self._done
        old = self._nodes.old_of_new(np.arange(first, end))
        is_added = old < 0
        sources = np.where(is_added, 0, old)
        changed = slice(*np.searchsorted(self._numbers, (first, end)).tolist())
        places = self._numbers[changed] - first
        attributes = {}
        for name in _ATTRIBUTES:
            attributes[name] = base.column(name)[sources]
            attributes[name][places] = changes[name][changed]
            writer.put(name, attributes[name])
        parents = self._nodes.new_of_old(base.column("parents")[sources].astype(np.int64))
        parents[is_added] = changes["parents"][changed][self._is_added[changed]]
        if int(parents.min()) < 0:
            raise IndexError("a node is in no folder")
        writer.put("parents", parents)
        self._write_paths(writer, first, old)

        types = attributes["modes"] & _TYPE_MASK
        was_folder = base.column("modes")[sources] & _TYPE_MASK == stat.S_IFDIR
        before = base.column("counts")[sources].astype(np.int64)
        extents = np.where(was_folder, 0, before)
        extents[places] = changes["extent_counts"][changed]
        children = np.where(was_folder & ~is_added, before, 0)
        folders, more = self._children
        some = slice(*np.searchsorted(folders, (first, end)).tolist())
        children[folders[some] - first] += more[some]
        is_folder = types == stat.S_IFDIR
        children = np.where(is_folder, children, 0)
        writer.put("counts", np.where(is_folder, children, extents))
        writer.put(
            "firsts",
            np.where(is_folder, 1 + done.children + starts_of(children), done.extents + starts_of(extents)),
        )
        done.children += int(children.sum())
        done.extents += int(extents.sum())
        starts = base.column("firsts")[sources].astype(np.int64)
        starts[places] = base.header.extents + self._extent_starts[changed]
        self._write_extents(writer, runs_of(starts, extents), chunks)
        is_link = types == stat.S_IFLNK
        if is_link.any():
            self._write_links(writer, first, np.flatnonzero(is_link), old)

    def _write_paths(self, writer: SnapshotWriter, first: int, old: Numbers) -> None:
        base = self._base
        is_added = old < 0
        added = np.searchsorted(self._nodes.added, first) + np.arange(int(is_added.sum()))
        lengths = _path_lengths(base, np.maximum(old, 0))
        lengths[is_added] = np.diff(self._path_ends, prepend=0)[added]
        names = base.column("name_lengths")[np.maximum(old, 0)]
        names[is_added] = self._name_lengths[added]
        writer.put("name_lengths", names)
        ends = np.cumsum(lengths)
        writer.put("path_ends", self._done.path_bytes + ends)
        bounds = [0, *(np.flatnonzero((np.diff(old) != 1) | is_added[1:]) + 1).tolist(), len(old)]
        paths, old_ends, numbers = base.column("paths"), base.column("path_ends"), iter(added.tolist())
        for start, end in pairwise(bounds):
            node, last = int(old[start]), int(old[end - 1])
            if node < 0:
                writer.put("paths", np.frombuffer(self._added_path(next(numbers)), U8))
            else:
                writer.put("paths", paths[int(old_ends[node - 1]) if node else 0 : int(old_ends[last])])
        self._done.path_bytes += int(ends[-1])

    def _write_extents(
        self, writer: SnapshotWriter, sources: Numbers, chunks: tuple[Numbers, Numbers]
    ) -> None:
        """`sources`: extents of the base, and behind these those of the changes."""
        base, count = self._base, self._base.header.extents
        is_new = sources >= count
        kept, new = sources[~is_new], sources[is_new] - count
        for name in EXTENT_COLUMNS:
            values, added = base.column(name)[kept], self._changes[name][new]
            if name == "extent_chunks":
                values, added = chunks[0][values], chunks[1][added]
            column = np.empty(len(sources), SECTION_TYPES[name])
            column[~is_new], column[is_new] = values, added
            writer.put(name, column)

    def _write_links(self, writer: SnapshotWriter, first: int, places: Numbers, old: Numbers) -> None:
        base, targets = self._base, self._base.column("links")
        changed = np.searchsorted(self._numbers, first + places)
        is_new = np.zeros(len(places), np.bool_)
        inside = changed < len(self._numbers)
        is_new[inside] = self._numbers[changed[inside]] == first + places[inside]
        ends = np.empty(len(places), np.int64)
        lengths = np.empty(len(places), np.int64)
        ends[is_new] = len(targets) + self._link_ends[changed[is_new]]
        lengths[is_new] = self._changes["sizes"][changed[is_new]]
        kept = old[places[~is_new]]
        ends[~is_new] = base.column("link_ends")[np.searchsorted(base.column("link_nodes"), kept)]
        lengths[~is_new] = base.column("sizes")[kept]
        content = runs_of(ends - lengths, lengths)
        joined = np.empty(len(content), U8)
        of_base = content < len(targets)
        joined[of_base] = targets[content[of_base]]
        joined[~of_base] = self._changes["links"][content[~of_base] - len(targets)]
        writer.put("link_nodes", first + places)
        writer.put("link_ends", self._done.link_bytes + np.cumsum(lengths))
        writer.put("links", joined)
        self._done.link_bytes += len(content)
        self._done.links += len(places)

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

    def _index(self) -> Iterator[Keys]:
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


class _Done:
    """What was written of a snapshot."""

    def __init__(self) -> None:
        self.path_bytes = self.children = self.extents = self.links = self.link_bytes = 0


def _path_lengths(snapshot: Snapshot, nodes: Numbers) -> Numbers:
    ends = snapshot.column("path_ends")
    return ends[nodes].astype(np.int64) - np.where(nodes > 0, ends[nodes - 1], 0).astype(np.int64)


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
