"""The service: the backends, rights and limits that all handlers share."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import trio

from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.errors import AccessDenied, InvalidInput, NotFound, Unavailable
from dieselfs.limits import CHUNK_OBJECT_BYTES_MAX
from dieselfs.metrics import Registry
from dieselfs.names import check_dataset_name
from dieselfs.records import DatasetRecord
from dieselfs_server.datasets.catalog import Catalog
from dieselfs_server.datasets.commit import commit_chunk
from dieselfs_server.datasets.snapshots import SnapshotCache
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.reading.executor import RequestExecutor
from dieselfs_server.reading.open_payload import OpenPayload
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.users import Caller, Right, UserStore

Buffer = bytes | bytearray | memoryview
Found = TypeVar("Found", DatasetRecord, bytes)

ADMISSIONS_AT_ONCE_MAX = 1
"""Concurrent changes of membership lists. More would only cause conflicts and retries."""

STORE_WRITES_MAX = 16
"""Limit of chunks that are being stored, over all clients."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The value of a reply, and the bulk bytes that follow it, or the file whose content follows; it is then closed."""

    value: Any = None
    bulk: Sequence[Buffer] = ()
    file: OpenPayload | None = None


@dataclass(frozen=True, eq=False)
class Backends:
    """`scratch` is a folder for temporary files, `names` has the URLs of object store and metadata store."""

    store: ObjectStore
    metadata: MetadataStore
    users: UserStore
    snapshots: SnapshotCache
    tags: TagStore
    scratch: Path
    names: tuple[str, str]


def no_dataset(name: str) -> NotFound:
    """The error for a dataset that does not exist, or that the caller may not see."""
    return NotFound(f"there is no dataset {name!r}, or you have no right to see it; 'dlcmd ls' lists yours")


@dataclass(eq=False)
class Service:
    """The state of a server: only caches and counters, so any number of servers can run on the same backends."""

    backends: Backends
    clock: Callable[[], float] = time.time
    metrics: Registry = field(default_factory=Registry)

    def __post_init__(self) -> None:
        self.started_s = int(self.clock())
        self.requests = self.metrics.counter("rpc.requests", "Calls of clients.")
        self.sent_payload_bytes = self.metrics.counter("payloads.sent_bytes", "Bytes of chunks sent.")
        self.ids = ChunkIdSource(self.clock)
        self.catalog = Catalog(self.backends.store, self.backends.metadata)
        self.executor = RequestExecutor(self.backends.store, self.metrics)
        self.admissions = trio.CapacityLimiter(ADMISSIONS_AT_ONCE_MAX)
        self._writes = trio.CapacityLimiter(STORE_WRITES_MAX)

    def now_ns(self) -> int:
        return int(self.clock() * 10**9)

    # -- rights ------------------------------------------------------------------------------------------

    async def right(self, caller: Caller, dataset: str) -> Right:
        if caller.is_trusted:
            return Right.ADMIN
        users = await trio.to_thread.run_sync(self.backends.users.current)
        return caller.right_on(dataset, users, self.clock())

    async def require_right(self, caller: Caller, name: str, right: Right) -> None:
        """Raise AccessDenied, or NotFound if the caller may not see the dataset."""
        check_dataset_name(name)
        has = await self.right(caller, name)
        if has < Right.READ:
            raise no_dataset(name)
        if has < right:
            raise AccessDenied(
                f"user {caller.name} may only {has.name.lower()} dataset {name}; "
                f"an administrator can change that: dlcmd user grant {caller.name} {name} {right.name.lower()}"
            )

    async def dataset(self, caller: Caller, name: str, right: Right) -> DatasetRecord:
        """The dataset, if the caller has this right on it.

        Without the right to read, NotFound is raised whether or not the dataset exists.
        """
        return await self._looked_up(self.catalog.dataset, caller, name, right)

    async def dataset_id(self, caller: Caller, name: str, right: Right) -> bytes:
        """The ID of a dataset, also while its metadata is away or lost; else as `dataset`."""
        return await self._looked_up(self.catalog.dataset_id, caller, name, right)

    async def _looked_up(
        self, look_up: Callable[[str], Found | None], caller: Caller, name: str, right: Right
    ) -> Found:
        check_dataset_name(name)
        found: Found | None = None
        failure: Unavailable | None = None
        try:
            found = await trio.to_thread.run_sync(look_up, name)
        except Unavailable as error:
            failure = error
        await self.require_right(caller, name, right)  # before any answer about the dataset
        if failure is not None:
            raise failure
        if found is None:
            raise no_dataset(name)
        return found

    async def require_admin(self, caller: Caller) -> None:
        if await self.right(caller, "*") < Right.ADMIN:
            raise AccessDenied(f"user {caller.name} is not an administrator of this server")

    # -- writing -----------------------------------------------------------------------------------------

    async def may_send_bulk(self, method: str, caller: Caller, arguments: Any) -> int:
        """The number of bulk bytes that follow this call. Raises if the caller has no right to send them."""
        if method != "put_chunk":
            return 0
        if not 0 < arguments.bulk_length <= CHUNK_OBJECT_BYTES_MAX:
            raise InvalidInput(f"a chunk of {arguments.bulk_length} bytes, limit {CHUNK_OBJECT_BYTES_MAX}")
        await self.dataset(caller, arguments.dataset, Right.WRITE)
        return int(arguments.bulk_length)

    async def commit(self, dataset: DatasetRecord, chunk_id: bytes, data: bytes | bytearray) -> int:
        """Store and apply a chunk; returns the generation. If cancelled, the chunk is still stored and applied."""
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
