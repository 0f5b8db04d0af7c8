"""The live entries of a generation as rows, spilled as they arrive, folder by folder, and read in place."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers, among
from dieselfs.chunk.format import Op
from dieselfs.columns import I64, U8, U32, U64
from dieselfs.digests import EXTENT_DIGESTS
from dieselfs.records import EntryTable
from dieselfs.snapshot.spill import Spill

IMPLICIT_FOLDER_MODE = 0o755
IMPLICIT = -1
"""In place of the row of a folder without an entry: the last row, which has the values of such a folder."""

_BLOCK_ROWS = 1 << 18

_ROW = np.dtype(
    [
        ("mtime_ns", I64),
        ("size", U64),
        ("name_end", I64),  # in the names of all rows, each with a slash behind it
        ("chunk", U32),  # its index plus 1; 0: none, or the file's extents are pieces
        ("offset", U32),
        ("mode", U32),
        ("op", U8),
        ("digest", EXTENT_DIGESTS),
    ]
)
_PIECE = np.dtype(
    [("place", U64), ("chunk", U32), ("offset", U32), ("length", U32), ("digest", EXTENT_DIGESTS)]
)


class Totals(NamedTuple):
    """Of the rows that are not hidden."""

    files: int
    total_bytes: int
    extents: int
    links: int
    link_bytes: int
    name_bytes: int


class SpilledRows:
    """Rows that are added; `Rows` reads them. `runs`: by folder, its first row and the one behind its last; `explicit`:
    the folders with an entry; `root_row`: that of the root, which is in no folder.
    """

    def __init__(self, scratch: str | None) -> None:
        self.rows = Spill(_ROW, scratch)
        self.names = Spill(U8, scratch)
        self.piece_rows, self.pieces = Spill(I64, scratch), Spill(_PIECE, scratch)
        self.link_rows, self.link_ends, self.links = (Spill(each, scratch) for each in (I64, I64, U8))
        self.runs: dict[bytes, tuple[int, int]] = {}
        self.explicit: set[bytes] = set()
        self.root_row = IMPLICIT

    def add(self, block: EntryTable) -> None:
        """Add the next entries. Those of a folder follow one another, also from block to block."""
        first, count = self.rows.count, len(block.ops)
        if not count:
            return
        self._note_folders(block.folders, block.names, first)
        for row in np.flatnonzero(block.ops == Op.DIRECTORY).tolist():
            folder, name = block.folders[row], block.names[row]
            self.explicit.add(folder + b"/" + name if folder else name)
        rows = np.empty(count, _ROW)
        lengths = np.fromiter(map(len, block.names), np.int64, count)
        rows["name_end"] = self.names.count + np.cumsum(lengths + 1) - 1
        rows["mtime_ns"], rows["size"], rows["mode"] = block.mtimes_ns, block.sizes, block.modes
        rows["op"], rows["chunk"] = block.ops, block.chunks + 1
        rows["offset"], rows["digest"] = block.offsets, block.digests
        if block.targets:
            links = sorted(block.targets)
            targets = [block.targets[row] for row in links]
            target_lengths = np.fromiter(map(len, targets), np.int64, len(targets))
            rows["size"][links] = target_lengths
            self.link_rows.append(first + np.array(links))
            self.link_ends.append(self.links.count + np.cumsum(target_lengths))
            self.links.append(np.frombuffer(b"".join(targets), U8))
        if len(block.extents.rows):
            order = np.lexsort((block.extents.places, block.extents.rows))
            pieces = np.empty(len(order), _PIECE)
            for column in _PIECE.names or ():
                pieces[column] = getattr(block.extents, f"{column}s")[order]
            self.piece_rows.append(first + block.extents.rows[order])
            self.pieces.append(pieces)
        self.rows.append(rows)
        self.names.append(np.frombuffer(b"/".join([*block.names, b""]), U8))

    def _note_folders(self, folders: Sequence[bytes], names: Sequence[bytes], first: int) -> None:
        count = len(folders)
        starts = [row for row in range(count) if not row or folders[row] != folders[row - 1]]
        for start, end in zip(starts, [*starts[1:], count], strict=True):
            folder = folders[start]
            run_start = self.runs[folder][0] if folder in self.runs else first + start
            if not folder and not names[start]:
                self.root_row = first + start
                run_start += 1
            self.runs[folder] = run_start, first + end

    def finished(self) -> "Rows":
        """The rows; none may be added afterwards."""
        implicit = np.zeros(1, _ROW)
        implicit["op"], implicit["mode"], implicit["name_end"] = Op.DIRECTORY, IMPLICIT_FOLDER_MODE, -1
        self.rows.append(implicit)
        return Rows(self)


class Rows:
    """Rows in place. `records`: structured, of shape (rows + 1,); `pieces`: extents of files of several, in the order
    of `piece_rows`.
    """

    def __init__(self, spilled: SpilledRows) -> None:
        self.records = spilled.rows.values()
        self.names = spilled.names.values()
        self.piece_rows, self.pieces = spilled.piece_rows.values(), spilled.pieces.values()
        self._link_rows, self._link_ends = spilled.link_rows.values(), spilled.link_ends.values()
        self._links = spilled.links.values()

    def name_starts(self, rows: Numbers) -> Numbers:
        before: Numbers = self.records["name_end"][np.maximum(rows - 1, IMPLICIT)]
        return before + 1

    def name(self, row: int) -> bytes:
        start, end = self.records["name_end"][row - 1] + 1, self.records["name_end"][row]
        return self.names[start:end].tobytes()

    def piece_runs(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        """The first piece of each of these rows, and their number."""
        firsts = np.searchsorted(self.piece_rows, rows)
        return firsts, np.searchsorted(self.piece_rows, rows, side="right") - firsts

    def link_ranges(self, rows: Numbers) -> tuple[npt.NDArray[np.uint8], Numbers, Numbers]:
        """The targets of all links, joined; where those of these rows begin, and their bytes."""
        links = np.searchsorted(self._link_rows, rows)
        ends = self._link_ends[links]
        lengths = self.records["size"][rows].astype(np.int64)
        return self._links, ends - lengths, lengths

    def totals(self, hidden: Numbers) -> Totals:
        """`hidden`: rows that are not in the snapshot, ascending."""
        files = total_bytes = extents = 0
        for start in range(0, len(self.records) - 1, _BLOCK_ROWS):
            block, is_file = self._files(start, hidden)
            files += int(is_file.sum())
            total_bytes += int(block["size"][is_file].sum())
            extents += int((is_file & (block["chunk"] > 0) & (block["size"] > 0)).sum())
        hidden_links = hidden[among(hidden, self._link_rows)]
        return Totals(
            files,
            total_bytes,
            extents + len(self.piece_rows) - int(self.piece_runs(hidden)[1].sum()),
            len(self._link_rows) - len(hidden_links),
            len(self._links) - int(self.link_ranges(hidden_links)[2].sum()),
            len(self.names)
            - (len(self.records) - 1)
            - int((self.records["name_end"][hidden] - self.name_starts(hidden)).sum()),
        )

    def used_chunks(self, hidden: Numbers, chunks: int) -> npt.NDArray[np.bool_]:
        """In which of `chunks` chunks an extent lies: shape (chunks,)."""
        is_used = np.zeros(chunks + 1, np.bool_)
        for start in range(0, len(self.records) - 1, _BLOCK_ROWS):
            block, is_file = self._files(start, hidden)
            numbers = block["chunk"][is_file & (block["size"] > 0)]
            is_used[numbers[numbers > 0] - 1] = True
        for start in range(0, len(self.pieces), _BLOCK_ROWS):
            run = slice(start, start + _BLOCK_ROWS)
            is_shown = ~among(self.piece_rows[run], hidden)
            is_used[np.minimum(self.pieces["chunk"][run][is_shown], chunks)] = True
        return is_used[:chunks]

    def _files(self, start: int, hidden: Numbers) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Rows from `start` on, and which of them are files that are not hidden."""
        block = self.records[start : min(start + _BLOCK_ROWS, len(self.records) - 1)]
        is_file = block["op"] == Op.FILE
        first, last = np.searchsorted(hidden, (start, start + len(block)))
        is_file[hidden[first:last] - start] = False
        return block, is_file
