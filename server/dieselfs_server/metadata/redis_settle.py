"""Decides what stands at the paths of one bucket once a chunk is applied: a plain function of what was read. No I/O.

What was not read yet is taken to be absent, if it is the standing of a whole entry: most uploads are new, and the swap
tells otherwise. Where pieces are involved, `settle` says what must be read first. The order of what counts is that of
`interface.py`; the state of a path depends only on which entries were applied to it, not on their order or number.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from xxhash import xxh3_64_digest

from dieselfs.chunk.format import ChunkHeader, Op
from dieselfs_server.metadata.effects import Effects
from dieselfs_server.metadata.redis_cells import Change, Range, Read, Scan, split_member
from dieselfs_server.metadata.redis_keys import (
    PIECE_NAME_BYTES,
    BucketKeys,
    Drawer,
    parse_piece_name,
    piece_name,
    pieces_of_file,
)
from dieselfs_server.metadata.redis_parts import ChunkEntries, FolderPart, Part
from dieselfs_server.metadata.redis_standing import Kind, Standing, StoredPiece
from dieselfs_server.metadata.redis_values import receipt_body, seal, unseal
from dieselfs_server.metadata.tiling import tiling

PIECES_OF_FILE_MAX = 1 << 24
"""More pieces of one file are not read."""


@dataclass(eq=False)
class Seen:
    """What was read so far of a bucket. `pieces` by name; `files` in pieces of which all pieces were read.

    `receipt` is there only if the entries are looked at again all the same: it then stays as it is.
    """

    standings: dict[tuple[bytes, bytes], bytes | None] = field(default_factory=dict)
    """By key and name."""
    pieces: dict[bytes, bytes | None] = field(default_factory=dict)
    files: set[tuple[bytes, int, int]] = field(default_factory=set)
    receipt: bytes | None = None

    def note_stale(self, bucket: BucketKeys, drawer: Drawer, name: bytes, value: bytes | None) -> None:
        """Take over what a swap has found. Pieces are changed together with their path's standing, and forgotten."""
        if drawer is bucket.receipts:
            self.receipt = value
        elif drawer is not bucket.pieces:
            self.standings[drawer.key, name] = value
        self.pieces.clear()
        self.files.clear()


@dataclass(eq=False)
class Needs:
    """What must be read before it can be decided."""

    standings: list[tuple[Drawer, bytes]] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    files: list[tuple[bytes, int, int]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.standings or self.pieces or self.files)

    def requests(self, bucket: BucketKeys) -> tuple[Read, list[Scan]]:
        cells: list[tuple[Drawer, Sequence[bytes]]] = [(drawer, [name]) for drawer, name in self.standings]
        scans = [
            Scan([Range(bucket.pieces, *pieces_of_file(*file))], PIECES_OF_FILE_MAX) for file in self.files
        ]
        return Read([*cells, (bucket.pieces, self.pieces)]), scans

    def note(
        self, seen: Seen, found: Sequence[Sequence[bytes | None]], scanned: Sequence[list[list[bytes]]]
    ) -> None:
        for (drawer, name), (value,) in zip(self.standings, found[:-1], strict=True):
            seen.standings[drawer.key, name] = value
        seen.pieces.update(zip(self.pieces, found[-1], strict=True))
        for file, (members,) in zip(self.files, scanned, strict=True):
            seen.files.add(file)
            name_bytes = len(file[0]) + 1 + PIECE_NAME_BYTES
            seen.pieces.update(split_member(member, name_bytes) for member in members)


@dataclass(frozen=True, eq=False)
class Settled:
    changes: list[Change]
    effects: Effects[bytes]


def settle(part: Part, chunk: ChunkEntries, seen: Seen) -> Settled | Needs:
    """The cells to change, the receipt among them, and what that does; or what must be read to know it."""
    effects: Effects[bytes] = Effects()
    needs = Needs()
    pieces = Change(part.keys.pieces)
    index = Change(part.keys.folders, is_constant=True)
    changes = [index, pieces]
    for folder in part.folders:
        change = Change(folder.drawer)
        _settle_folder(part, folder, chunk, seen, _Outcome(change, pieces, effects, needs))
        changes.append(change)
        index.add(folder.folder_hash, seal(index.drawer, folder.folder_hash, folder.folder), None)
    if needs:
        return needs
    receipt = Change(part.keys.receipts)
    value = seen.receipt or seal(receipt.drawer, chunk.chunk_id, receipt_body(effects))
    receipt.add(chunk.chunk_id, value, seen.receipt)
    return Settled([receipt, *(change for change in changes if change.names)], effects)


