"""Builds a snapshot from the live entries of a generation, in bounded memory.

Nodes are numbered level by level: the root, its children by name, then the children of each folder among these, and so
on. So the children of a folder are contiguous and sorted, and numbers depend only on the content. Folders without an
entry of their own (a file `a/b` was put, `a` never) exist with mode 0755 and the newest time of their content (0 if
that is older). If a file and a folder of one path exist (by two concurrent writers), the folder hides the file.

Entries arrive folder by folder, and are spilled. The order of the folders then says which run of rows becomes which run
of nodes, and the columns are written block by block. In memory are folders, chunks, and one block.
"""

import stat
from collections.abc import Sequence
from io import BytesIO
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Hashes, Numbers
from dieselfs.chunk.format import Op
from dieselfs.columns import U8, U64, starts_of
from dieselfs.digests import DIGESTS
from dieselfs.names import split_path
from dieselfs.records import ChunkRecord, DatasetRecord, EntryTable
from dieselfs.snapshot.encoding import Seal, SnapshotWriter, unsigned
from dieselfs.snapshot.format import COUNT_MAX, SECTION_TYPES, SnapshotHeader, check_counts, exact_lengths
from dieselfs.snapshot.hash_index import hash_bits_for, hash_seed, hashes_of, slot_blocks
from dieselfs.snapshot.numbering import Numbering, Run
from dieselfs.snapshot.rows import IMPLICIT, Rows, SpilledRows, Totals
from dieselfs.snapshot.rows import IMPLICIT_FOLDER_MODE as IMPLICIT_FOLDER_MODE
from dieselfs.snapshot.spill import Spill
from dieselfs.snapshot.splice import runs_of

BLOCK_NODES = 1 << 16
"""Nodes whose columns are made at a time."""
INDEX_ENTRIES = 1 << 22
"""Entries of the index that are made at a time."""

_TYPE_BITS = np.zeros(256, np.uint32)
_TYPE_BITS[[Op.FILE, Op.DIRECTORY, Op.SYMLINK]] = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
_TIMES_AT_ONCE = 1 << 20


def build_snapshot(table: EntryTable, header: SnapshotHeader | None = None) -> bytes:
    """The snapshot file of a generation, in memory. Takes 2 to 4 us per entry. Raises InvalidInput beyond COUNT_MAX.

    `header`: of a snapshot with other names of the same entries. What it says about the dataset, and its chunks, stay;
    by default the table says it, and only chunks in which an extent lies are listed.
    """
    builder = SnapshotBuilder()
    builder.add(table)
    file = BytesIO()
    builder.write(file, header=header)
    return file.getvalue()


class SnapshotBuilder:
    """Takes the entries of one generation in blocks; `write` makes the file. Both raise StorageFull of the scratch.

    It has 600 bytes of memory per folder, and about 400 MB besides, however many files there are.
    """

    def __init__(self, scratch: str | None = None) -> None:
        """`scratch`: a folder for unnamed files, about 80 bytes per entry; None: in memory."""
        self._scratch = scratch
        self._spilled = SpilledRows(scratch)
        self._rows: Rows | None = None
        self.dataset: DatasetRecord
        self.chunk_table: Sequence[ChunkRecord]
        """All chunks of the generation, also those that the snapshot does not list. Both are set by the first block."""

    def add(self, block: EntryTable) -> None:
        """Add the next entries. At least one block, which may be empty; entries of a folder follow one another. Raises
        InvalidInput for more than COUNT_MAX chunks.
        """
        check_counts({"chunks": len(block.chunk_table)})
        self.dataset, self.chunk_table = block.dataset, block.chunk_table
        self._spilled.add(block)

    def write(self, file: BinaryIO, seal: Seal = unsigned, header: SnapshotHeader | None = None) -> bytes:
        """Write the snapshot into `file`, which is empty, seekable and readable; returns its digest. May be repeated.
        `header`: as of `build_snapshot`. Raises InvalidInput beyond COUNT_MAX, OSError of the file.
        """
        spilled, about = self._spilled, header or self.dataset
        rows = self._rows = self._rows or spilled.finished()
        tree = Numbering(spilled.runs, spilled.explicit, spilled.root_row, rows.name)
        is_listed = np.ones(len(self.chunk_table), np.bool_)
        if header is None:
            is_listed = listed_chunks(rows.used_chunks(tree.hidden, len(is_listed)))
        totals = rows.totals(tree.hidden)
        nodes = int(tree.runs.counts.sum())
        numbers = {
            "nodes": nodes,
            "files": totals.files,
            "total_bytes": totals.total_bytes,
            "extents": totals.extents,
            "links": totals.links,
            "chunks": int(is_listed.sum()),
            "hash_bits": hash_bits_for(nodes),
        }
        lengths = {**exact_lengths(numbers), "paths": _path_bytes(tree, totals), "links": totals.link_bytes}
        writer = SnapshotWriter(file, about, numbers, lengths)
        columns = _Columns(rows, tree, writer, is_listed, hash_seed(about.dataset_id))
        hashes = Spill(U64, self._scratch)
        for block in tree.blocks(BLOCK_NODES):
            hashes.append(columns.write(block))
        columns.write_folder_times()
        _write_chunks(writer, self.chunk_table, is_listed)
        for slots in slot_blocks(hashes.values(), INDEX_ENTRIES):
            writer.put("hash_slots", slots)
        return writer.finish(seal)


