"""The rule of `metadata/interface.py` in its simplest form: keep every chunk, and compute the live entries from all.

Slow, and independent of the order in which chunks are applied. So a store that agrees with it is independent too.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from dieselfs.chunk.format import ChunkHeader, Op
from dieselfs.names import split_path
from dieselfs.records import Extent, FileRecord


class _Place(NamedTuple):
    """The place of an entry. The order is that of age."""

    chunk_id: bytes
    entry: int


class _PathState(NamedTuple):
    record: FileRecord | None
    alive: set[_Place]


class MetadataModel:
    """The state of a dataset after `headers` (by chunk ID) are applied."""

    def __init__(self, headers: dict[bytes, ChunkHeader]) -> None:
        self._headers = headers
        places: defaultdict[bytes, list[_Place]] = defaultdict(list)
        for chunk_id, header in sorted(headers.items()):
            for entry, path in enumerate(header.paths):
                places[path].append(_Place(chunk_id, entry))
        states = {path: self._decide(path, found) for path, found in places.items()}
        self.records = {path: state.record for path, state in states.items() if state.record is not None}
        alive: set[_Place] = set().union(*(state.alive for state in states.values()))
        self.deleted = {
            chunk_id: [entry for entry in range(len(header)) if _Place(chunk_id, entry) not in alive]
            for chunk_id, header in headers.items()
        }

    @property
    def files(self) -> int:
        return sum(record.op == Op.FILE for record in self.records.values())

    @property
    def total_bytes(self) -> int:
        return sum(record.size for record in self.records.values())

    def folder(self, folder: bytes) -> list[FileRecord]:
        """Everything directly in `folder`, ordered by name."""
        found = {
            path: record for path, record in self.records.items() if path and split_path(path)[0] == folder
        }
        for path in self.records:
            parent = split_path(path)[0]
            while parent:
                own = found.get(parent)
                if split_path(parent)[0] == folder and (own is None or own.op != Op.DIRECTORY):
                    found[parent] = FileRecord(parent, Op.DIRECTORY, 0o755, 0, 0, 0, b"", ())
                parent = split_path(parent)[0]
        return [found[path] for path in sorted(found)]

    def _decide(self, path: bytes, places: list[_Place]) -> _PathState:
        whole: dict[tuple[int, ...], _Place] = {}
        extents: defaultdict[tuple[int, ...], dict[tuple[int, int], _Place]] = defaultdict(dict)
        for place in places:  # from old to new: of equal ones, the last one counts
            version, size, start, length = self._numbers(place)
            if self._headers[place.chunk_id].ops[place.entry] == Op.FILE and length != size:
                extents[version, 0, size][start, length] = place
            else:
                whole[version, 1] = place
        ways = {
            key: way for key, parts in extents.items() if (way := _way(set(parts), 0, key[2])) is not None
        }
        newest = max([*whole, *ways], default=(0,))
        alive = {place for key, parts in extents.items() if key >= newest for place in parts.values()}
        if newest in whole:
            return _PathState(self._whole_record(path, whole[newest]), alive | {whole[newest]})
        if newest in ways:
            return _PathState(self._record(path, [extents[newest][part] for part in ways[newest]]), alive)
        return _PathState(None, alive)

    def _numbers(self, place: _Place) -> tuple[int, int, int, int]:
        header, entry = self._headers[place.chunk_id], place.entry
        return (
            int(header.versions[entry]),
            int(header.sizes[entry]),
            int(header.places[entry]),
            int(header.lengths[entry]),
        )

    def _whole_record(self, path: bytes, place: _Place) -> FileRecord | None:
        is_delete = self._headers[place.chunk_id].ops[place.entry] == Op.DELETE
        return None if is_delete else self._record(path, [place])

    def _record(self, path: bytes, places: list[_Place]) -> FileRecord:
        header, entry = self._headers[places[0].chunk_id], places[0].entry
        op, size = Op(int(header.ops[entry])), int(header.sizes[entry])
        return FileRecord(
            path,
            op,
            int(header.modes[entry]),
            int(header.mtimes_ns[entry]),
            size,
            int(header.versions[entry]),
            header.target(entry) if op == Op.SYMLINK else b"",
            tuple(self._extent(place) for place in places) if size else (),
        )

    def _extent(self, place: _Place) -> Extent:
        header, entry = self._headers[place.chunk_id], place.entry
        _, _, start, length = self._numbers(place)
        return Extent(
            start, place.chunk_id, int(header.offsets[entry]), length, header.digests[entry].tobytes()
        )


def _way(parts: Iterable[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]] | None:
    """A chain of parts `(place, length)` from `start` to `end`, the longest at each place; None if there is none."""
    if start == end:
        return []
    for length in sorted((length for place, length in parts if place == start), reverse=True):
        rest = _way(parts, start + length, end)
        if rest is not None:
            return [(start, length), *rest]
    return None