@dataclass(frozen=True, eq=False)
class _Outcome:
    """Where the decisions of `settle` are put down."""

    standings: Change
    pieces: Change
    effects: Effects[bytes]
    needs: Needs


def _settle_folder(
    part: Part, folder: FolderPart, chunk: ChunkEntries, seen: Seen, outcome: _Outcome
) -> None:
    drawer, key = folder.drawer, folder.drawer.key
    entries_of: dict[bytes, list[int]] = {}
    for name, entry in zip(folder.names, folder.entries, strict=True):
        entries_of.setdefault(name, []).append(entry)
    winners: list[_Winner] = []
    versions, chunk_id = chunk.header.versions, chunk.chunk_id
    for name, entries in entries_of.items():
        value = seen.standings.get((key, name))
        has_pieces = any(chunk.is_piece[entry] for entry in entries)
        is_simple = len(entries) == 1 and not has_pieces
        if value is None and is_simple:
            winners.append((name, entries[0], None))
            continue
        if value is None and has_pieces and (key, name) not in seen.standings:
            outcome.needs.standings.append((drawer, name))
            continue
        current = Standing.of(unseal(drawer, name, value)) if value is not None else Standing()
        if is_simple and not current.gathered:
            rank = (int(versions[entries[0]]), 1, 0, chunk_id, entries[0])
            if rank > current.rank:
                winners.append((name, entries[0], value))
                _discount(outcome.effects, folder.folder, current)
            elif rank < current.rank:
                outcome.effects.dead[chunk_id].append(entries[0])
            continue
        settled = _Path(folder.path(name), current, part.keys.pieces, chunk, seen, outcome).settle(entries)
        if settled is not None and settled != current:
            _count(outcome.effects, folder.folder, current, settled)
            sealed = seal(drawer, name, settled.body())
            outcome.standings.add(name, sealed, value, in_hash=not settled.is_live)
    _put_winners(outcome.standings, chunk, winners)
    _count_winners(outcome.effects, folder.folder, chunk.header, [entry for _, entry, _ in winners])


_Winner = tuple[bytes, int, bytes | None]
"""Name, entry, and the present value at the path of a whole entry that counts: nearly all there ever are."""


def _put_winners(change: Change, chunk: ChunkEntries, winners: Sequence[_Winner]) -> None:
    first, bodies, seed = len(change.names), chunk.bodies, change.drawer.seed
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
    """Count whole entries, as if nothing stood at their paths."""
    rows = np.array(entries, np.int64)
    ops = header.ops[rows]
    effects.files += int((ops == Op.FILE).sum())
    effects.total_bytes += sum(header.sizes[rows].tolist())
    if live := int((ops != Op.DELETE).sum()):
        effects.members[folder] += live


def _discount(effects: Effects[bytes], folder: bytes, before: Standing) -> None:
    """What stood at a path counts no more."""
    if before.is_whole:
        effects.dead[before.chunk_id].append(before.entry)
    effects.files -= before.is_file
    effects.total_bytes -= before.size
    if before.is_live:
        effects.members[folder] -= 1


def _count(effects: Effects[bytes], folder: bytes, before: Standing, after: Standing) -> None:
    effects.files += after.is_file - before.is_file
    effects.total_bytes += after.size - before.size
    if change := after.is_live - before.is_live:
        effects.members[folder] += change


