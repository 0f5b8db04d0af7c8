"""The metadata store in Redis, one server or a cluster: any number of servers share it, on any number of machines.

Keys: `redis_keys.py`. How a chunk is applied: `redis_apply.py`. What a crash or the loss of Redis leaves:
`docs/durability.md`. Losing all of Redis loses no data: everything is made anew from the chunks.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock
from typing import TypeVar

from dieselfs.chunk.format import VERSION_MAX, ChunkHeader, Preamble
from dieselfs.chunk.ids import chunk_name, chunk_time_s
from dieselfs.errors import InvalidInput, NotFound
from dieselfs.limits import REDIS_SWAPS_MAX
from dieselfs.meta.records import (
    ChunkRecord,
    DatasetRecord,
    EntryTable,
    Extent,
    FileRecord,
    NoteChange,
    PendingFile,
)
from dieselfs.names import split_path
from dieselfs_server.metadata.listing import merge_listing
from dieselfs_server.metadata.redis_apply import ChunkApplication
from dieselfs_server.metadata.redis_cells import (
    Change,
    Range,
    Read,
    RemoveField,
    Scan,
    Swap,
    split_member,
)
from dieselfs_server.metadata.redis_datasets import Contended, DatasetGone, Datasets, live_state
from dieselfs_server.metadata.redis_keys import (
    BUCKETS,
    CHANGES,
    RECORD,
    VERSIONS,
    BucketKeys,
    DatasetKeys,
    Drawer,
    bucket_name,
    names_after,
    parse_piece_name,
    pieces_of_file,
)
from dieselfs_server.metadata.redis_link import Link, RedisLink, ask
from dieselfs_server.metadata.redis_notes import read_notes, read_notes_below, swap_notes
from dieselfs_server.metadata.redis_settle import PIECES_OF_FILE_MAX
from dieselfs_server.metadata.redis_standing import Kind, Standing, StoredPiece
from dieselfs_server.metadata.redis_table import check_bucket, lost, read_chunks, read_entry_table
from dieselfs_server.metadata.redis_url import parse_redis_url
from dieselfs_server.metadata.redis_values import (
    SEAL_BYTES,
    ChunkState,
    DatasetState,
    DeletedState,
    number_body,
    number_of,
    pending_of,
    seal,
    unseal,
)
from dieselfs_server.metadata.tiling import tiling

Result = TypeVar("Result")


class RedisMetadata:
    """A `MetadataStore`. Every method also raises Damaged, naming the key, when a value is not what was written."""

    def __init__(self, link: Link, prefix: bytes) -> None:
        self._link = link
        self._datasets = Datasets(link, prefix)
        self._commits_lock = Lock()  # guards `_commits`
        self._commits: defaultdict[bytes, Lock] = defaultdict(
            Lock
        )  # by token: one commit of this process at a time

    @classmethod
    def open(cls, url: str) -> "RedisMetadata":
        """The store at `url`, see `redis_url.py`. Raises InvalidInput, Unavailable."""
        location = parse_redis_url(url)
        return cls(RedisLink(location), location.prefix)

    def create_dataset(
        self, name: str, dataset_id: bytes, generation: int = 0, updated_ns: int = 0
    ) -> DatasetRecord:
        record = DatasetRecord(dataset_id, name, generation, updated_ns, files=0, total_bytes=0, chunks=0)
        self._datasets.create(record)
        return record

    def dataset(self, name: str) -> DatasetRecord:
        return _shown(self._datasets.find(name))

    def datasets(self) -> list[DatasetRecord]:
        return [_shown(record) for record in self._datasets.all()]

    def drop_dataset(self, dataset_id: bytes) -> None:
        self._on(dataset_id, lambda keys: self._datasets.drop(keys, dataset_id))

    def reserve_versions(self, dataset_id: bytes, count: int, now_ns: int) -> int:
        def reserve(keys: DatasetKeys) -> int:
            for _ in range(REDIS_SWAPS_MAX):
                (((record, versions),),) = ask(self._link, [Read([(keys.dataset, [RECORD, VERSIONS])])])
                live_state(keys, record)
                last = 0 if versions is None else number_of(unseal(keys.dataset, VERSIONS, versions))
                first = max(now_ns, last + 1)
                if first + count - 1 > VERSION_MAX:
                    raise InvalidInput(f"no {count} versions are left after {first}")
                change = Change(keys.dataset)
                change.add(VERSIONS, seal(keys.dataset, VERSIONS, number_body(first + count - 1)), versions)
                if not ask(self._link, [Swap([change])])[0].stale:
                    return first
            raise Contended(f"{keys.owner}: too many ask for versions; try again")

        return self._on(dataset_id, reserve)

    def apply(
        self, dataset_id: bytes, preamble: Preamble, header: ChunkHeader, now_ns: int, is_again: bool = False
    ) -> int:
        def apply(keys: DatasetKeys) -> int:
            return self._application(keys, preamble, header, now_ns, is_again).apply()

        return self._on(dataset_id, apply)

    def has_chunk(self, dataset_id: bytes, chunk_id: bytes) -> bool:
        def look(keys: DatasetKeys) -> bool:
            wanted = Read([(keys.dataset, [RECORD]), (keys.chunks, [chunk_id])])
            (((record,), (chunk,)),) = ask(self._link, [wanted])
            live_state(keys, record)
            return chunk is not None

        return self._on(dataset_id, look)

    def forget_chunk(self, dataset_id: bytes, chunk_id: bytes) -> None:
        self._on(dataset_id, lambda keys: self._forget(keys, chunk_id))

    def chunks(self, dataset_id: bytes) -> list[ChunkRecord]:
        def read(keys: DatasetKeys) -> list[ChunkRecord]:
            self._check(keys)
            return read_chunks(self._link, keys)

        return self._on(dataset_id, read)

    def newest_chunk_time_s(self, dataset_id: bytes) -> int:
        def look(keys: DatasetKeys) -> int:
            self._check(keys)
            return max((chunk_time_s(chunk.chunk_id) for chunk in read_chunks(self._link, keys)), default=0)

        return self._on(dataset_id, look)

    def notes(self, dataset_id: bytes, names: Sequence[str]) -> list[bytes | None]:
        return self._on(dataset_id, lambda keys: read_notes(self._link, keys, names))

    def notes_below(self, dataset_id: bytes, folder: str) -> dict[str, bytes]:
        def read(keys: DatasetKeys) -> dict[str, bytes]:
            self._check(keys)
            return read_notes_below(self._link, keys, folder)

        return self._on(dataset_id, read)

    def change_notes(self, dataset_id: bytes, changes: Sequence[NoteChange]) -> bool:
        def change(keys: DatasetKeys) -> bool:
            self._check(keys)
            return swap_notes(self._link, keys, changes)

        return self._on(dataset_id, change)

    def pending(self, dataset_id: bytes, path: bytes) -> PendingFile:
        def look(keys: DatasetKeys) -> PendingFile:
            bucket, standing = self._standing(keys, path)
            newer = [file for file in standing.gathered if (file[0], 0, file[1]) > standing.rank[:3]]
            newest = max((file for file in newer if file[0] > standing.version), default=None)
            if newest is None:
                return PendingFile()
            version, size, _ = newest
            pieces = self._pieces(bucket, path, version, size)
            mtime_ns = pieces[min(pieces)].mtime_ns if pieces else 0
            return PendingFile(version, size, mtime_ns, frozenset(pieces))

        return self._on(dataset_id, look)

    def lookup(self, dataset_id: bytes, path: bytes) -> FileRecord | None:
        def look(keys: DatasetKeys) -> FileRecord | None:
            for _ in range(REDIS_SWAPS_MAX):
                bucket, standing = self._standing(keys, path)
                if not standing.is_live:
                    return None
                if standing.kind != Kind.SPANNING:
                    return standing.record(path, standing.extents)
                extents = self._extents(bucket, path, standing)
                if extents is not None:
                    return standing.record(path, extents)
            raise lost(keys)

        return self._on(dataset_id, look)

    def list_folder(self, dataset_id: bytes, folder: bytes, after: bytes, limit: int) -> Sequence[FileRecord]:
        prefix = folder + b"/" if folder else b""

        def read(keys: DatasetKeys) -> Sequence[FileRecord]:
            folder_hash = keys.folder_hash(folder)
            drawer = keys.bucket(folder_hash[0]).folder(folder_hash)
            self._check(keys, folder_hash[0])
            entries, folders = (
                lists[0]
                for lists in ask(
                    self._link,
                    [
                        Scan([Range(drawer, *names_after(after))], limit),
                        Scan([Range(keys.tree, *names_after(after, within=folder))], limit),
                    ],
                )
            )
            records = []
            for member in entries:
                name, value = split_member(member)
                records.append(Standing.of(unseal(drawer, name, value)).record(prefix + name, ()))
            return merge_listing(
                records,
                [prefix + _tree_child(keys.tree, folder, member) for member in folders],
                limit,
            )

        return self._on(dataset_id, read)

    def entry_table(self, dataset_id: bytes) -> EntryTable:
        def read(keys: DatasetKeys) -> EntryTable:
            def finish(chunk_id: bytes, value: bytes) -> None:
                body = unseal(keys.pending, chunk_id, value)
                self._application(keys, *pending_of(body, f"chunk {chunk_name(chunk_id)}")).finish()

            return read_entry_table(self._link, keys, finish)

        return self._on(dataset_id, read)

    def close(self) -> None:
        self._link.close()

    def _on(self, dataset_id: bytes, work: Callable[[DatasetKeys], Result]) -> Result:
        """Do something with the dataset's keys; once more if they turn out to be those of an older dataset."""
        for _ in range(2):
            keys = self._datasets.keys(dataset_id)
            try:
                return work(keys)
            except DatasetGone:
                self._datasets.forget(dataset_id, keys)
        raise NotFound(f"there is no dataset {dataset_id.hex()}")

    def _application(
        self, keys: DatasetKeys, preamble: Preamble, header: ChunkHeader, now_ns: int, is_again: bool = False
    ) -> ChunkApplication:
        with self._commits_lock:
            lock = self._commits[keys.token]
        return ChunkApplication(self._link, keys, lambda: lock, preamble, header, now_ns, is_again)

    def _check(self, keys: DatasetKeys, bucket: int | None = None) -> None:
        """Raise DatasetGone without the dataset, Damaged if the bucket has lost something."""
        names = [RECORD] if bucket is None else [RECORD, bucket_name(bucket)]
        (((record, *known),),) = ask(self._link, [Read([(keys.dataset, names)])])
        live_state(keys, record)
        if bucket is not None:
            (((changes,),),) = ask(self._link, [Read([(keys.bucket(bucket).changes, [CHANGES])])])
            if not check_bucket(keys, bucket, known[0], changes):
                raise lost(keys)

    def _standing(self, keys: DatasetKeys, path: bytes) -> tuple[BucketKeys, Standing]:
        """What stands at a path. Raises as `_check` does."""
        folder, name = split_path(path)
        folder_hash = keys.folder_hash(folder)
        number = folder_hash[0]
        bucket = keys.bucket(number)
        drawer = bucket.folder(folder_hash)
        ((record, known),), ((changes,), (value,)) = ask(
            self._link,
            [
                Read([(keys.dataset, [RECORD, bucket_name(number)])]),
                Read([(bucket.changes, [CHANGES]), (drawer, [name])]),
            ],
        )
        live_state(keys, record)
        if not check_bucket(keys, number, known, changes):
            self._check(keys, number)  # on two nodes, the second answer may be the older one
            return self._standing(keys, path)
        return bucket, Standing() if value is None else Standing.of(unseal(drawer, name, value))

    def _pieces(
        self, bucket: BucketKeys, path: bytes, version: int, size: int
    ) -> dict[tuple[int, int], StoredPiece]:
        wanted = Scan([Range(bucket.pieces, *pieces_of_file(path, version, size))], PIECES_OF_FILE_MAX)
        pieces = {}
        for member in ask(self._link, [wanted])[0][0]:
            end = len(member) - StoredPiece.BODY_BYTES - SEAL_BYTES - 1
            piece = StoredPiece.of(unseal(bucket.pieces, member[:end], member[end + 1 :]))
            place, length = parse_piece_name(member[:end])[3:]
            pieces[place, length] = piece
        return pieces

    def _extents(self, bucket: BucketKeys, path: bytes, standing: Standing) -> tuple[Extent, ...] | None:
        """The extents of a live file in pieces; None if it has just been replaced."""
        pieces = self._pieces(bucket, path, standing.version, standing.size)
        way = tiling(pieces, standing.size)
        if way is None:
            return None
        return tuple(
            Extent(place, piece.chunk_id, piece.offset, length, piece.checksum)
            for place, length in way
            for piece in (pieces[place, length],)
        )

    def _forget(self, keys: DatasetKeys, chunk_id: bytes) -> None:
        for _ in range(REDIS_SWAPS_MAX):
            wanted = Read([(keys.dataset, [RECORD]), (keys.chunks, [chunk_id]), (keys.deleted, [chunk_id])])
            (((record,), (chunk,), (bitmap,)),) = ask(self._link, [wanted])
            state = live_state(keys, record)
            if chunk is None:
                return
            chunk_state = ChunkState.of(unseal(keys.chunks, chunk_id, chunk))
            deleted = None if bitmap is None else DeletedState.of(unseal(keys.deleted, chunk_id, bitmap))
            stored = chunk_state.record(chunk_id, deleted)
            if alive := stored.entries - stored.deleted_entries:
                raise InvalidInput(f"chunk {chunk_name(chunk_id)} has {alive} entries that still count")
            self._remove_receipts(keys, chunk_id, chunk_state)
            forgotten, marks, dataset = Change(keys.chunks), Change(keys.deleted), Change(keys.dataset)
            forgotten.add(chunk_id, b"", chunk)
            marks.add(chunk_id, b"", bitmap)
            fewer = DatasetState(replace(state.record, chunks=state.record.chunks - 1))
            dataset.add(RECORD, seal(keys.dataset, RECORD, fewer.body()), record)
            if not ask(self._link, [Swap([forgotten, marks, dataset])])[0].stale:
                return
        raise Contended(f"{keys.owner} changes too fast; try again")

    def _remove_receipts(self, keys: DatasetKeys, chunk_id: bytes, state: ChunkState) -> None:
        """Before the record goes: should the chunk ever come again, it is counted anew."""
        bits = int.from_bytes(state.buckets, "little")
        buckets = [keys.bucket(number) for number in range(BUCKETS) if bits >> number & 1]
        ask(self._link, [RemoveField(bucket.receipts, chunk_id) for bucket in buckets])


def _shown(record: DatasetRecord) -> DatasetRecord:
    """A later chunk may be counted before an earlier one that is still on its way: less than nothing is not shown."""
    return replace(record, files=max(record.files, 0), total_bytes=max(record.total_bytes, 0))


def _tree_child(tree: Drawer, folder: bytes, member: bytes) -> bytes:
    """The name of a folder in `folder`. Raises Damaged."""
    start = len(folder) + 1
    end = member.index(b"\0", start)
    unseal(tree, member[:end], member[end + 1 :])
    return member[start:end]
