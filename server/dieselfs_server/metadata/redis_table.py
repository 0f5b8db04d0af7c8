"""Reads all live entries of a dataset out of Redis as columns, for a snapshot: of one generation, or again.

Chunks that somebody left half applied are finished first. Then everything is read; if no chunk is pending before and
after, and the generation is the same, then no chunk was applied meanwhile. If that fails, because others upload all the
time, they are held up while it is done once more. A hold ends by itself when its reader gives no sign of life.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_digest

from dieselfs.chunk.format import Op
from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.errors import Damaged
from dieselfs.limits import REDIS_SCAN_ENTRIES
from dieselfs.meta.records import ChunkRecord, DatasetRecord, EntryTable, PieceTable
from dieselfs_server.metadata.redis_cells import (
    Change,
    Range,
    Read,
    ReadAll,
    Request,
    Scan,
    Swap,
    split_member,
)
from dieselfs_server.metadata.redis_datasets import Contended, live_state
from dieselfs_server.metadata.redis_keys import (
    BUCKETS,
    CHANGES,
    HOLD,
    RECORD,
    BucketKeys,
    DatasetKeys,
    Drawer,
    bucket_name,
    parse_piece_name,
    piece_name,
)
from dieselfs_server.metadata.redis_link import Link, ask
from dieselfs_server.metadata.redis_standing import FIXED, Kind, Standing, StoredPiece, fixed_fields
from dieselfs_server.metadata.redis_values import (
    SEAL_BYTES,
    ChunkState,
    DeletedState,
    damage,
    number_of,
    unseal,
)
from dieselfs_server.metadata.tiling import tiling

READINGS_MAX = 5
"""Attempts; from the second on, writers are held up."""

_FOLDERS_PER_SCAN = 64
_PIECE_VALUE_BYTES = StoredPiece.BODY_BYTES + SEAL_BYTES
_PLAIN_BYTES = FIXED.itemsize + SEAL_BYTES + 1  # of a member without its name, target and assemblies

Numbers = npt.NDArray[np.int64]


def check_bucket(keys: DatasetKeys, number: int, known: bytes | None, changes: bytes | None) -> bool:
    """Whether a bucket has all changes that the dataset knows of. Raises Damaged if the number known is damaged."""
    name = bucket_name(number)
    return known is None or int(changes or 0) >= number_of(unseal(keys.dataset, name, known))


def lost(keys: DatasetKeys) -> Damaged:
    return Damaged(
        f"metadata in Redis: a part of {keys.owner} was lost (a node of Redis lost what it had acknowledged); "
        f"`dlcmd rebuild {keys.owner}` makes it anew from the chunks"
    )


def read_chunks(link: Link, keys: DatasetKeys) -> list[ChunkRecord]:
    """All applied chunks, ordered by ID. Raises Damaged."""
    bitmaps = ask(link, [ReadAll(keys.deleted)])[0]
    records = []
    for member in _members(link, keys.chunks, CHUNK_ID_BYTES):
        chunk_id, value = split_member(member, CHUNK_ID_BYTES)
        state = ChunkState.of(unseal(keys.chunks, chunk_id, value))
        bitmap = bitmaps.get(chunk_id)
        deleted = DeletedState.of(unseal(keys.deleted, chunk_id, bitmap)) if bitmap is not None else None
        records.append(state.record(chunk_id, deleted))
    return records


def read_entry_table(link: Link, keys: DatasetKeys, finish: Callable[[bytes, bytes], None]) -> EntryTable:
    """`finish(chunk_id, value)` finishes a chunk that is pending. Raises DatasetGone, Damaged, and what a link does."""
    hold = _Hold(link, keys)
    try:
        for attempt in range(READINGS_MAX):
            if attempt:
                hold.renew()
            for chunk_id, value in ask(link, [ReadAll(keys.pending)])[0].items():
                finish(chunk_id, value)
            before = _quiet_record(link, keys)
            if before is None:
                continue
            reading = _Reading(link, keys, hold if attempt else None)
            table = reading.read(before)
            if _quiet_record(link, keys) == before:
                if table is None or not _adds_up(table):
                    raise lost(keys)
                return table
    finally:
        hold.release()
    raise Contended(f"{keys.owner} changes too fast to be read as a whole; try again")


def _quiet_record(link: Link, keys: DatasetKeys) -> DatasetRecord | None:
    """The record, None while a chunk is pending: looked up in this order, so that none can slip through between."""
    requests: list[Request[Any]] = [ReadAll(keys.pending), Read([(keys.dataset, [RECORD])])]
    pending, ((value,),) = ask(link, requests)
    record = live_state(keys, value).record
    return None if pending else record


def _adds_up(table: EntryTable) -> bool:
    """Whether the entries are those that were counted when they came."""
    files = table.ops == Op.FILE
    return (
        int(files.sum()) == table.dataset.files
        and sum(table.sizes[files].tolist()) == table.dataset.total_bytes
    )


class _Hold:
    """Keeps writers from beginning; they give up on it when it is not renewed."""

    def __init__(self, link: Link, keys: DatasetKeys) -> None:
        self._link = link
        self._keys = keys
        self._is_set = False

    def renew(self) -> None:
        self._put(os.urandom(SEAL_BYTES))
        self._is_set = True

    def release(self) -> None:
        if self._is_set:
            self._put(b"")

    def _put(self, value: bytes) -> None:
        """Whoever else reads the whole dataset uses the same hold; that it ends early, the generation tells him."""
        (((record, present),),) = ask(self._link, [Read([(self._keys.dataset, [RECORD, HOLD])])])
        if record is not None:
            change = Change(self._keys.dataset)
            change.add(HOLD, value, present)
            ask(self._link, [Swap([change])])  # stale: another reader has just put his there


@dataclass(eq=False)
class _Folder:
    path: bytes
    members: list[bytes] = field(default_factory=list)


class _Reading:
    """One pass over all buckets."""

    def __init__(self, link: Link, keys: DatasetKeys, hold: _Hold | None) -> None:
        self._link = link
        self._keys = keys
        self._hold = hold
        self._pieces: dict[bytes, bytes] = {}

    def read(self, record: DatasetRecord) -> EntryTable | None:
        """None if the buckets do not have what they must have."""
        chunks = read_chunks(self._link, self._keys)
        known = ask(self._link, [ReadAll(self._keys.dataset)])[0]
        numbers = [number for number in range(BUCKETS) if bucket_name(number) in known]
        buckets = [self._keys.bucket(number) for number in numbers]
        counted = ask(self._link, [Read([(bucket.changes, [CHANGES])]) for bucket in buckets])
        for number, ((changes,),) in zip(numbers, counted, strict=True):
            if not check_bucket(self._keys, number, known[bucket_name(number)], changes):
                return None
        folders: list[_Folder] = []
        for bucket, found in zip(
            buckets, ask(self._link, [ReadAll(b.folders) for b in buckets]), strict=True
        ):
            if self._hold is not None:
                self._hold.renew()
            folders += self._read_bucket(bucket, found)
        folders.sort(key=lambda folder: folder.path)
        return self._table(record, chunks, folders)

    def _read_bucket(self, bucket: BucketKeys, found: dict[bytes, bytes]) -> Iterator[_Folder]:
        for member in _members(self._link, bucket.pieces):
            place = len(member) - _PIECE_VALUE_BYTES - 1
            name, value = member[:place], member[place + 1 :]
            self._pieces[name] = unseal(bucket.pieces, name, value)
        hashes = list(found)
        for start in range(0, len(hashes), _FOLDERS_PER_SCAN):
            some = hashes[start : start + _FOLDERS_PER_SCAN]
            folders = [_Folder(unseal(bucket.folders, each, found[each])) for each in some]
            drawers = [bucket.folder(each) for each in some]
            for drawer, folder, members in zip(drawers, folders, _scan_all(self._link, drawers), strict=True):
                _check_members(drawer, members)
                folder.members = members
                yield folder

    def _table(
        self, record: DatasetRecord, chunks: Sequence[ChunkRecord], folders: Sequence[_Folder]
    ) -> EntryTable:
        members = [member for folder in folders for member in folder.members]
        paths = [folder.path for folder in folders for _ in folder.members]
        fixed = fixed_fields(members, SEAL_BYTES)
        names, targets, spanning = _names(members, fixed)
        kinds = fixed["kind"]
        index_of = _ChunkIndex([chunk.chunk_id for chunk in chunks])
        is_file = (kinds == Kind.FILE) | (kinds == Kind.SPANNING)
        return EntryTable(
            record,
            chunks,
            paths,
            names,
            np.where(is_file, np.uint8(Op.FILE), kinds).astype(np.uint8),
            fixed["mode"].astype(np.uint32),
            fixed["mtime_ns"].astype(np.int64),
            fixed["size"].astype(np.uint64),
            np.where(kinds == Kind.FILE, index_of(fixed["chunk_id"].tobytes()), -1),
            fixed["offset"].astype(np.uint32),
            fixed["checksum"].astype(np.uint64),
            targets,
            self._piece_table(paths, names, spanning, index_of),
        )

    def _piece_table(
        self,
        folders: Sequence[bytes],
        names: Sequence[bytes],
        spanning: dict[int, Standing],
        index_of: "_ChunkIndex",
    ) -> PieceTable:
        by_file: dict[tuple[bytes, int, int], list[tuple[int, int]]] = {}
        for name in self._pieces:
            path, version, size, place, length = parse_piece_name(name)
            by_file.setdefault((path, version, size), []).append((place, length))
        rows: list[tuple[int, int, int, int, int]] = []
        chunk_ids: list[bytes] = []
        for row, standing in spanning.items():
            path = folders[row] + b"/" + names[row] if folders[row] else names[row]
            file = (path, standing.version, standing.size)
            for place, length in tiling(by_file.get(file, []), standing.size) or ():
                piece = StoredPiece.of(self._pieces[piece_name(*file, place, length)])
                rows.append((row, place, piece.offset, length, piece.checksum))
                chunk_ids.append(piece.chunk_id)
        columns = list(zip(*rows, strict=True)) or [()] * 5
        return PieceTable(
            np.array(columns[0], np.int64),
            np.array(columns[1], np.uint64),
            index_of(b"".join(chunk_ids)),
            np.array(columns[2], np.uint32),
            np.array(columns[3], np.uint32),
            np.array(columns[4], np.uint64),
        )


class _ChunkIndex:
    """Turns IDs of chunks into indexes of the chunk table; -1 for those that are not in it."""

    def __init__(self, chunk_ids: Sequence[bytes]) -> None:
        self._index = {chunk_id: index for index, chunk_id in enumerate(chunk_ids)}

    def __call__(self, chunk_ids: bytes) -> Numbers:
        index, width = self._index, CHUNK_ID_BYTES
        starts = range(0, len(chunk_ids), width)
        return np.array([index.get(chunk_ids[start : start + width], -1) for start in starts], np.int64)


def _members(link: Link, drawer: Drawer, name_bytes: int | None = None) -> list[bytes]:
    (members,) = _scan_all(link, [drawer], name_bytes)
    return members


def _scan_all(link: Link, drawers: Sequence[Drawer], name_bytes: int | None = None) -> list[list[bytes]]:
    """All members of sorted sets of one slot, in many small steps: Redis serves nobody else during a step."""
    found: list[list[bytes]] = [[] for _ in drawers]
    first = 0
    while first < len(drawers):
        lowest = b"(" + found[first][-1] if found[first] else b"-"
        ranges = [Range(drawers[first], lowest), *(Range(drawer) for drawer in drawers[first + 1 :])]
        lists = ask(link, [Scan(ranges, REDIS_SCAN_ENTRIES)])[0]
        for place, members in enumerate(lists, first):
            found[place] += members
        is_complete = sum(map(len, lists)) < REDIS_SCAN_ENTRIES
        first = len(drawers) if is_complete else first + len(lists) - 1
    return found


def _check_members(drawer: Drawer, members: Sequence[bytes]) -> None:
    """Raise Damaged if one is not what was written."""
    seed = drawer.seed
    seals = b"".join([xxh3_64_digest(member[:-SEAL_BYTES], seed) for member in members])
    if seals != b"".join([member[-SEAL_BYTES:] for member in members]):
        for member in members:
            unseal(drawer, *split_member(member))
        raise damage(drawer, b"")


def _names(
    members: Sequence[bytes], fixed: npt.NDArray[np.void]
) -> tuple[list[bytes], dict[int, bytes], dict[int, Standing]]:
    """Names, targets of links by row, and what stands at the rows of files in pieces."""
    names = [member[:-_PLAIN_BYTES] for member in members]
    targets, spanning = {}, {}
    for row in np.flatnonzero((fixed["target_length"] > 0) | (fixed["assemblies"] > 0)).tolist():
        names[row], value = split_member(members[row])
        standing = Standing.of(value[:-SEAL_BYTES])
        if standing.kind == Kind.SYMLINK:
            targets[row] = standing.target
        elif standing.kind == Kind.SPANNING:
            spanning[row] = standing
    return names, targets, spanning
