"""The metadata store in Redis, one server or a cluster; any number of servers on any number of machines share it.

Keys and values: `values.py`. How a chunk is applied: `apply.py`. States after a crash or a loss of Redis:
`docs/internals/durability.md`. Losing all of Redis loses no data: a rebuild makes the metadata from the chunks.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from threading import Lock
from typing import Concatenate, ParamSpec, TypeVar

from dieselfs.chunk.format import PREAMBLE_BYTES, ChunkHeader, Preamble
from dieselfs.chunk.ids import chunk_name, chunk_time_s
from dieselfs.errors import NotFound
from dieselfs.limits import KIB, NOTES_AT_ONCE_MAX, REDIS_SWAPS_MAX
from dieselfs.names import split_path
from dieselfs.records import (
    ChunkRecord,
    DatasetRecord,
    DatasetUsage,
    EntryTable,
    Extent,
    FileRecord,
    NoteChange,
    PendingFile,
)
from dieselfs.rpc.records import CheckRecord
from dieselfs_server.metadata.interface import Sink
from dieselfs_server.metadata.redis.apply import ChunkApplication
from dieselfs_server.metadata.redis.client import RedisClient, parse_redis_url
from dieselfs_server.metadata.redis.datasets import (
    Contended,
    DatasetGone,
    Datasets,
    begin_copy,
    copy_of,
    end_copy,
    live_state,
    note_changes,
    put_in_place,
    remove_replaced,
)
from dieselfs_server.metadata.redis.fields import (
    Change,
    Range,
    RedisCalls,
    execute,
    read_call,
    read_fields,
    remove_field_call,
    scan_call,
    split_member,
    swap,
)
from dieselfs_server.metadata.redis.persistence import checks, node_settings
from dieselfs_server.metadata.redis.resolve import EXTENTS_OF_FILE_MAX
from dieselfs_server.metadata.redis.table import (
    EXTENT_VALUE_BYTES,
    check_bucket,
    chunk_record,
    count_chunk,
    lost,
    read_chunks,
    read_entries,
    read_usage,
    whole_buckets,
)
from dieselfs_server.metadata.redis.values import (
    BUCKETS,
    CHANGES,
    RECORD,
    STORED,
    VERSIONS,
    BucketKeys,
    ChunkState,
    DatasetKeys,
    DatasetState,
    KeyPair,
    Kind,
    PathState,
    StoredExtent,
    bucket_name,
    common_notes_keys,
    extents_of_file,
    names_after,
    names_below,
    number_body,
    number_of,
    parse_extent_name,
    pending_of,
    unseal,
)
from dieselfs_server.metadata.rules import (
    EntryBlocks,
    check_dead,
    joined,
    merge_listing,
    next_versions,
    tiling,
)

LARGE_HEADER_BYTES = 256 * KIB
"""Chunks with longer headers take up to a second to apply; a server applies one of them at a time."""
KEYS_TRIES_MAX = 8
"""Tries of a call whose dataset is replaced by a rebuild each time."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _on_dataset(
    work: Callable[Concatenate["RedisMetadata", DatasetKeys, Arguments], Result],
) -> Callable[Concatenate["RedisMetadata", bytes, Arguments], Result]:
    """A method that takes a dataset ID, from one that takes the dataset's keys and may raise DatasetGone."""

    def method(
        self: "RedisMetadata", dataset_id: bytes, /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        return self._on(dataset_id, lambda keys: work(self, keys, *args, **kwargs))

    return method


class RedisMetadata:
    """A `MetadataStore`. Every method also raises Damaged, with the key, if a value fails its checksum."""

    def __init__(self, client: RedisCalls, prefix: bytes) -> None:
        self._client = client
        self._datasets = Datasets(client, prefix)
        self._common_notes = common_notes_keys(prefix)
        self._large = Lock()  # held while a large chunk is applied: Redis does one thing at a time
        self._commits_lock = Lock()  # guards `_commits`
        # By token: this process makes one commit at a time in each dataset.
        self._commits: defaultdict[bytes, Lock] = defaultdict(Lock)

    @classmethod
    def open(cls, url: str) -> "RedisMetadata":
        """The store at `url`, see `client.py`. Raises InvalidInput, Unavailable."""
        location = parse_redis_url(url)
        return cls(RedisClient(location), location.prefix)

    def create_dataset(
        self,
        name: str,
        dataset_id: bytes,
        generation: int = 0,
        updated_ns: int = 0,
        notes: Sequence[NoteChange] = (),
    ) -> DatasetRecord:
        record = DatasetRecord(dataset_id, name, generation, updated_ns, files=0, total_bytes=0, chunks=0)
        self._datasets.create(record, notes)
        return record

    def dataset(self, name: str) -> DatasetRecord:
        return _shown(self._datasets.find(name))

    def datasets(self) -> list[DatasetRecord]:
        return [_shown(record) for record in self._datasets.all()]

    def usage(self, names: Sequence[str]) -> list[DatasetUsage | None]:
        return [self._usage(name) for name in names]

    def _usage(self, name: str) -> DatasetUsage | None:
        with suppress(NotFound):
            dataset_id = self._datasets.find(name).dataset_id
            found = self._on(dataset_id, lambda keys: read_usage(self._client, keys))
            return found._replace(record=_shown(found.record))
        return None

    def drop_dataset(self, dataset_id: bytes) -> None:
        self._on(dataset_id, lambda keys: self._datasets.drop(keys, dataset_id))

    @_on_dataset
    def begin_rebuild(self, keys: DatasetKeys) -> bytes:
        return self._datasets.add_copy(begin_copy(self._client, keys))

    def finish_rebuild(self, dataset_id: bytes, copy_id: bytes, now_ns: int) -> None:
        keys, copy = self._datasets.keys(dataset_id), self._datasets.keys(copy_id)
        lineage = self._client.lineage()
        try:
            put_in_place(self._client, keys, copy, now_ns)
        except DatasetGone:
            raise NotFound(f"there is no dataset {dataset_id.hex()}") from None
        self._datasets.follow(keys)
        remove_replaced(self._client, keys, copy, lineage)
        self._datasets.forget_copy(copy_id)

    def cancel_rebuild(self, dataset_id: bytes, copy_id: bytes) -> None:
        end_copy(self._client, self._datasets.keys(dataset_id), copy_id)
        self._datasets.forget_copy(copy_id)

    @_on_dataset
    def reserve_versions(self, keys: DatasetKeys, count: int, now_ns: int) -> int:
        for _ in range(REDIS_SWAPS_MAX):
            record, versions = read_fields(self._client, keys.dataset, RECORD, VERSIONS)
            live_state(keys, record)
            last = 0 if versions is None else number_of(unseal(keys.dataset, VERSIONS, versions))
            reserved = next_versions(last, count, now_ns)
            change = Change(keys.dataset).put(VERSIONS, number_body(reserved[-1]), versions)
            if swap(self._client, change):
                return reserved[0]
        raise Contended(f"{keys.owner}: too many writers reserve versions at once; try again")

    @_on_dataset
    def last_version(self, keys: DatasetKeys) -> int:
        record, versions = read_fields(self._client, keys.dataset, RECORD, VERSIONS)
        live_state(keys, record)
        return 0 if versions is None else number_of(unseal(keys.dataset, VERSIONS, versions))

    @_on_dataset
    def apply(
        self, keys: DatasetKeys, preamble: Preamble, header: ChunkHeader, now_ns: int, is_again: bool = False
    ) -> int:
        with self._large if preamble.header_length > LARGE_HEADER_BYTES else nullcontext():
            # Its own copy first: if that is put in place meanwhile, this application continues there, and finds the
            # chunk.
            copy = copy_of(self._client, keys)
            if copy is not None:
                with suppress(DatasetGone):
                    self._application(copy, preamble, header, now_ns, is_again).apply()
            return self._application(keys, preamble, header, now_ns, is_again).apply()

    @_on_dataset
    def has_chunk(self, keys: DatasetKeys, chunk_id: bytes) -> bool:
        read = read_call([(keys.dataset, [RECORD]), (keys.chunks, [chunk_id])])
        (((record,), (chunk,)),) = execute(self._client, [read])
        live_state(keys, record)
        return chunk is not None

    @_on_dataset
    def check_whole(self, keys: DatasetKeys) -> None:
        self._check(keys)
        if whole_buckets(self._client, keys) is None:
            raise lost(keys)

    @_on_dataset
    def forget_chunk(self, keys: DatasetKeys, chunk_id: bytes) -> None:
        for _ in range(REDIS_SWAPS_MAX):
            lineage = self._client.lineage()
            fields = [(keys.dataset, [RECORD, STORED]), (keys.chunks, [chunk_id]), (keys.deleted, [chunk_id])]
            (((record, counted), (chunk,), (bitmap,)),) = execute(self._client, [read_call(fields)])
            state = live_state(keys, record)
            if chunk is None:
                return
            stored = chunk_record(keys, chunk_id, chunk, bitmap)
            check_dead(chunk_id, stored.entries - stored.deleted_entries)
            # Receipts before the record, so that the chunk counts if it is applied again.
            bits = int.from_bytes(ChunkState.of(unseal(keys.chunks, chunk_id, chunk)).buckets, "little")
            receipts = [keys.bucket(number).receipts for number in range(BUCKETS) if bits >> number & 1]
            execute(self._client, [remove_field_call(each, chunk_id, lineage) for each in receipts])
            forgotten = Change(keys.chunks).remove(chunk_id, chunk)
            marks = Change(keys.deleted).remove(chunk_id, bitmap)
            fewer = DatasetState(state.record._replace(chunks=state.record.chunks - 1))
            dataset = Change(keys.dataset).put(RECORD, fewer.body(), record)
            length = PREAMBLE_BYTES + stored.header_length + stored.payload_length
            count_chunk(dataset, counted, state.record, fewer.record, -length)
            if swap(self._client, forgotten, marks, dataset):
                return
        raise Contended(f"{keys.owner} changes too fast for a chunk to be forgotten; try again")

    @_on_dataset
    def chunks(self, keys: DatasetKeys) -> list[ChunkRecord]:
        self._check(keys)
        return read_chunks(self._client, keys)

    def newest_chunk_time_s(self, dataset_id: bytes, until_s: int) -> int:
        times_s = (chunk_time_s(chunk.chunk_id) for chunk in self.chunks(dataset_id))
        return max((time_s for time_s in times_s if time_s <= until_s), default=0)

    @_on_dataset
    def notes(self, keys: DatasetKeys, names: Sequence[str]) -> list[bytes | None]:
        encoded = [name.encode() for name in names]
        read = read_call([(keys.dataset, [RECORD]), (keys.notes, encoded)])
        (((record,), values),) = execute(self._client, [read])
        live_state(keys, record)
        return [
            None if value is None else unseal(keys.notes, name, value)
            for name, value in zip(encoded, values, strict=True)
        ]

    @_on_dataset
    def notes_below(self, keys: DatasetKeys, folder: str) -> dict[str, bytes]:
        self._check(keys)
        found: dict[str, bytes] = {}
        lowest, highest = names_below(folder.encode())
        while True:
            scan = scan_call([Range(keys.notes, lowest, highest)], NOTES_AT_ONCE_MAX)
            ((members,),) = execute(self._client, [scan])
            for member in members:
                name, value = split_member(member)
                found[name.decode()] = unseal(keys.notes, name, value)
                lowest, _ = names_after(name)
            if len(members) < NOTES_AT_ONCE_MAX:
                return found

    @_on_dataset
    def change_notes(self, keys: DatasetKeys, changes: Sequence[NoteChange]) -> bool:
        self._check(keys)
        is_done = swap(self._client, note_changes(keys.notes, changes))
        self._check(keys)  # else it may be lost: a rebuild has put a copy in place, and has copied the notes
        return is_done

    def common_note(self, name: str) -> bytes | None:
        field = name.encode()
        (value,) = read_fields(self._client, self._common_notes, field)
        return None if value is None else unseal(self._common_notes, field, value)

    def change_common_note(self, change: NoteChange) -> bool:
        return swap(self._client, note_changes(self._common_notes, [change]))

    @_on_dataset
    def pending(self, keys: DatasetKeys, path: bytes) -> PendingFile:
        bucket, path_state = self._path_state(keys, path)
        newer = [file for file in path_state.gathered if file[0] > path_state.version]
        if not newer:
            return PendingFile()
        version, size, _ = max(newer)
        extents = self._extents(bucket, path, version, size)
        mtime_ns = extents[min(extents)].mtime_ns if extents else 0
        return PendingFile(
            version, size, mtime_ns, {place: extent.digest for place, extent in extents.items()}
        )

    @_on_dataset
    def lookup(self, keys: DatasetKeys, path: bytes) -> FileRecord | None:
        for _ in range(REDIS_SWAPS_MAX):
            bucket, path_state = self._path_state(keys, path)
            if not path_state.is_live:
                return None
            if path_state.kind != Kind.SPANNING:
                return path_state.record(path, path_state.extents)
            stored = self._extents(bucket, path, path_state.version, path_state.size)
            chosen = tiling(stored, path_state.size)
            if chosen is not None:  # else the file was replaced meanwhile
                parts = [(place, length, stored[place, length]) for place, length in chosen]
                return path_state.record(
                    path, tuple(Extent(at, e.chunk_id, e.offset, length, e.digest) for at, length, e in parts)
                )
        raise lost(keys)

    @_on_dataset
    def list_folder(self, keys: DatasetKeys, folder: bytes, after: bytes, limit: int) -> Sequence[FileRecord]:
        prefix = folder + b"/" if folder else b""
        folder_hash = keys.folder_hash(folder)
        key_pair = keys.bucket(folder_hash[0]).folder(folder_hash)
        self._check(keys, folder_hash[0])
        ranges = [Range(key_pair, *names_after(after)), Range(keys.tree, *names_after(after, within=folder))]
        (entries,), (folders,) = execute(self._client, [scan_call([part], limit) for part in ranges])
        records = []
        for name, value in map(split_member, entries):
            records.append(PathState.of(unseal(key_pair, name, value)).record(prefix + name, ()))
        children = [prefix + _tree_child(keys.tree, folder, member) for member in folders]
        return merge_listing(records, children, limit)

    def entry_table(self, dataset_id: bytes) -> EntryTable:
        return joined(self.read_entries(dataset_id, EntryBlocks))

    def read_entries(self, dataset_id: bytes, begin: Callable[[], Sink]) -> Sink:
        def read(keys: DatasetKeys) -> Sink:
            def finish(chunk_id: bytes, value: bytes) -> None:
                body = unseal(keys.pending, chunk_id, value)
                self._application(keys, *pending_of(body, f"chunk {chunk_name(chunk_id)}")).finish()

            return read_entries(self._client, keys, finish, begin)

        return self._on(dataset_id, read)

    def condition(self) -> list[CheckRecord]:
        info = self._client.ask_nodes(b"INFO")
        fsync = self._client.ask_nodes(b"CONFIG", b"GET", b"appendfsync")
        return checks(
            {
                node: node_settings(reply, fsync[node][1].decode() if fsync.get(node) else None)
                for node, reply in info.items()
            }
        )

    def lineage(self) -> int:
        return self._client.lineage()

    def close(self) -> None:
        self._client.close()

    def _on(self, dataset_id: bytes, work: Callable[[DatasetKeys], Result]) -> Result:
        """Call `work` with the dataset's keys; again with new keys if those were of a dropped or replaced dataset."""
        for _ in range(KEYS_TRIES_MAX):
            keys = self._datasets.keys(dataset_id)
            try:
                return work(keys)
            except DatasetGone:
                if self._datasets.follow(keys) is None:
                    self._datasets.forget(dataset_id, keys)
        raise NotFound(f"there is no dataset {dataset_id.hex()}")

    def _application(
        self, keys: DatasetKeys, preamble: Preamble, header: ChunkHeader, now_ns: int, is_again: bool = False
    ) -> ChunkApplication:
        with self._commits_lock:
            lock = self._commits[keys.token]
        return ChunkApplication(self._client, keys, lock, preamble, header, now_ns, is_again)

    def _check(self, keys: DatasetKeys, bucket: int | None = None) -> None:
        """Raise DatasetGone if there is no dataset, Damaged if the bucket has lost changes."""
        names = [] if bucket is None else [bucket_name(bucket)]
        record, *known = read_fields(self._client, keys.dataset, RECORD, *names)
        live_state(keys, record)
        if bucket is not None:
            (changes,) = read_fields(self._client, keys.bucket(bucket).changes, CHANGES)
            if not check_bucket(keys, bucket, known[0], changes):
                raise lost(keys)

    def _path_state(self, keys: DatasetKeys, path: bytes) -> tuple[BucketKeys, PathState]:
        """The bucket and the state of a path. Raises as `_check`."""
        folder, name = split_path(path)
        folder_hash = keys.folder_hash(folder)
        number = folder_hash[0]
        bucket = keys.bucket(number)
        key_pair = bucket.folder(folder_hash)
        dataset_read = read_call([(keys.dataset, [RECORD, bucket_name(number)])])
        bucket_read = read_call([(bucket.changes, [CHANGES]), (key_pair, [name])])
        ((record, known),), ((changes,), (value,)) = execute(self._client, [dataset_read, bucket_read])
        live_state(keys, record)
        if not check_bucket(keys, number, known, changes):
            self._check(keys, number)  # of two nodes, the second may have answered with an older state
            return self._path_state(keys, path)
        return bucket, PathState() if value is None else PathState.of(unseal(key_pair, name, value))

    def _extents(
        self, bucket: BucketKeys, path: bytes, version: int, size: int
    ) -> dict[tuple[int, int], StoredExtent]:
        scan = scan_call([Range(bucket.extents, *extents_of_file(path, version, size))], EXTENTS_OF_FILE_MAX)
        extents = {}
        for member in execute(self._client, [scan])[0][0]:
            name, value = split_member(member, len(member) - EXTENT_VALUE_BYTES - 1)
            place, length = parse_extent_name(name)[3:]
            extents[place, length] = StoredExtent.of(unseal(bucket.extents, name, value))
        return extents


def _shown(record: DatasetRecord) -> DatasetRecord:
    """The record without negative totals: a later chunk may be counted before an earlier one."""
    return record._replace(files=max(record.files, 0), total_bytes=max(record.total_bytes, 0))


def _tree_child(tree: KeyPair, folder: bytes, member: bytes) -> bytes:
    """The name of a subfolder of `folder`, from a member of the tree. Raises Damaged."""
    start = len(folder) + 1
    end = member.index(b"\0", start)
    unseal(tree, member[:end], member[end + 1 :])
    return member[start:end]
