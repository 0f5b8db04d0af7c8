"""What the server does for each call of `dieselfs.thrift`: checks the caller's rights, then asks the stores.

Every handler takes the caller, the arguments (a Thrift struct) and the bulk bytes that came with the call,
and returns a `Reply`. What it raises as DieselfsError is the refusal that the caller gets. Blocking work runs
in worker threads; if a handler is cancelled, a thread that is storing a chunk still finishes.
"""

import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import astuple, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

import numpy as np
import trio

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.format import DATASET_ID_BYTES, PREAMBLE_BYTES, Op, Preamble, decode_preamble
from dieselfs.chunk.ids import CHUNK_ID_BYTES, ChunkIdSource, chunk_name
from dieselfs.errors import AccessDenied, AlreadyExists, Damaged, InvalidInput, NotFound
from dieselfs.limits import (
    CHUNK_OBJECT_BYTES_MAX,
    INLINE_FILE_BYTES_MAX,
    LISTING_ENTRIES_MAX,
    RANGES_PER_REQUEST_MAX,
    VERSIONS_PER_REQUEST_MAX,
)
from dieselfs.meta.records import DatasetRecord, FileRecord
from dieselfs.names import check_dataset_name, check_path, printable, split_path
from dieselfs.rpc.auth import Key
from dieselfs.rpc.messages import thrift
from dieselfs_server.commit import commit_chunk
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.purge import purge
from dieselfs_server.ranges import cut_ranges, merge_ranges
from dieselfs_server.snapshots import SnapshotShelf
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.users import Caller, Right, UserStore, with_grant, with_key, without_key

Buffer = bytes | bytearray | memoryview

STORE_READS_MAX = 16
"""Reads from the object store under way at once, over all clients."""

STORE_WRITES_MAX = 16
PREAMBLES_KEPT = 65_536

log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Reply:
    """The value of a reply, and the bulk bytes that follow it."""

    value: Any = None
    bulk: Sequence[Buffer] = ()


@dataclass
class Counters:
    """Since the server started. `status` of the RPC."""

    started_s: int
    connections: int = 0
    requests: int = 0
    bulk_bytes_received: int = 0
    bulk_bytes_sent: int = 0


@dataclass(frozen=True, eq=False)
class Backends:
    """What a service works on; `names` are the URLs of store and metadata, for `status`."""

    store: ObjectStore
    metadata: MetadataStore
    users: UserStore
    snapshots: SnapshotShelf
    names: tuple[str, str]


Handler = Callable[["Service", Caller, Any, bytes | bytearray], Awaitable[Reply]]
HANDLERS: dict[str, Handler] = {}


def _handler(function: Handler) -> Handler:
    HANDLERS[function.__name__] = function
    return function


def server_version() -> str:
    try:
        return version("dieselfs")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "unknown"


