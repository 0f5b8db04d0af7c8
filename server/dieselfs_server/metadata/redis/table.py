"""Reads all live entries of one generation of a dataset from Redis as columns, for a snapshot.

Pending chunks that other servers left are finished first. Then all buckets are read. If no chunk is pending before and
after, and the generation is the same, then no chunk was applied meanwhile, and the result is consistent. If not, the
reader sets a hold, which makes uploads wait, and reads again. A hold expires unless its reader renews it.

The bytes of a dataset's chunks are a number beside its record, changed in the same swaps. It names the record that it
counts. A server that does not know it changes the record alone, and a rebuild replaces the record; then the number is
made again from the records of all chunks when somebody asks for it.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_digest

from dieselfs.arrays import Numbers
from dieselfs.chunk.format import PREAMBLE_BYTES, Op
from dieselfs.chunk.ids import CHUNK_ID_BYTES
from dieselfs.digests import EXTENT_DIGESTS
from dieselfs.errors import Damaged
from dieselfs.limits import REDIS_SCAN_ENTRIES, REDIS_SWAPS_MAX
from dieselfs.records import ChunkRecord, DatasetRecord, DatasetUsage, EntryTable, ExtentColumns
from dieselfs_server.metadata.interface import EntrySink, Sink
from dieselfs_server.metadata.redis.datasets import Contended, counted_paths, live_state
from dieselfs_server.metadata.redis.fields import (
    Change,
    Command,
    Range,
    RedisCalls,
    execute,
    read_all_call,
    read_call,
    read_fields,
    scan_call,
    split_member,
    swap,
)
from dieselfs_server.metadata.redis.values import (
    BUCKETS,
    CHANGES,
    COUNTED,
    FIXED,
    HOLD,
    RECORD,
    SEAL_BYTES,
    STORED,
    BucketKeys,
    ChunkState,
    DatasetKeys,
    DatasetState,
    DeletedState,
    KeyPair,
    Kind,
    PathState,
    StoredExtent,
    bucket_name,
    count_body,
    damage,
    fixed_fields,
    number_of,
    parse_count,
    parse_extent_name,
    unseal,
)
from dieselfs_server.metadata.rules import tiling

READINGS_MAX = 5
"""Attempts; from the second one on, a hold makes uploads wait."""

_FOLDERS_PER_SCAN = 64
EXTENT_VALUE_BYTES = StoredExtent.FORMAT.size + SEAL_BYTES
_PLAIN_BYTES = FIXED.itemsize + SEAL_BYTES + 1  # a member without name, target and assemblies


def check_bucket(keys: DatasetKeys, number: int, known: bytes | None, changes: bytes | None) -> bool:
    """Whether a bucket has all changes that the dataset has recorded. Raises Damaged if that record is damaged."""
    name = bucket_name(number)
    return known is None or int(changes or 0) >= number_of(unseal(keys.dataset, name, known))


def whole_buckets(client: RedisCalls, keys: DatasetKeys) -> list[BucketKeys] | None:
    """The buckets that have changes; None if one has lost some. Raises Damaged."""
    known = execute(client, [read_all_call(keys.dataset)])[0]
    numbers = [number for number in range(BUCKETS) if bucket_name(number) in known]
    buckets = [keys.bucket(number) for number in numbers]
    counted = execute(client, [read_call([(bucket.changes, [CHANGES])]) for bucket in buckets])
    for number, ((changes,),) in zip(numbers, counted, strict=True):
        if not check_bucket(keys, number, known[bucket_name(number)], changes):
            return None
    return buckets


def lost(keys: DatasetKeys) -> Damaged:
    return Damaged(
        f"metadata in Redis: a part of {keys.owner} is missing (a Redis node lost acknowledged writes); "
        f"rebuild it from the chunks: dlcmd rebuild {keys.owner}"
    )


def chunk_record(keys: DatasetKeys, chunk_id: bytes, chunk: bytes, bitmap: bytes | None) -> ChunkRecord:
    """The record of a chunk from its values. Raises Damaged."""
    deleted = None if bitmap is None else DeletedState.of(unseal(keys.deleted, chunk_id, bitmap))
    return ChunkState.of(unseal(keys.chunks, chunk_id, chunk)).record(chunk_id, deleted)


def read_chunks(client: RedisCalls, keys: DatasetKeys) -> list[ChunkRecord]:
    """All applied chunks, ordered by ID. Raises Damaged."""
    bitmaps = execute(client, [read_all_call(keys.deleted)])[0]
    members = (split_member(member, CHUNK_ID_BYTES) for member in _scan_all(client, [keys.chunks])[0])
    return [chunk_record(keys, chunk_id, value, bitmaps.get(chunk_id)) for chunk_id, value in members]


def read_entries(
    client: RedisCalls, keys: DatasetKeys, finish: Callable[[bytes, bytes], None], begin: Callable[[], Sink]
) -> Sink:
    """`finish(chunk_id, value)` finishes a pending chunk. Raises DatasetGone, Damaged, and as `RedisCalls.execute`."""
    hold = _Hold(client, keys)
    try:
        for attempt in range(READINGS_MAX):
            if attempt:
                hold.renew()
            for chunk_id, value in execute(client, [read_all_call(keys.pending)])[0].items():
                finish(chunk_id, value)
            before = _quiet_record(client, keys)
            if before is None:
                continue
            sink = begin()
            is_whole = _Reading(client, keys, hold if attempt else None).read(before, sink)
            if _quiet_record(client, keys) == before:
                if not is_whole:
                    raise lost(keys)
                return sink
    finally:
        hold.release()
    raise Contended(f"{keys.owner} changes too fast for a consistent snapshot; try again")


def _quiet_record(client: RedisCalls, keys: DatasetKeys) -> DatasetRecord | None:
    """The record, None while a chunk is pending. The order of the two reads matters: no chunk can begin in between."""
    requests: list[Command[Any]] = [read_all_call(keys.pending), read_call([(keys.dataset, [RECORD])])]
    pending, ((value,),) = execute(client, requests)
    record = live_state(keys, value).record
    return None if pending else record


@dataclass(eq=False)
class _Hold:
    """Makes new applications of chunks wait until it is released, or has expired."""

    _client: RedisCalls
    _keys: DatasetKeys
    _is_set: bool = False

    def renew(self) -> None:
        self._put(os.urandom(SEAL_BYTES))
        self._is_set = True

    def release(self) -> None:
        if self._is_set:
            self._put(b"")

    def _put(self, value: bytes) -> None:
        """All readers share the field: a hold that another reader releases early shows in the generation."""
        record, present = read_fields(self._client, self._keys.dataset, RECORD, HOLD)
        if record is not None:
            # Stale: another reader has set its own hold.
            swap(self._client, Change(self._keys.dataset).add(HOLD, value, present))


_Folder = tuple[bytes, list[bytes]]
"""Path and members."""


@dataclass(eq=False)
class _Reading:
    """One pass over all buckets."""

    _client: RedisCalls
    _keys: DatasetKeys
    _hold: _Hold | None
    _extents: defaultdict[tuple[bytes, int, int], dict[tuple[int, int], bytes]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """By path, version and size; the values by place and length."""

    def read(self, record: DatasetRecord, sink: EntrySink) -> bool:
        """Give each bucket to the sink; False if one has lost changes, or files are missing."""
        chunks = read_chunks(self._client, self._keys)
        buckets = whole_buckets(self._client, self._keys)
        if buckets is None:
            return False
        sink.add(self._table(record, chunks, []))
        files = total_bytes = 0
        indexes = execute(self._client, [read_all_call(bucket.folders) for bucket in buckets])
        for bucket, index in zip(buckets, indexes, strict=True):
            if self._hold is not None:
                self._hold.renew()
            table = self._table(record, chunks, list(self._read_bucket(bucket, index)))
            self._extents.clear()
            is_file = table.ops == Op.FILE
            files += int(is_file.sum())
            total_bytes += int(table.sizes[is_file].sum())
            sink.add(table)
        return (files, total_bytes) == (record.files, record.total_bytes)

    def _read_bucket(self, bucket: BucketKeys, index: dict[bytes, bytes]) -> Iterator[_Folder]:
        """The folders of a bucket; `index` maps the hash of each to its sealed path."""
        for member in _scan_all(self._client, [bucket.extents])[0]:
            name, value = split_member(member, len(member) - EXTENT_VALUE_BYTES - 1)
            path, version, size, place, length = parse_extent_name(name)
            self._extents[path, version, size][place, length] = unseal(bucket.extents, name, value)
        hashes = list(index)
        for start in range(0, len(hashes), _FOLDERS_PER_SCAN):
            batch = hashes[start : start + _FOLDERS_PER_SCAN]
            key_pairs = [bucket.folder(each) for each in batch]
            lists = _scan_all(self._client, key_pairs)
            for each, key_pair, members in zip(batch, key_pairs, lists, strict=True):
                _check_members(key_pair, members)
                yield unseal(bucket.folders, each, index[each]), members

    def _table(
        self, record: DatasetRecord, chunks: Sequence[ChunkRecord], folders: Sequence[_Folder]
    ) -> EntryTable:
        members = [member for _, members in folders for member in members]
        paths = [path for path, members in folders for _ in members]
        fixed = fixed_fields(members, SEAL_BYTES)
        names, targets, spanning = _names(members, fixed)
        kinds = fixed["kind"]
        is_file = (kinds == Kind.FILE) | (kinds == Kind.SPANNING)
        numbers = {chunk.chunk_id: number for number, chunk in enumerate(chunks)}

        def index_of(chunk_ids: Iterable[bytes]) -> Numbers:
            return np.array([numbers.get(chunk_id, -1) for chunk_id in chunk_ids], np.int64)

        rows: list[tuple[int, int, StoredExtent, int]] = []
        for row, path_state in spanning.items():
            path = paths[row] + b"/" + names[row] if paths[row] else names[row]
            stored = self._extents[path, path_state.version, path_state.size]
            for place, length in tiling(stored, path_state.size) or ():
                rows.append((row, place, StoredExtent.of(stored[place, length]), length))
        return EntryTable(
            record,
            chunks,
            paths,
            names,
            np.where(is_file, np.uint8(Op.FILE), kinds).astype(np.uint8),
            fixed["mode"].astype(np.uint32),
            fixed["mtime_ns"].astype(np.int64),
            fixed["size"].astype(np.uint64),
            np.where(kinds == Kind.FILE, index_of(fixed["chunk_id"].tolist()), -1),
            fixed["offset"].astype(np.uint32),
            fixed["digest"].copy(),
            targets,
            ExtentColumns(
                np.array([row for row, *_ in rows], np.int64),
                np.array([place for _, place, *_ in rows], np.uint64),
                index_of(extent.chunk_id for *_, extent, _ in rows),
                np.array([extent.offset for *_, extent, _ in rows], np.uint32),
                np.array([length for *_, length in rows], np.uint32),
                np.array([extent.digest for *_, extent, _ in rows], EXTENT_DIGESTS),
            ),
        )


def _scan_all(client: RedisCalls, key_pairs: Sequence[KeyPair]) -> list[list[bytes]]:
    """All members of sorted sets of one slot, in many small steps, because a step blocks all other clients."""
    found: list[list[bytes]] = [[] for _ in key_pairs]
    first = 0
    while first < len(key_pairs):
        lowest = b"(" + found[first][-1] if found[first] else b"-"
        ranges = [Range(key_pairs[first], lowest), *(Range(key_pair) for key_pair in key_pairs[first + 1 :])]
        lists = execute(client, [scan_call(ranges, REDIS_SCAN_ENTRIES)])[0]
        for place, members in enumerate(lists, first):
            found[place] += members
        is_complete = sum(map(len, lists)) < REDIS_SCAN_ENTRIES
        first = len(key_pairs) if is_complete else first + len(lists) - 1
    return found


def _check_members(key_pair: KeyPair, members: Sequence[bytes]) -> None:
    """Raise Damaged if one fails its checksum."""
    seed = key_pair.seed
    seals = b"".join([xxh3_64_digest(member[:-SEAL_BYTES], seed) for member in members])
    if seals != b"".join([member[-SEAL_BYTES:] for member in members]):
        for member in members:
            unseal(key_pair, *split_member(member))
        raise damage(key_pair, b"")


def _names(
    members: Sequence[bytes], fixed: npt.NDArray[np.void]
) -> tuple[list[bytes], dict[int, bytes], dict[int, PathState]]:
    """Names, and by row the targets of links and the states of files that span chunks."""
    names = [member[:-_PLAIN_BYTES] for member in members]
    targets, spanning = {}, {}
    for row in np.flatnonzero((fixed["target_length"] > 0) | (fixed["assemblies"] > 0)).tolist():
        names[row], value = split_member(members[row])
        path_state = PathState.of(value[:-SEAL_BYTES])
        if path_state.kind == Kind.SYMLINK:
            targets[row] = path_state.target
        elif path_state.kind == Kind.SPANNING:
            spanning[row] = path_state
    return names, targets, spanning


def count_chunk(
    change: Change, value: bytes | None, before: DatasetRecord, after: DatasetRecord, added_bytes: int
) -> None:
    """Add the bytes of a chunk to the number, in the `change` of the record; not to a number that is out of date."""
    known = _stored_bytes(change, value, before)
    if known is not None:
        change.put(STORED, count_body(after, after.chunks, known + added_bytes), value)


def _stored_bytes(change: Change, value: bytes | None, record: DatasetRecord) -> int | None:
    """The bytes of the chunks of `record`; None if the number counts another record."""
    if not record.chunks:
        return 0
    chunks, stored_bytes = parse_count(change.key_pair, STORED, value, record) or (None, None)
    return stored_bytes if chunks == record.chunks else None


def read_usage(client: RedisCalls, keys: DatasetKeys) -> DatasetUsage:
    """Raises DatasetGone, Damaged."""
    for _ in range(REDIS_SWAPS_MAX):
        record_value, value, counted = read_fields(client, keys.dataset, RECORD, STORED, COUNTED)
        record, change = live_state(keys, record_value).record, Change(keys.dataset)
        entries, folders = counted_paths(keys.dataset, counted, record)
        known, count = _stored_bytes(change, value, record), max(entries, record.files + folders)
        if known is not None:
            return DatasetUsage(record, known, count)
        lengths = (chunk.header_length + chunk.payload_length for chunk in read_chunks(client, keys))
        known = PREAMBLE_BYTES * record.chunks + sum(lengths)
        # No chunk has come or gone since the record was read, or it would be another.
        change.put(RECORD, DatasetState(record).body(), record_value)
        change.put(STORED, count_body(record, record.chunks, known), value)
        if swap(client, change):
            return DatasetUsage(record, known, count)
    raise Contended(f"{keys.owner} changes too fast for its chunks to be counted; try again")
