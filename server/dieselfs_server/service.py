"""The service: what handlers stand on. Who may do what, and the backends; the handlers are in `handlers/`.

Every handler takes the service, the caller, the arguments (a Thrift struct) and the bulk bytes that came with
the call, and returns a `Reply`. What it raises as DieselfsError is the refusal that the caller gets. Blocking
work runs in worker threads; if a handler is cancelled, a thread that is storing a chunk still finishes.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.errors import AccessDenied, InvalidInput, NotFound, Unavailable
from dieselfs.limits import CHUNK_OBJECT_BYTES_MAX
from dieselfs.meta.records import DatasetRecord
from dieselfs.names import check_dataset_name
from dieselfs_server.catalog import Catalog
from dieselfs_server.commit import commit_chunk
from dieselfs_server.executor import RequestExecutor
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.open_payload import OpenPayload
from dieselfs_server.snapshots import SnapshotShelf
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.tags import TagShelf
from dieselfs_server.users import Caller, Right, UserStore

Buffer = bytes | bytearray | memoryview

ADMISSIONS_AT_ONCE_MAX = 1
"""Members of jobs that this server puts on rolls at once. More would only be in each other's way."""

STORE_WRITES_MAX = 16
"""Chunks being stored at once, over all clients."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The value of a reply, and the bulk bytes that follow it, or the file that goes with it, to be closed then."""

    value: Any = None
    bulk: Sequence[Buffer] = ()
    file: OpenPayload | None = None


@dataclass
class Counters:
    """Since the server started. `status` of the RPC."""

    started_s: int
    connections: int = 0
    requests: int = 0
    bulk_bytes_received: int = 0
    bulk_bytes_sent: int = 0
    payload_bytes_given: int = 0
    """Of chunks, whole or in ranges, as they are asked for; without snapshots and lists of members."""


@dataclass(frozen=True, eq=False)
class Backends:
    """What a service works on; `scratch` is a folder for passing work, `names` the URLs of store and
    metadata.
    """

    store: ObjectStore
    metadata: MetadataStore
    users: UserStore
    snapshots: SnapshotShelf
    tags: TagShelf
    scratch: Path
    names: tuple[str, str]


Handler = Callable[["Service", Caller, Any, bytes | bytearray], Awaitable[Reply]]
HANDLERS: dict[str, Handler] = {}


def handler(function: Handler) -> Handler:
    """Make `function` the answer to calls of the method with its name; modules in `handlers/` use it."""
    HANDLERS[function.__name__] = function
    return function


def no_dataset(name: str) -> NotFound:
    """What is said of datasets that are not there, and of those that the caller may not see."""
    return NotFound(
        f"there is no dataset {name!r} (or you may not see it): 'dlcmd ls' shows those that you may read"
    )


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
        self.ids = ChunkIdSource(self.clock)
        self.catalog = Catalog(self.backends.store, self.backends.metadata)
        self.executor = RequestExecutor(self.backends.store)
        self.admissions = trio.CapacityLimiter(ADMISSIONS_AT_ONCE_MAX)
        self._writes = trio.CapacityLimiter(STORE_WRITES_MAX)

    async def handle(self, method: str, caller: Caller, arguments: Any, bulk: bytes | bytearray) -> Reply:
        self.counters.requests += 1
        return await HANDLERS[method](self, caller, arguments, bulk)

    def now_ns(self) -> int:
        return int(self.clock() * 10**9)

    # -- rights ------------------------------------------------------------------------------------------

    async def right(self, caller: Caller, dataset: str) -> Right:
        if caller.is_trusted:
            return Right.ADMIN
        users = await trio.to_thread.run_sync(self.backends.users.current)
        return caller.right_on(dataset, users, self.clock())

    async def require_right(self, caller: Caller, name: str, right: Right) -> None:
        """Raise AccessDenied, or NotFound to a caller who may not even know whether the dataset exists."""
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

        Looks the same to those who may not see it as if it were absent.
        """
        check_dataset_name(name)
        dataset: DatasetRecord | None = None
        lost: Unavailable | None = None
        try:
            dataset = await trio.to_thread.run_sync(self.catalog.dataset, name)
        except Unavailable as error:
            lost = error
        await self.require_right(caller, name, right)
        if lost is not None:
            raise lost
        if dataset is None:
            raise no_dataset(name)
        return dataset

    async def dataset_id(self, caller: Caller, name: str, right: Right) -> bytes:
        """The ID of a dataset, also while its metadata is away or lost; else as `dataset`."""
        check_dataset_name(name)
        dataset_id: bytes | None = None
        lost: Unavailable | None = None
        try:
            dataset_id = await trio.to_thread.run_sync(self.catalog.dataset_id, name)
        except Unavailable as error:
            lost = error
        await self.require_right(caller, name, right)
        if lost is not None:
            raise lost
        if dataset_id is None:
            raise no_dataset(name)
        return dataset_id

    async def require_admin(self, caller: Caller) -> None:
        if await self.right(caller, "*") < Right.ADMIN:
            raise AccessDenied(f"user {caller.name} is not an administrator of this server")

    # -- writing -----------------------------------------------------------------------------------------

    async def may_send_bulk(self, method: str, caller: Caller, arguments: Any) -> int:
        """How many bulk bytes follow this call. Raises a refusal if the caller may not send them."""
        if method != "put_chunk":
            return 0
        if not 0 < arguments.bulk_length <= CHUNK_OBJECT_BYTES_MAX:
            raise InvalidInput(f"a chunk of {arguments.bulk_length} bytes, limit {CHUNK_OBJECT_BYTES_MAX}")
        await self.dataset(caller, arguments.dataset, Right.WRITE)
        return int(arguments.bulk_length)

    async def commit(self, dataset: DatasetRecord, chunk_id: bytes, data: bytes | bytearray) -> int:
        """Store and apply a chunk; returns the generation. If cancelled, it is stored all the same."""
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