def listed_chunks(is_used: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The chunks that a snapshot lists: those in which an extent lies. Which of the others still exist depends on the
    last purge.
    """
    return is_used


def _path_bytes(tree: Numbering, totals: Totals) -> int:
    prefixes = int((_prefix_lengths(tree) * tree.child_counts).sum())
    implicit = sum(len(_implicit_name(tree, rank)) for rank in tree.implicit.tolist())
    return prefixes + totals.name_bytes + implicit


def _prefix_lengths(tree: Numbering) -> Numbers:
    lengths = np.fromiter(map(len, tree.folders), np.int64, len(tree.folders))
    return lengths + (lengths > 0)


def _implicit_name(tree: Numbering, rank: int) -> bytes:
    return split_path(tree.folders[rank])[1]


class _Columns:
    """Writes the columns of nodes, extents and links, a block of nodes at a time."""

    def __init__(
        self, rows: Rows, tree: Numbering, writer: SnapshotWriter, is_listed: npt.NDArray[np.bool_], seed: int
    ) -> None:
        self._rows, self._tree, self._writer = rows, tree, writer
        # The last is for chunks that the table lacks, in damaged metadata.
        self._chunk_numbers = np.append(np.cumsum(is_listed) - 1, COUNT_MAX)
        self._seed = seed
        self._prefix_lengths = _prefix_lengths(tree)
        self._folder_nodes = np.zeros(len(tree.folders), np.int64)
        self._folders = self._implicit = 0  # how many were written
        self._nodes = self._extents = self._path_end = self._link_end = 0

    def write(self, block: Run) -> Hashes:
        """Write the next nodes; returns the hashes of their paths."""
        writer, tree = self._writer, self._tree
        rows = runs_of(block.rows, block.counts)
        records = self._rows.records[rows]
        ops, sizes = records["op"], records["size"]
        is_folder = ops == Op.DIRECTORY
        ranks = slice(self._folders, self._folders + int(is_folder.sum()))
        self._folder_nodes[ranks] = self._nodes + np.flatnonzero(is_folder)
        owners = np.repeat(block.owners, block.counts)
        for name, values in (
            ("parents", self._folder_nodes[owners]),
            ("modes", records["mode"] | _TYPE_BITS[ops]),
            ("sizes", sizes),
            ("mtimes_ns", records["mtime_ns"]),
        ):
            writer.put(name, values)
        hashes = self._write_paths(block, records["name_end"], owners)
        counts = self._write_extents(rows, records)
        firsts = self._extents + starts_of(counts)
        self._extents += int(counts.sum())
        firsts[is_folder], counts[is_folder] = tree.child_firsts[ranks], tree.child_counts[ranks]
        writer.put("firsts", firsts)
        writer.put("counts", counts)
        links = np.flatnonzero(ops == Op.SYMLINK)
        if len(links):
            targets, starts, lengths = self._rows.link_ranges(rows[links])
            writer.put("link_nodes", self._nodes + links)
            writer.put("link_ends", self._link_end + np.cumsum(lengths))
            writer.put("links", targets[runs_of(starts, lengths)])
            self._link_end += int(lengths.sum())
        self._folders = ranks.stop
        self._nodes += len(rows)
        return hashes

    def _write_paths(self, block: Run, name_ends: Numbers, owners: Numbers) -> Hashes:
        name_starts, run_places = self._rows.name_starts(block.rows), starts_of(block.counts)
        lengths = np.diff(name_ends, prepend=0) - 1
        lengths[run_places] = name_ends[run_places] - name_starts
        last_ends = name_ends[run_places + block.counts - 1]
        parts = []
        folders, names = self._tree.folders, self._rows.names
        runs = (block.rows, block.owners, name_starts, last_ends, run_places)
        for row, owner, start, end, place in zip(*(each.tolist() for each in runs), strict=True):
            prefix = folders[owner] + b"/" if folders[owner] else b""
            if row == IMPLICIT:
                joined = _implicit_name(self._tree, int(self._tree.implicit[self._implicit]))
                lengths[place] = len(joined)
                self._implicit += 1
            else:
                joined = names[start:end].tobytes()  # with slashes between the names
            parts.append(prefix + joined.replace(b"/", prefix))
        paths = b"".join(parts)
        ends = np.cumsum(self._prefix_lengths[owners] + lengths)
        self._writer.put("name_lengths", lengths)
        self._writer.put("path_ends", self._path_end + ends)
        self._writer.put("paths", np.frombuffer(paths, U8))
        self._path_end += len(paths)
        return hashes_of(paths, ends, self._seed)

    def _write_extents(self, rows: Numbers, records: npt.NDArray[Any]) -> Numbers:
        """Returns the number of extents of each node."""
        has_bytes = (records["op"] == Op.FILE) & (records["size"] > 0)
        single = np.flatnonzero(has_bytes & (records["chunk"] > 0))
        spanning = np.flatnonzero(has_bytes & (records["chunk"] == 0))
        counts = np.zeros(len(rows), np.int64)
        counts[single] = 1
        firsts, piece_counts = self._rows.piece_runs(rows[spanning])
        counts[spanning] = piece_counts
        places = starts_of(counts)
        own, others = places[single], runs_of(places[spanning], piece_counts)
        pieces = self._rows.pieces[runs_of(firsts, piece_counts)]
        records = records[single]
        for name, values, of_pieces in (
            ("chunks", records["chunk"] - 1, pieces["chunk"]),
            ("offsets", records["offset"], pieces["offset"]),
            ("lengths", records["size"], pieces["length"]),
            ("places", 0, pieces["place"]),
            ("digests", records["digest"], pieces["digest"]),
        ):
            column = np.empty(int(counts.sum()), SECTION_TYPES[f"extent_{name}"])
            column[own], column[others] = values, of_pieces
            if name == "chunks":
                column = self._chunk_numbers[np.minimum(column, len(self._chunk_numbers) - 1)]
            self._writer.put(f"extent_{name}", column)
        return counts

    def write_folder_times(self) -> None:
        """Give implicit folders the newest time in them. Children have larger numbers than their folder."""
        for rank in self._tree.implicit[::-1].tolist():
            first, newest = int(self._tree.child_firsts[rank]), 0
            end = first + int(self._tree.child_counts[rank])
            for start in range(first, end, _TIMES_AT_ONCE):
                times = self._writer.read("mtimes_ns", start, min(_TIMES_AT_ONCE, end - start))
                newest = max(newest, int(times.max()))
            self._writer.replace("mtimes_ns", int(self._folder_nodes[rank]), np.array([newest]))


def _write_chunks(
    writer: SnapshotWriter, chunks: Sequence[ChunkRecord], is_listed: npt.NDArray[np.bool_]
) -> None:
    listed = [chunks[number] for number in np.flatnonzero(is_listed).tolist()]
    writer.put("chunk_ids", np.frombuffer(b"".join(chunk.chunk_id for chunk in listed), U8))
    writer.put("chunk_digests", np.frombuffer(b"".join(chunk.payload_digest for chunk in listed), DIGESTS))
    writer.put("chunk_payload_lengths", np.array([chunk.payload_length for chunk in listed], np.uint32))
