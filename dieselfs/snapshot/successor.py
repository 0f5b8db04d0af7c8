"""The next snapshot of a dataset from the last one and the entries that changed since. Arithmetic on columns, no I/O.

A snapshot is a function of the live entries, so the result has the bytes of `build_snapshot`. Only what the changes
touch is looked at in Python: their paths, and the folders above these, which may appear, vanish, hide a file, or have
another time. All else moves by columns, as in a delta.
"""

import stat
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from dieselfs.chunk.format import Op
from dieselfs.errors import Damaged
from dieselfs.names import split_path
from dieselfs.records import ChunkRecord, DatasetRecord, FileRecord
from dieselfs.snapshot.builder import IMPLICIT_FOLDER_MODE
from dieselfs.snapshot.delta import delta_along
from dieselfs.snapshot.delta_format import COLUMN_TYPES, Delta
from dieselfs.snapshot.encoding import Seal
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.splicing import Spliced

_SCANNED = 1 << 16
_TYPES = {Op.FILE: stat.S_IFREG, Op.DIRECTORY: stat.S_IFDIR, Op.SYMLINK: stat.S_IFLNK}

Live = Mapping[bytes, FileRecord | None]
"""The live entry at each path that changed, and at each folder above one; None where there is none."""


def with_folders(paths: Iterable[bytes]) -> set[bytes]:
    """The paths, and all folders above them, with the root."""
    found = {b""}
    for path in paths:
        while path not in found:
            found.add(path)
            path = split_path(path)[0]
    return found


class NextSnapshot:
    """The snapshot of the generation of `dataset`.

    `chunks`: all of that generation, ordered by ID. Raises Damaged if `base` and the changes do not fit.
    """

    def __init__(
        self, base: Snapshot, dataset: DatasetRecord, chunks: Sequence[ChunkRecord], live: Live
    ) -> None:
        self._base, self._dataset = base, dataset
        changes = _Changes(base, live)
        with self._fitting():
            columns = {**changes.columns(chunks), **_chunk_columns(base, chunks)}
            self._changes = {name: np.asarray(columns[name], dtype) for name, dtype in COLUMN_TYPES.items()}
            self._spliced = Spliced(base, self._changes)
            self.counts = self._spliced.counts()

    def write(self, file: BinaryIO, seal: Seal) -> bytes:
        """Write it into `file`, which is empty, seekable and readable; returns its digest. Raises Damaged, OSError."""
        with self._fitting():
            return self._spliced.write(file, self._dataset, seal, False)

    def delta(self, written: Snapshot) -> Delta:
        """What turns the base into this snapshot, which was written: in the time of the changes."""
        return delta_along(self._base, [self._changes], written)

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        try:
            yield
        except (IndexError, ValueError, OverflowError, KeyError) as error:
            raise Damaged(f"{self._base.source}: the changes since do not fit: {error!r}") from None


class _Shown(NamedTuple):
    """What a snapshot shows at a path: an entry, or a folder without one (`entry` None)."""

    entry: FileRecord | None

    @property
    def mode(self) -> int:
        if self.entry is None:
            return stat.S_IFDIR | IMPLICIT_FOLDER_MODE
        return _TYPES[Op(self.entry.op)] | self.entry.mode

    @property
    def size(self) -> int:
        if self.entry is None:
            return 0
        return len(self.entry.target) if self.entry.op == Op.SYMLINK else self.entry.size


