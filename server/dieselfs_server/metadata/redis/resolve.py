"""Decides the new states of the paths of one bucket when a chunk is applied. No I/O.

A path that was not read yet is assumed to have no entry: most uploads are new, and the swap detects a wrong assumption.
Where extents are involved, `resolve` returns the necessary reads first. The rules of precedence are in `interface.py`;
the state of a path depends only on the set of entries that were applied to it, not on their order or number.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from xxhash import xxh3_64_digest

from dieselfs.chunk.format import ChunkHeader, Op
from dieselfs_server.metadata.redis.fields import Change, Command, Range, read_call, scan_call, split_member
from dieselfs_server.metadata.redis.values import (
    EXTENT_NAME_BYTES,
    BucketKeys,
    DatasetKeys,
    KeyPair,
    Kind,
    PathState,
    StoredExtent,
    bodies_of,
    extent_name,
    extents_of_file,
    parse_extent_name,
    receipt_body,
    seal,
    unseal,
)
from dieselfs_server.metadata.rules import Effects, tiling

EXTENTS_OF_FILE_MAX = 1 << 24
"""Limit of the extents of one file that are read."""


@dataclass(frozen=True, eq=False)
class ChunkEntries:
    """The entries of a chunk; `bodies` are the unsealed values of whole entries."""

    chunk_id: bytes
    header: ChunkHeader
    bodies: Sequence[bytes]
    is_extent: Sequence[bool]
    is_delete: Sequence[bool]

    @classmethod
    def of(cls, chunk_id: bytes, header: ChunkHeader) -> "ChunkEntries":
        """Raises ValueError if the columns of the header differ in length."""
        bodies = bodies_of(chunk_id, header)
        is_extent = (header.ops == Op.FILE) & (header.lengths != header.sizes)
        return cls(chunk_id, header, bodies, is_extent.tolist(), (header.ops == Op.DELETE).tolist())

    def extent(self, entry: int) -> StoredExtent:
        header = self.header
        return StoredExtent(
            self.chunk_id,
            entry,
            int(header.offsets[entry]),
            header.digests[entry].tobytes(),
            int(header.modes[entry]),
            int(header.mtimes_ns[entry]),
        )

    def extent_key(self, entry: int) -> tuple[int, int, int, int]:
        """`(version, size, place, length)`."""
        columns = (self.header.versions, self.header.sizes, self.header.places, self.header.lengths)
        version, size, place, length = (int(column[entry]) for column in columns)
        return version, size, place, length


@dataclass(eq=False)
class FolderEntries:
    """Entries of a chunk in one folder: their names and, in the same order, their numbers in the chunk."""

    folder: bytes
    folder_hash: bytes
    key_pair: KeyPair
    names: list[bytes] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)

    def path(self, name: bytes) -> bytes:
        return self.folder + b"/" + name if self.folder else name


@dataclass(eq=False)
class BucketEntries:
    number: int
    keys: BucketKeys
    folders: list[FolderEntries] = field(default_factory=list)


def split_by_bucket(keys: DatasetKeys, paths: Sequence[bytes]) -> list[BucketEntries]:
    """Group the entries by bucket and folder; the entries of a bucket are applied together."""
    parts: dict[int, BucketEntries] = {}
    folders: dict[bytes, FolderEntries] = {}
    for entry, path in enumerate(paths):
        folder, _, name = path.rpartition(b"/")
        group = folders.get(folder)
        if group is None:
            folder_hash = keys.folder_hash(folder)
            part = parts.get(folder_hash[0])
            if part is None:
                part = parts[folder_hash[0]] = BucketEntries(folder_hash[0], keys.bucket(folder_hash[0]))
            group = folders[folder] = FolderEntries(folder, folder_hash, part.keys.folder(folder_hash))
            part.folders.append(group)
        group.names.append(name)
        group.entries.append(entry)
    return list(parts.values())


@dataclass(eq=False)
class Seen:
    """The values read from a bucket so far: `extents` by name, and the `files` of which all extents were read.

    `receipt` is set only if entries are checked again despite it; it is then kept as it is.
    """

    path_states: dict[tuple[bytes, bytes], bytes | None] = field(default_factory=dict)
    """Sealed values by key and name; None: no such field."""
    extents: dict[bytes, bytes | None] = field(default_factory=dict)
    files: set[tuple[bytes, int, int]] = field(default_factory=set)
    receipt: bytes | None = None

    def note_stale(self, bucket: BucketKeys, key_pair: KeyPair, name: bytes, value: bytes | None) -> None:
        """Note a value that a swap has found. Extents may have changed with it, so they are read again."""
        if key_pair is bucket.receipts:
            self.receipt = value
        elif key_pair is not bucket.extents:
            self.path_states[key_pair.key, name] = value
        self.extents.clear()
        self.files.clear()


@dataclass(eq=False)
class Needs:
    """The reads that a decision needs."""

    path_states: list[tuple[KeyPair, bytes]] = field(default_factory=list)
    extents: list[bytes] = field(default_factory=list)
    files: list[tuple[bytes, int, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.path_states) + len(self.extents) + len(self.files)

    def calls(self, bucket: BucketKeys) -> list[Command[Any]]:
        """A read, and a scan for each of the `files`."""
        fields: list[tuple[KeyPair, Sequence[bytes]]] = [
            (key_pair, [name]) for key_pair, name in self.path_states
        ]
        ranges = [Range(bucket.extents, *extents_of_file(*file)) for file in self.files]
        scans = [scan_call([part], EXTENTS_OF_FILE_MAX) for part in ranges]
        return [read_call([*fields, (bucket.extents, self.extents)]), *scans]

    def note(
        self, seen: Seen, values: Sequence[Sequence[bytes | None]], scanned: Sequence[list[list[bytes]]]
    ) -> None:
        for (key_pair, name), (value,) in zip(self.path_states, values[:-1], strict=True):
            seen.path_states[key_pair.key, name] = value
        seen.extents.update(zip(self.extents, values[-1], strict=True))
        for file, (members,) in zip(self.files, scanned, strict=True):
            seen.files.add(file)
            name_bytes = len(file[0]) + 1 + EXTENT_NAME_BYTES
            seen.extents.update(split_member(member, name_bytes) for member in members)


@dataclass(frozen=True, eq=False)
class Resolved:
    changes: list[Change]
    effects: Effects[bytes]


def resolve(part: BucketEntries, chunk: ChunkEntries, seen: Seen) -> Resolved | Needs:
    """The fields to change, with the receipt, and the effects; or the reads that are needed first."""
    effects: Effects[bytes] = Effects()
    needs = Needs()
    extents = Change(part.keys.extents)
    index = Change(part.keys.folders, is_constant=True)
    changes = [index, extents]
    for folder in part.folders:
        change = Change(folder.key_pair)
        _resolve_folder(part, folder, chunk, seen, _Outcome(change, extents, effects, needs))
        changes.append(change)
        index.put(folder.folder_hash, folder.folder, None)
    if needs:
        return needs
    receipt = Change(part.keys.receipts)
    value = seen.receipt or seal(receipt.key_pair, chunk.chunk_id, receipt_body(effects))
    receipt.add(chunk.chunk_id, value, seen.receipt)
    return Resolved([receipt, *(change for change in changes if change.names)], effects)


@dataclass(frozen=True, eq=False)
class _Outcome:
    """Collects the decisions of `resolve`."""

    path_states: Change
    extents: Change
    effects: Effects[bytes]
    needs: Needs


def _resolve_folder(
    part: BucketEntries, folder: FolderEntries, chunk: ChunkEntries, seen: Seen, outcome: _Outcome
) -> None:
    key_pair, key = folder.key_pair, folder.key_pair.key
    entries_of: dict[bytes, list[int]] = {}
    for name, entry in zip(folder.names, folder.entries, strict=True):
        entries_of.setdefault(name, []).append(entry)
    winners: list[_Winner] = []
    versions, chunk_id = chunk.header.versions, chunk.chunk_id
    for name, entries in entries_of.items():
        value = seen.path_states.get((key, name))
        has_extents = any(chunk.is_extent[entry] for entry in entries)
        is_simple = len(entries) == 1 and not has_extents
        if value is None and is_simple:
            winners.append((name, entries[0], None))
            continue
        if value is None and has_extents and (key, name) not in seen.path_states:
            outcome.needs.path_states.append((key_pair, name))
            continue
        current = PathState.of(unseal(key_pair, name, value)) if value is not None else PathState()
        if is_simple and not current.gathered:
            rank = (int(versions[entries[0]]), 1, 0, chunk_id, entries[0])
            if rank > current.rank:
                winners.append((name, entries[0], value))
                if current.is_whole:
                    outcome.effects.dead[current.chunk_id].append(current.entry)
                _count(outcome.effects, folder.folder, current, PathState())
            elif rank < current.rank:
                outcome.effects.dead[chunk_id].append(entries[0])
            continue
        path = _Path(folder.path(name), current, part.keys.extents, chunk, seen, outcome)
        with suppress(_MustRead):
            resolved = path.resolve(entries)
            if resolved != current:
                _count(outcome.effects, folder.folder, current, resolved)
                outcome.path_states.put(name, resolved.body(), value, in_hash=not resolved.is_live)
    _put_winners(outcome.path_states, chunk, winners)
    _count_winners(outcome.effects, folder.folder, chunk.header, [entry for _, entry, _ in winners])


_Winner = tuple[bytes, int, bytes | None]
"""Name, entry, and present value of the path, of a whole entry that counts: the common case."""


def _put_winners(change: Change, chunk: ChunkEntries, winners: Sequence[_Winner]) -> None:
    first, bodies, seed = len(change.names), chunk.bodies, change.key_pair.seed
    change.names += [name for name, _, _ in winners]
    change.values += [
        bodies[entry] + xxh3_64_digest(name + b"\0" + bodies[entry], seed) for name, entry, _ in winners
    ]
    for place, (_, entry, value) in enumerate(winners, first):
        if chunk.is_delete[entry]:
            change.in_hash.append(place)
        if value is not None:
            change.expected[place] = value


def _count_winners(effects: Effects[bytes], folder: bytes, header: ChunkHeader, entries: list[int]) -> None:
    """Count whole entries, as if their paths had no entry before."""
    rows = np.array(entries, np.int64)
    ops = header.ops[rows]
    effects.files += int((ops == Op.FILE).sum())
    effects.total_bytes += sum(header.sizes[rows].tolist())
    if live := int((ops != Op.DELETE).sum()):
        effects.members[folder] += live


def _count(effects: Effects[bytes], folder: bytes, before: PathState, after: PathState) -> None:
    effects.files += after.is_file - before.is_file
    effects.total_bytes += after.size - before.size
    if change := after.is_live - before.is_live:
        effects.members[folder] += change


File = tuple[bytes, int, int]
"""Path, version and size of a file that spans chunks."""


class _MustRead(Exception):
    """`needs` has the reads without which the path cannot be resolved."""


@dataclass(eq=False)
class _Path:
    """One path that has an entry already, or gets extents, or several entries of this chunk."""

    path: bytes
    current: PathState
    key_pair: KeyPair
    """Of the extents."""
    chunk: ChunkEntries
    seen: Seen
    outcome: _Outcome
    _written: dict[bytes, StoredExtent] = field(default_factory=dict)
    _dropped: list[bytes] = field(default_factory=list)
    _dead: list[tuple[bytes, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._best = self.current
        self._gathered = {(self.path, version, size): n for version, size, n in self.current.gathered}

    def resolve(self, entries: Sequence[int]) -> PathState:
        """The new state of the path. Raises _MustRead."""
        needs_before = len(self.outcome.needs)
        for entry in entries:
            if not self.chunk.is_extent[entry]:
                self._contend(PathState.of(self.chunk.bodies[entry]))
        grown = {self._gather(entry) for entry in entries if self.chunk.is_extent[entry]}
        if len(self.outcome.needs) > needs_before:
            raise _MustRead
        self._assemble(sorted((file for file in grown if file is not None), reverse=True))
        self._drop_overtaken()
        self._write_changes()
        gathered = tuple((version, size, n) for (_, version, size), n in sorted(self._gathered.items()))
        is_changed = bool(self._written or self._dropped)
        return self._best._replace(
            gathered=gathered, sequence=self.current.sequence + is_changed if gathered else 0
        )

    def _contend(self, challenger: PathState) -> None:
        """Compare a whole entry with the best so far; the larger rank wins, an equal one is the same entry."""
        if challenger.rank > self._best.rank:
            self._replace_best(challenger)
        elif challenger.rank < self._best.rank:
            self._dead.append((challenger.chunk_id, challenger.entry))

    def _replace_best(self, better: PathState) -> None:
        if self._best.is_whole:
            self._dead.append((self._best.chunk_id, self._best.entry))
        self._best = better

    def _is_overtaken(self, file: File) -> bool:
        _, version, size = file
        return (version, 0, size) < self._best.rank[:3]

    def _gather(self, entry: int) -> File | None:
        """Keep an extent unless it is out of date; returns its file if that changes the file."""
        version, size, place, length = self.chunk.extent_key(entry)
        file, extent = (self.path, version, size), self.chunk.extent(entry)
        if self._is_overtaken(file):
            self._dead.append((extent.chunk_id, entry))
            return None
        name = extent_name(*file, place, length)
        if name not in self._written and name not in self.seen.extents and file not in self.seen.files:
            self.outcome.needs.extents.append(name)
            return None
        copy = self._written.get(name) or self._stored(name)
        if copy is None:
            self._gathered[file] = self._gathered.get(file, 0) + length
        elif (copy.chunk_id, copy.entry) > (extent.chunk_id, entry):
            self._dead.append((extent.chunk_id, entry))
            return None
        elif (copy.chunk_id, copy.entry) == (extent.chunk_id, entry):
            return file
        else:
            self._dead.append((copy.chunk_id, copy.entry))
        self._written[name] = extent
        return file

    def _assemble(self, files: Sequence[File]) -> None:
        """Make the newest of `files` live that is complete."""
        for file in files:
            _, version, size = file
            if self._is_overtaken(file):
                return
            if self._gathered[file] < size:
                continue
            self._require([file])
            by_part = {parse_extent_name(name)[3:]: extent for name, extent in self._extents(file).items()}
            chosen = tiling(by_part, size)
            if chosen is None:
                continue
            first = by_part[chosen[0]]
            live = PathState(
                version=version, size=size, mtime_ns=first.mtime_ns, mode=first.mode, kind=Kind.SPANNING
            )
            if live.rank == self._best.rank:
                self._best = live
            else:
                self._replace_best(live)
            return

    def _drop_overtaken(self) -> None:
        overtaken = [file for file in self._gathered if self._is_overtaken(file)]
        self._require(overtaken)
        for file in overtaken:
            for name, extent in self._extents(file).items():
                self._dead.append((extent.chunk_id, extent.entry))
                self._written.pop(name, None)
                if self.seen.extents.get(name) is not None:
                    self._dropped.append(name)
            del self._gathered[file]

    def _require(self, files: Sequence[File]) -> None:
        """Raise _MustRead unless all extents of the files are known."""
        unread = [file for file in files if file not in self.seen.files]
        self.outcome.needs.files += unread
        if unread:
            raise _MustRead

    def _extents(self, file: File) -> dict[bytes, StoredExtent]:
        """All extents of a file, including those of this chunk."""
        start = self.path + b"\0"
        names = [name for name in (*self.seen.extents, *self._written) if name.startswith(start)]
        found = {name: self._written.get(name) or self._stored(name) for name in dict.fromkeys(names)}
        return {name: e for name, e in found.items() if e is not None and parse_extent_name(name)[:3] == file}

    def _stored(self, name: bytes) -> StoredExtent | None:
        value = self.seen.extents.get(name)
        return None if value is None else StoredExtent.of(unseal(self.key_pair, name, value))

    def _write_changes(self) -> None:
        for chunk_id, entry in self._dead:
            self.outcome.effects.dead[chunk_id].append(entry)
        for name, extent in self._written.items():
            self.outcome.extents.put(name, extent.body(), self.seen.extents.get(name))
        for name in self._dropped:
            self.outcome.extents.remove(name, self.seen.extents[name])