@dataclass(eq=False)
class Service:
    """All handlers over one set of backends.

    Stateless but for caches and counters: any number may run side by side.
    """

    backends: Backends
    clock: Callable[[], float] = time.time
    counters: Counters = field(init=False)

    def __post_init__(self) -> None:
        self.counters = Counters(started_s=int(self.clock()))
        self._ids = ChunkIdSource(self.clock)
        self._reads = trio.CapacityLimiter(STORE_READS_MAX)
        self._writes = trio.CapacityLimiter(STORE_WRITES_MAX)
        self._preambles: dict[tuple[bytes, bytes], Preamble] = {}  # changed only between checkpoints

    async def handle(self, method: str, caller: Caller, arguments: Any, bulk: bytes | bytearray) -> Reply:
        self.counters.requests += 1
        return await HANDLERS[method](self, caller, arguments, bulk)

    def now_ns(self) -> int:
        return int(self.clock() * 10**9)

    # -- rights ------------------------------------------------------------------------------------------

    async def _right(self, caller: Caller, dataset: str) -> Right:
        if caller.is_trusted:
            return Right.ADMIN
        users = await trio.to_thread.run_sync(self.backends.users.current)
        return caller.right_on(dataset, users, self.clock())

    async def _require_right(self, caller: Caller, name: str, right: Right) -> None:
        """Raise AccessDenied, or NotFound to a caller who may not even know whether the dataset exists."""
        check_dataset_name(name)
        has = await self._right(caller, name)
        if has < Right.READ:
            raise _no_dataset(name)
        if has < right:
            raise AccessDenied(
                f"user {caller.name} may only {has.name.lower()} dataset {name}; "
                f"an administrator can change that: dlcmd user grant {caller.name} {name} {right.name.lower()}"
            )

    async def _dataset(self, caller: Caller, name: str, right: Right) -> DatasetRecord:
        """The dataset, if the caller has this right on it.

        Looks the same to those who may not see it as if it were absent.
        """
        check_dataset_name(name)
        try:
            dataset = await trio.to_thread.run_sync(self.backends.metadata.dataset, name)
        except NotFound:
            dataset = None
        await self._require_right(caller, name, right)
        if dataset is None:
            raise _no_dataset(name)
        return dataset

    async def _require_admin(self, caller: Caller) -> None:
        if await self._right(caller, "*") < Right.ADMIN:
            raise AccessDenied(f"user {caller.name} is not an administrator of this server")

    # -- datasets ----------------------------------------------------------------------------------------

    @_handler
    async def create_dataset(self, caller: Caller, arguments: Any, _: object) -> Reply:
        await self._require_right(caller, arguments.name, Right.WRITE)
        dataset_id = secrets.token_bytes(DATASET_ID_BYTES)
        create = self.backends.metadata.create_dataset
        return Reply(_dataset_info(await trio.to_thread.run_sync(create, arguments.name, dataset_id)))

    @_handler
    async def get_dataset(self, caller: Caller, arguments: Any, _: object) -> Reply:
        return Reply(_dataset_info(await self._dataset(caller, arguments.name, Right.READ)))

    @_handler
    async def list_datasets(self, caller: Caller, arguments: Any, _: object) -> Reply:
        datasets = await trio.to_thread.run_sync(self.backends.metadata.datasets)
        return Reply([_dataset_info(d) for d in datasets if await self._right(caller, d.name) >= Right.READ])

    @_handler
    async def drop_dataset(self, caller: Caller, arguments: Any, _: object) -> Reply:
        dataset = await self._dataset(caller, arguments.name, Right.ADMIN)

        def drop() -> None:
            # Chunks first: were the record gone first, a crash would leave chunks that nothing leads to.
            self.backends.store.delete_dataset(dataset.dataset_id)
            self.backends.metadata.drop_dataset(dataset.dataset_id)
            self.backends.snapshots.drop(dataset.dataset_id)

        await trio.to_thread.run_sync(drop)
        log.info("dataset %s dropped by %s", dataset.name, caller.name)
        return Reply()

    @_handler
    async def purge(self, caller: Caller, arguments: Any, _: object) -> Reply:
        right = Right.READ if arguments.is_dry_run else Right.ADMIN
        dataset = await self._dataset(caller, arguments.dataset, right)
        if not 0 <= arguments.grace_s < 1 << 40:
            raise InvalidInput(f"grace time of {arguments.grace_s} s is out of range")
        report = await trio.to_thread.run_sync(
            purge,
            self.backends.store,
            self.backends.metadata,
            dataset,
            self._ids,
            self.now_ns(),
            arguments.grace_s,
            arguments.is_dry_run,
        )
        return Reply(thrift.PurgeReport(*astuple(report)))

    # -- writing -----------------------------------------------------------------------------------------

    @_handler
    async def reserve_versions(self, caller: Caller, arguments: Any, _: object) -> Reply:
        dataset = await self._dataset(caller, arguments.dataset, Right.WRITE)
        if not 0 < arguments.count <= VERSIONS_PER_REQUEST_MAX:
            raise InvalidInput(f"{arguments.count} versions asked for, limit {VERSIONS_PER_REQUEST_MAX}")
        reserve = self.backends.metadata.reserve_versions
        return Reply(
            await trio.to_thread.run_sync(reserve, dataset.dataset_id, arguments.count, self.now_ns())
        )

    async def may_send_bulk(self, method: str, caller: Caller, arguments: Any) -> int:
        """How many bulk bytes follow this call. Raises a refusal if the caller may not send them."""
        if method != "put_chunk":
            return 0
        if not 0 < arguments.bulk_length <= CHUNK_OBJECT_BYTES_MAX:
            raise InvalidInput(f"a chunk of {arguments.bulk_length} bytes, limit {CHUNK_OBJECT_BYTES_MAX}")
        await self._dataset(caller, arguments.dataset, Right.WRITE)
        return int(arguments.bulk_length)

    @_handler
    async def put_chunk(self, caller: Caller, arguments: Any, bulk: bytes | bytearray) -> Reply:
        if len(arguments.chunk_id) != CHUNK_ID_BYTES:
            raise InvalidInput(f"a chunk ID has {CHUNK_ID_BYTES} bytes")
        dataset = await self._dataset(caller, arguments.dataset, Right.WRITE)
        return Reply(await self._commit(dataset, arguments.chunk_id, bulk))

    async def _commit(self, dataset: DatasetRecord, chunk_id: bytes, data: bytes | bytearray) -> int:
        return await trio.to_thread.run_sync(
            commit_chunk,
            self.backends.store,
            self.backends.metadata,
            dataset.dataset_id,
            chunk_id,
            data,
            self.now_ns(),
            limiter=self._writes,
        )

    @_handler
    async def write_file(self, caller: Caller, arguments: Any, _: object) -> Reply:
        dataset = await self._dataset(caller, arguments.dataset, Right.WRITE)
        if len(arguments.content) > INLINE_FILE_BYTES_MAX:
            raise InvalidInput(f"write_file takes at most {INLINE_FILE_BYTES_MAX} bytes; use put_chunk")
        builder = ChunkBuilder()
        builder.add_file(arguments.path, arguments.content, arguments.mode, arguments.mtime_ns)
        sealed = builder.seal()
        reserve = self.backends.metadata.reserve_versions
        first = await trio.to_thread.run_sync(reserve, dataset.dataset_id, 1, self.now_ns())
        while True:
            chunk_id = self._ids.next()
            parts = sealed.encode(chunk_id, dataset.name, dataset.dataset_id, first)
            try:
                return Reply(await self._commit(dataset, chunk_id, b"".join(parts)))
            except AlreadyExists:
                continue  # another writer came to the same ID: take the next

    @_handler
    async def get_pending(self, caller: Caller, arguments: Any, _: object) -> Reply:
        dataset = await self._dataset(caller, arguments.dataset, Right.WRITE)
        look = self.backends.metadata.pending
        pending = await trio.to_thread.run_sync(look, dataset.dataset_id, check_path(arguments.path))
        pieces = np.array(sorted(pending.pieces), "<u8").tobytes()
        return Reply(
            thrift.PendingInfo(
                version=pending.version, size=pending.size, mtime_ns=pending.mtime_ns, pieces=pieces
            )
        )

    # -- reading -----------------------------------------------------------------------------------------

    @_handler
    async def get_snapshot(self, caller: Caller, arguments: Any, _: object) -> Reply:
        dataset = await self._dataset(caller, arguments.dataset, Right.READ)
        snapshot = await self.backends.snapshots.get(dataset, arguments.generation)
        bulk = [] if arguments.known_digest == snapshot.digest else [snapshot.content]
        info = thrift.SnapshotInfo(
            generation=snapshot.generation,
            updated_ns=snapshot.header.updated_ns,
            digest=snapshot.digest,
            bulk_length=sum(len(view) for view in bulk),
        )
        return Reply(info, bulk)

    @_handler
    async def get_payload(self, caller: Caller, arguments: Any, _: object) -> Reply:
        dataset = await self._dataset(caller, arguments.dataset, Right.READ)
        preamble = await self._preamble(dataset, arguments.chunk_id)
        payload = await self._read(dataset, preamble, 0, preamble.payload_length)
        return Reply(thrift.Bulk(bulk_length=len(payload)), [payload])

    @_handler
    async def get_ranges(self, caller: Caller, arguments: Any, _: object) -> Reply:
        dataset = await self._dataset(caller, arguments.dataset, Right.READ)
        if len(arguments.ranges) % 8 or len(arguments.ranges) > 8 * RANGES_PER_REQUEST_MAX:
            raise InvalidInput(f"ranges are pairs of u32, at most {RANGES_PER_REQUEST_MAX}")
        ranges = np.frombuffer(arguments.ranges, "<u4").reshape(-1, 2).astype(np.int64)
        preamble = await self._preamble(dataset, arguments.chunk_id)
        if len(ranges) and int(ranges.sum(axis=1).max()) > preamble.payload_length:
            raise InvalidInput(f"a range ends behind the payload of {preamble.payload_length} bytes")
        length = int(ranges[:, 1].sum())
        if length > CHUNK_OBJECT_BYTES_MAX:
            raise InvalidInput(f"the ranges have {length} bytes, limit {CHUNK_OBJECT_BYTES_MAX}")
        spans = merge_ranges(ranges)
        contents = [await self._read(dataset, preamble, start, size) for start, size in spans.tolist()]
        return Reply(thrift.Bulk(bulk_length=length), cut_ranges(ranges, spans, contents))

    async def _preamble(self, dataset: DatasetRecord, chunk_id: bytes) -> Preamble:
        if len(chunk_id) != CHUNK_ID_BYTES:
            raise InvalidInput(f"a chunk ID has {CHUNK_ID_BYTES} bytes")
        key = (dataset.dataset_id, chunk_id)
        if key not in self._preambles:
            head = await self._blocking_read(dataset, chunk_id, 0, PREAMBLE_BYTES)
            if len(self._preambles) >= PREAMBLES_KEPT:
                self._preambles.clear()
            self._preambles[key] = decode_preamble(head, _name(dataset, chunk_id), chunk_id)
        return self._preambles[key]

    async def _read(self, dataset: DatasetRecord, preamble: Preamble, start: int, length: int) -> bytes:
        try:
            return await self._blocking_read(
                dataset, preamble.chunk_id, preamble.payload_start + start, length
            )
        except (Damaged, NotFound):
            self._preambles.pop((dataset.dataset_id, preamble.chunk_id), None)
            raise

    async def _blocking_read(
        self, dataset: DatasetRecord, chunk_id: bytes, offset: int, length: int
    ) -> bytes:
        read = self.backends.store.get_range
        return await trio.to_thread.run_sync(
            read, dataset.dataset_id, chunk_id, offset, length, limiter=self._reads
        )

    @_handler
    async def stat(self, caller: Caller, arguments: Any, _: object) -> Reply:
        dataset = await self._dataset(caller, arguments.dataset, Right.READ)
        record = await trio.to_thread.run_sync(self._find, dataset, check_path(arguments.path))
        return Reply(_entry_info(record))

    def _find(self, dataset: DatasetRecord, path: bytes) -> FileRecord:
        """The live entry at `path`, or what a folder without one looks like. Blocks. Raises NotFound."""
        metadata = self.backends.metadata
        record = metadata.lookup(dataset.dataset_id, path)
        if record is not None:
            return record
        if path and not metadata.list_folder(dataset.dataset_id, path, b"", 1):
            raise NotFound(f"dl://{dataset.name}/{printable(path)}: no such file or folder")
        return FileRecord(path, Op.DIRECTORY, 0o755, 0, 0, 0, b"", ())

    @_handler
    async def list_folder(self, caller: Caller, arguments: Any, _: object) -> Reply:
        dataset = await self._dataset(caller, arguments.dataset, Right.READ)
        path = check_path(arguments.path)
        if not 0 < arguments.limit <= LISTING_ENTRIES_MAX:
            raise InvalidInput(f"{arguments.limit} entries asked for, limit {LISTING_ENTRIES_MAX}")

        def listing() -> Sequence[FileRecord]:
            if self._find(dataset, path).op != Op.DIRECTORY:
                raise InvalidInput(f"dl://{dataset.name}/{printable(path)}: not a folder")
            metadata = self.backends.metadata
            return metadata.list_folder(dataset.dataset_id, path, arguments.after, arguments.limit)

        return Reply([_entry_info(record) for record in await trio.to_thread.run_sync(listing)])

    @_handler
    async def read_file(self, caller: Caller, arguments: Any, _: object) -> Reply:
        dataset = await self._dataset(caller, arguments.dataset, Right.READ)
        record = await trio.to_thread.run_sync(self._find, dataset, check_path(arguments.path))
        if record.op != Op.FILE or record.size > INLINE_FILE_BYTES_MAX:
            raise InvalidInput(f"read_file gives files of at most {INLINE_FILE_BYTES_MAX} bytes")
        content = []
        for extent in record.extents:
            preamble = await self._preamble(dataset, extent.chunk_id)
            content.append(await self._read(dataset, preamble, extent.offset, extent.length))
        return Reply(b"".join(content))

    # -- users and server --------------------------------------------------------------------------------

    @_handler
    async def add_key(self, caller: Caller, arguments: Any, _: object) -> Reply:
        await self._require_admin(caller)
        key, now_s = Key.generate(arguments.user), int(self.clock())
        if arguments.expires_s and arguments.expires_s <= now_s:
            raise InvalidInput("the key would have expired already")
        change = self.backends.users.change
        await trio.to_thread.run_sync(change, lambda users: with_key(users, key, now_s, arguments.expires_s))
        return Reply(key.text())

    @_handler
    async def remove_key(self, caller: Caller, arguments: Any, _: object) -> Reply:
        await self._require_admin(caller)
        change = self.backends.users.change
        await trio.to_thread.run_sync(
            change, lambda users: without_key(users, arguments.user, arguments.key_id)
        )
        return Reply()

    @_handler
    async def grant(self, caller: Caller, arguments: Any, _: object) -> Reply:
        await self._require_admin(caller)
        right = Right.parse(arguments.right)
        change = self.backends.users.change
        await trio.to_thread.run_sync(
            change, lambda users: with_grant(users, arguments.user, arguments.dataset, right)
        )
        return Reply()

    @_handler
    async def list_users(self, caller: Caller, arguments: Any, _: object) -> Reply:
        await self._require_admin(caller)
        users = await trio.to_thread.run_sync(self.backends.users.current)
        return Reply(
            [
                thrift.UserInfo(
                    name=name,
                    keys=[
                        thrift.KeyInfo(key_id=key_id, created_s=key.created_s, expires_s=key.expires_s)
                        for key_id, key in user.keys.items()
                    ],
                    grants={dataset: right.name.lower() for dataset, right in user.grants.items()},
                )
                for name, user in sorted(users.items())
            ]
        )

    @_handler
    async def status(self, caller: Caller, arguments: Any, _: object) -> Reply:
        await self._require_admin(caller)
        store, metadata = self.backends.names
        counters = self.counters
        return Reply(
            thrift.StatusInfo(
                version=server_version(),
                started_s=counters.started_s,
                connections=counters.connections,
                requests=counters.requests,
                bulk_bytes_received=counters.bulk_bytes_received,
                bulk_bytes_sent=counters.bulk_bytes_sent,
                store=store,
                metadata=metadata,
            )
        )


def _no_dataset(name: str) -> NotFound:
    return NotFound(
        f"there is no dataset {name!r} (or you may not see it): 'dlcmd ls' shows those that you may read"
    )


def _name(dataset: DatasetRecord, chunk_id: bytes) -> str:
    return f"chunk {chunk_name(chunk_id)} of {dataset.name}"


def _dataset_info(dataset: DatasetRecord) -> Any:
    return thrift.DatasetInfo(
        name=dataset.name,
        dataset_id=dataset.dataset_id,
        generation=dataset.generation,
        updated_ns=dataset.updated_ns,
        files=dataset.files,
        total_bytes=dataset.total_bytes,
        chunks=dataset.chunks,
    )


def _entry_info(record: FileRecord) -> Any:
    return thrift.EntryInfo(
        name=split_path(record.path)[1],
        op=int(record.op),
        mode=record.mode,
        mtime_ns=record.mtime_ns,
        size=record.size,
        target=record.target,
    )