class _Path:
    """One path at which something stands already, or which gets pieces, or several entries at once."""

    def __init__(
        self,
        path: bytes,
        current: Standing,
        pieces: Drawer,
        chunk: ChunkEntries,
        seen: Seen,
        outcome: _Outcome,
    ) -> None:
        self._path = path
        self._current = current
        self._drawer = pieces
        self._chunk = chunk
        self._seen = seen
        self._outcome = outcome
        self._best = current
        self._gathered = {(version, size): length for version, size, length in current.gathered}
        self._written: dict[bytes, StoredPiece] = {}
        self._dropped: list[bytes] = []
        self._dead: list[tuple[bytes, int]] = []

    def settle(self, entries: Sequence[int]) -> Standing | None:
        """What stands at the path then; None if something must be read first."""
        needs_before = _size(self._outcome.needs)
        for entry in entries:
            if not self._chunk.is_piece[entry]:
                self._contend(Standing.of(self._chunk.bodies[entry]))
        grown = {self._gather(entry) for entry in entries if self._chunk.is_piece[entry]} - {None}
        if _size(self._outcome.needs) == needs_before:
            self._assemble(sorted((file for file in grown if file is not None), reverse=True))
        if _size(self._outcome.needs) == needs_before:
            self._drop_overtaken()
        if _size(self._outcome.needs) > needs_before:
            return None
        self._put_down()
        gathered = tuple((*file, length) for file, length in sorted(self._gathered.items()))
        is_changed = bool(self._written or self._dropped)
        return replace(
            self._best, gathered=gathered, sequence=self._current.sequence + is_changed if gathered else 0
        )

    def _contend(self, challenger: Standing) -> None:
        """A whole entry: the larger rank stays. One that stands there already (applied again) is no rival."""
        if challenger.rank > self._best.rank:
            self._replace_best(challenger)
        elif challenger.rank < self._best.rank:
            self._dead.append((challenger.chunk_id, challenger.entry))

    def _replace_best(self, better: Standing) -> None:
        if self._best.is_whole:
            self._dead.append((self._best.chunk_id, self._best.entry))
        self._best = better

    def _is_overtaken(self, file: tuple[int, int]) -> bool:
        version, size = file
        return (version, 0, size) < self._best.rank[:3]

    def _gather(self, entry: int) -> tuple[int, int] | None:
        """Keep a piece unless it is out of date; returns its file if that is another file thereby."""
        version, size, place, length = self._chunk.piece_key(entry)
        file, piece = (version, size), self._chunk.piece(entry)
        if self._is_overtaken(file):
            self._dead.append((piece.chunk_id, entry))
            return None
        name = piece_name(self._path, version, size, place, length)
        if (
            name not in self._written
            and name not in self._seen.pieces
            and (*self._file(file),) not in self._seen.files
        ):
            self._outcome.needs.pieces.append(name)
            return None
        copy = self._written.get(name) or self._stored(name)
        if copy is None:
            self._gathered[file] = self._gathered.get(file, 0) + length
        elif (copy.chunk_id, copy.entry) > (piece.chunk_id, entry):
            self._dead.append((piece.chunk_id, entry))
            return None
        elif (copy.chunk_id, copy.entry) == (piece.chunk_id, entry):
            return file
        else:
            self._dead.append((copy.chunk_id, copy.entry))
        self._written[name] = piece
        return file

    def _assemble(self, files: Sequence[tuple[int, int]]) -> None:
        """Let the newest of `files` live that its pieces cover."""
        for version, size in files:
            if self._is_overtaken((version, size)):
                return
            if self._gathered[version, size] < size:
                continue
            pieces = self._pieces((version, size))
            if pieces is None:
                return
            by_part = {parse_piece_name(name)[3:]: piece for name, piece in pieces.items()}
            way = tiling(by_part, size)
            if way is None:
                continue
            first = by_part[way[0]]
            live = Standing(Kind.SPANNING, version, size, first.mtime_ns, first.mode)
            if live.rank == self._best.rank:
                self._best = live
            else:
                self._replace_best(live)
            return

    def _drop_overtaken(self) -> None:
        for file in [file for file in self._gathered if self._is_overtaken(file)]:
            pieces = self._pieces(file)
            if pieces is None:
                return
            for name, piece in pieces.items():
                self._dead.append((piece.chunk_id, piece.entry))
                self._written.pop(name, None)
                if self._seen.pieces.get(name) is not None:
                    self._dropped.append(name)
            del self._gathered[file]

    def _pieces(self, file: tuple[int, int]) -> dict[bytes, StoredPiece] | None:
        """All pieces of a file, with those of this chunk; None if they must be read first."""
        if self._file(file) not in self._seen.files:
            self._outcome.needs.files.append(self._file(file))
            return None
        start = self._path + b"\0"
        names = [name for name in (*self._seen.pieces, *self._written) if name.startswith(start)]
        pieces = {}
        for name in dict.fromkeys(names):
            if parse_piece_name(name)[:3] == self._file(file):
                piece = self._written.get(name) or self._stored(name)
                if piece is not None:
                    pieces[name] = piece
        return pieces

    def _stored(self, name: bytes) -> StoredPiece | None:
        value = self._seen.pieces.get(name)
        return None if value is None else StoredPiece.of(unseal(self._drawer, name, value))

    def _file(self, file: tuple[int, int]) -> tuple[bytes, int, int]:
        return self._path, *file

    def _put_down(self) -> None:
        self._outcome.effects.kill(*zip(*self._dead, strict=True)) if self._dead else None
        for name, piece in self._written.items():
            value = seal(self._drawer, name, piece.body())
            self._outcome.pieces.add(name, value, self._seen.pieces.get(name))
        for name in self._dropped:
            self._outcome.pieces.add(name, b"", self._seen.pieces[name])


def _size(needs: Needs) -> int:
    return len(needs.standings) + len(needs.pieces) + len(needs.files)