class _Changes:
    """The paths of `live` in the tree of `base`, and in the new one."""

    def __init__(self, base: Snapshot, live: Live) -> None:
        self._base = base
        paths = sorted(live, key=lambda path: (_depth(path), path))
        self._old = dict(zip(paths, base.find_many(paths).tolist(), strict=True))
        self._shown = self._visible(paths, live)
        self._children: dict[bytes, list[bytes]] = {}
        for path in self._shown:
            if path:
                self._children.setdefault(split_path(path)[0], []).append(path)
        self._times = self._mtimes_ns()
        self.removed = np.array(
            sorted(node for path, node in self._old.items() if node >= 0 and path not in self._shown),
            np.int64,
        )
        self.numbers = self._numbers()

    def _child_count(self, node: int) -> int:
        return len(self._base.children(node))

    def _child_start(self, place: int) -> int:
        """Where the children of a folder at this place begin, or would begin, in the base."""
        if place == len(self._base):
            return place
        for end in range(place + 1, 0, -_SCANNED):
            start = max(end - _SCANNED, 0)
            folders = np.flatnonzero(self._base.types(slice(start, end)) == stat.S_IFDIR)
            if len(folders):
                folder = start + int(folders[-1])
                first: int = self._base.column("firsts")[folder]
                return int(first) + (self._child_count(folder) if folder < place else 0)
        raise IndexError("the root is not a folder")

    def _visible(self, paths: Sequence[bytes], live: Live) -> dict[bytes, _Shown]:
        """What the new snapshot shows at these paths: an entry, or a folder as long as there is something in it."""
        shown: dict[bytes, _Shown] = {}
        more: dict[bytes, int] = {}  # children, by folder
        for path in reversed(paths):  # folders after their content
            node, entry = self._old[path], live[path]
            children = more.get(path, 0) + (self._child_count(node) if node >= 0 else 0)
            if not path or children or entry is not None:
                is_hidden = entry is None or (entry.op != Op.DIRECTORY and (children or not path))
                shown[path] = _Shown(None if is_hidden else entry)
            if path:
                folder = split_path(path)[0]
                more[folder] = more.get(folder, 0) + (path in shown) - (node >= 0)
        return dict(reversed(shown.items()))

    def _mtimes_ns(self) -> dict[bytes, int]:
        """The times of the shown paths; a folder without an entry has the newest of its content, 0 if that is older."""
        times: dict[bytes, int] = {}
        before = self._base.column("mtimes_ns")
        changed: dict[bytes, list[int]] = {}  # nodes of the base, by their folders
        for path, node in self._old.items():
            if path and node >= 0:
                changed.setdefault(split_path(path)[0], []).append(node)
        for path, found in reversed(self._shown.items()):
            if found.entry is not None:
                times[path] = found.entry.mtime_ns
                continue
            newest = max((times[child] for child in self._children.get(path, ())), default=0)
            node = self._old[path]
            if node >= 0 and self._child_count(node):
                first = self._child_start(node)
                inside = before[first : first + self._child_count(node)]
                is_kept = np.ones(len(inside), np.bool_)
                is_kept[[child - first for child in changed.get(path, ())]] = False
                newest = max(newest, int(inside.max(initial=0, where=is_kept)))
            times[path] = max(newest, 0)
        return times

    def _numbers(self) -> dict[bytes, int]:
        """The numbers of the shown paths in the new snapshot.

        An added node is before one of the base, or behind all. Among those before the same one, the level decides, then
        the names from the root on.
        """
        before: dict[bytes, int] = {}
        for path in self._shown:  # folders before their content
            if self._old[path] < 0:
                folder, _ = split_path(path)
                parent = self._old[folder]
                if parent < 0:
                    before[path] = self._child_start(before[folder])
                else:
                    first = self._child_start(parent)
                    siblings = range(first, first + self._child_count(parent))
                    before[path] = first + bisect_left(siblings, path, key=self._base.path)
        self.added = sorted(before, key=lambda path: (before[path], _depth(path), path.split(b"/")))
        places = np.array([before[path] for path in self.added], np.int64)
        kept = places - np.searchsorted(self.removed, places)
        numbers = dict(zip(self.added, (kept + np.arange(len(places))).tolist(), strict=True))
        old = [(path, self._old[path]) for path in self._shown if self._old[path] >= 0]
        nodes = np.array([node for _, node in old], np.int64)
        moved = nodes - np.searchsorted(self.removed, nodes) + np.searchsorted(places, nodes, side="right")
        return numbers | dict(zip((path for path, _ in old), moved.tolist(), strict=True))

    def columns(self, chunks: Sequence[ChunkRecord]) -> dict[str, Any]:
        """The columns of a delta for nodes, extents and links."""
        number_of = {chunk.chunk_id: number for number, chunk in enumerate(chunks)}
        paths = sorted(self._shown, key=self.numbers.__getitem__)
        found = [self._shown[path] for path in paths]
        is_added = [self._old[path] < 0 for path in paths]
        names = [path if added else b"" for path, added in zip(paths, is_added, strict=True)]
        extents = [
            [extent for extent in one.entry.extents if extent.length]
            if one.entry is not None and one.entry.op == Op.FILE
            else []
            for one in found
        ]
        every = [extent for of_node in extents for extent in of_node]
        links = [one.entry.target for one in found if one.entry is not None and one.entry.op == Op.SYMLINK]
        return {
            "removed": self.removed,
            "nodes": [self.numbers[path] for path in paths],
            "path_lengths": [len(name) for name in names],
            "parents": [self.numbers[split_path(path)[0]] for path in paths],
            "modes": [one.mode for one in found],
            "sizes": [one.size for one in found],
            "mtimes_ns": [self._times[path] for path in paths],
            "extent_counts": [len(of_node) for of_node in extents],
            "paths": _bytes(names),
            "extent_chunks": [number_of[extent.chunk_id] for extent in every],
            "extent_offsets": [extent.offset for extent in every],
            "extent_lengths": [extent.length for extent in every],
            "extent_places": [extent.place for extent in every],
            "extent_digests": _bytes([extent.digest for extent in every], "extent_digests"),
            "links": _bytes(links),
        }


def _chunk_columns(base: Snapshot, chunks: Sequence[ChunkRecord]) -> dict[str, Any]:
    before, now = chunk_ids(base), [chunk.chunk_id for chunk in chunks]
    known, current = set(before), set(now)
    added = [number for number, chunk_id in enumerate(now) if chunk_id not in known]
    return {
        "removed_chunks": [number for number, chunk_id in enumerate(before) if chunk_id not in current],
        "chunks": added,
        "chunk_ids": _bytes([chunks[number].chunk_id for number in added]),
        "chunk_digests": _bytes([chunks[number].payload_digest for number in added], "chunk_digests"),
        "chunk_payload_lengths": [chunks[number].payload_length for number in added],
    }


def chunk_ids(snapshot: Snapshot) -> list[bytes]:
    """The IDs of all chunks of a snapshot, ascending."""
    blob = snapshot.column("chunk_ids").tobytes()
    return [blob[start : start + 16] for start in range(0, len(blob), 16)]


def _bytes(parts: Iterable[bytes], column: str = "paths") -> npt.NDArray[Any]:
    return np.frombuffer(b"".join(parts), COLUMN_TYPES[column])


def _depth(path: bytes) -> int:
    return path.count(b"/") + 1 if path else 0
