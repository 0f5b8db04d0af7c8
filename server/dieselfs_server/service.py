"""The service: the backends and limits that all handlers share, and the rights of the caller of a call."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import trio

from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.errors import AccessDenied, InvalidInput, NotFound, Unavailable
from dieselfs.limits import SMALL_REPLY_BYTES
from dieselfs.names import check_dataset_name
from dieselfs.records import DatasetRecord
from dieselfs.rpc.messages import encode_progress
from dieselfs.rpc.methods import ADMIN, METHODS, READ, SERVER_ADMIN, WRITE
from dieselfs.rpc.records import CheckRecord, CopyProgress, PageLink
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry
from dieselfs_server.access.accounts import Caller, Right
from dieselfs_server.access.identity import Identity
from dieselfs_server.access.users import UserStore
from dieselfs_server.admission.quotas.admission import Quotas
from dieselfs_server.admission.quotas.fill import QuotaFill
from dieselfs_server.admission.quotas.usage import Usages
from dieselfs_server.admission.traffic import Traffic
from dieselfs_server.datasets.catalog import Catalog
from dieselfs_server.datasets.dataset_names import DatasetNames
from dieselfs_server.datasets.refresh import Refresh
from dieselfs_server.datasets.snapshots import SnapshotCache
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.logs import AuditLog
from dieselfs_server.maintenance.jobs import MaintenanceJobs, Proceed
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.reading.executor import RequestExecutor
from dieselfs_server.reading.request_path import RequestPath
from dieselfs_server.reading.shared_payloads import SharedPayloads
from dieselfs_server.recent import RecentFailures
from dieselfs_server.store.attached import AttachedStore
from dieselfs_server.store.interface import Buffer, ObjectStore, OpenPayload
from dieselfs_server.store.sources import Sources

_RIGHTS = {READ: Right.READ, WRITE: Right.WRITE, ADMIN: Right.ADMIN}

Found = TypeVar("Found", DatasetRecord, bytes)

ADMISSIONS_AT_ONCE_MAX = 1
"""Concurrent changes of membership lists. More would only cause conflicts and retries."""

STORE_WRITES_MAX = 16
"""Limit of chunks that are being stored, over all clients."""


COPIES_MAX = 4
"""Copies at the same time on a server, of all clients. Each has two chunks in memory."""

TAG_READS_MAX = 2
"""Limit of tags that are being read, over all clients: each is a snapshot in memory."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A value, and the bulk bytes that follow it, or the files that are passed with it; they are then closed."""

    value: Any
    bulk: Sequence[Buffer] = ()
    files: Sequence[OpenPayload] = ()


class PageHost(Protocol):
    """Serves the web page."""

    async def open(self, caller: Caller, lease_s: int) -> PageLink:
        """A link with which a browser becomes `caller`. Raises Unavailable."""
        ...

    def keep(self, caller: Caller, lease_s: int) -> None:
        """Keep an embedded server running for the page, for `lease_s` seconds from now."""
        ...


@dataclass(eq=False)
class Service:
    """The state of a server: only caches and counters, so any number of servers can run on the same backends.

    `scratch` is a folder for temporary files, `names` has the URLs of object store and metadata store. `shared_bytes`:
    the limit of payloads in shared memory, 0: none; `segments_max`: the system allows no more of them. `sources`: what
    may be attached. `surroundings`: checks of what the server depends on besides its stores.
    `recent`: what failed lately; `page`: the web page, if there is one.
    """

    store: ObjectStore
    metadata: MetadataStore
    users: UserStore
    identity: Identity
    snapshots: SnapshotCache
    tags: TagStore
    scratch: Path
    names: tuple[str, str]
    metrics: Registry = field(default_factory=Registry)
    audit: AuditLog | None = None
    shared_bytes: int = 0
    segments_max: int = 0
    request_path: RequestPath = field(default_factory=RequestPath)
    sources: Sources = field(default_factory=Sources)
    surroundings: Sequence[Callable[[], CheckRecord]] = ()
    recent: RecentFailures = field(default_factory=RecentFailures)
    page: PageHost | None = None

    def __post_init__(self) -> None:
        self.store = AttachedStore(self.store, self.sources)
        self.started_s = int(time.time())
        self.metrics.declare(catalogue.UPTIME_S, lambda: int(time.time()) - self.started_s)
        self.requests = self.metrics.declare(catalogue.RPC_REQUESTS)
        self.sent_payload_bytes = self.metrics.declare(catalogue.PAYLOADS_SENT_BYTES)
        self.sent_snapshot_bytes = self.metrics.counter(
            "snapshots.sent_bytes", "Bytes of snapshots and deltas sent."
        )
        self.sent_deltas = self.metrics.counter("snapshots.sent_deltas", "Deltas sent in place of snapshots.")
        self.ids = ChunkIdSource(time.time)
        self.names_of_datasets = DatasetNames(self.store)
        self.catalog = Catalog(self.store, self.metadata)
        self.refresh = Refresh(self._prepare_snapshot)
        self.executor = RequestExecutor(self.store, self.metrics, self.request_path, self.sources)
        self.shared = SharedPayloads(self.executor, self.shared_bytes, self.segments_max, self.metrics)
        self.admissions = trio.CapacityLimiter(ADMISSIONS_AT_ONCE_MAX)
        self.maintenance = MaintenanceJobs(self.metadata, self.now_ns)
        self.quotas = Quotas(self.metadata, self.users, self.metrics)
        self.quota_fill = QuotaFill(self.metadata, self.users, self.metrics)
        self.traffic = Traffic(self.metadata, self.users)
        self.usages = Usages(self.metadata, self.users, self.traffic)
        self.writes = trio.CapacityLimiter(STORE_WRITES_MAX)
        self.metrics.gauge(
            "writing.waiting",
            "Chunks that wait to be stored.",
            lambda: self.writes.statistics().tasks_waiting,
        )
        self.copies = trio.Semaphore(COPIES_MAX)
        # Not of `writes`: a copy waits in its thread for room in a quota.
        self.copy_writes = trio.CapacityLimiter(COPIES_MAX)
        self.last_attached: dict[
            bytes, tuple[str, bytes]
        ] = {}  # by dataset ID: user and source, for the audit log
        self.tag_reads = trio.CapacityLimiter(TAG_READS_MAX)

    def now_ns(self) -> int:
        return int(time.time() * 10**9)

    async def _prepare_snapshot(self, name: str) -> None:
        dataset = await trio.to_thread.run_sync(self.metadata.dataset, name, abandon_on_cancel=True)
        await trio.to_thread.run_sync(
            self.catalog.check_built, dataset, self.now_ns(), abandon_on_cancel=True
        )
        await self.snapshots.prepare(dataset)


async def _hold_nothing(size_bytes: int) -> None:
    """For calls without a budget, or a rate."""


@dataclass(eq=False)
class Call:
    """A call of a method. `arguments` is a Thrift struct; `bulk` has the bytes that followed it. `hold` takes bytes of
    the budget of replies, until the reply has been sent; `pace` waits for the rate of the caller. A handler may set
    `progress`. `audited`: what it adds to the audit log; with it, the log has also methods that it does not have
    otherwise.
    """

    service: Service
    caller: Caller
    method: str
    arguments: Any
    bulk: bytes | bytearray = b""
    hold: Callable[[int], Awaitable[None]] = _hold_nothing
    pace: Callable[[int], Awaitable[None]] = _hold_nothing
    audited: dict[str, str] = field(default_factory=dict)
    progress: Callable[[], CopyProgress] | None = None
    is_allowed: bool = False

    def show_progress(self, proceed: Proceed) -> None:
        """Tell the caller about a job, if the call asks for it."""
        if self.arguments.with_progress:
            self.progress = lambda: proceed.progress

    def sign_of_life(self) -> bytes:
        """A message for the caller while the server works: its progress, if the handler has any, or empty."""
        return b"" if self.progress is None else encode_progress(self.progress())

    async def hold_reply(self, size_bytes: int) -> None:
        """Call it before the memory for a reply is taken. Raises Unavailable if the replies of others take it for too
        long.
        """
        if size_bytes > SMALL_REPLY_BYTES:
            await self.pace(size_bytes)
            await self.hold(size_bytes)

    async def hold_first(self, size_bytes: int) -> None:
        """As `hold_reply`, for memory that is taken already, without the wait for the rate: `pace` is called later."""
        if size_bytes > SMALL_REPLY_BYTES:
            await self.hold(size_bytes)

    @property
    def _needs(self) -> str:
        needs = METHODS[self.method].needs
        return needs if isinstance(needs, str) else needs(self.arguments)

    async def answered_by(self, handler: Callable[["Call"], Awaitable[Any]]) -> Any:
        """What the handler returns. Raises AccessDenied to callers who must administer the server, and do not.

        A handler that does not look at the right of the caller on its dataset, by `dataset`, `dataset_id` or
        `require_right`, has a bug, and gives no reply.
        """
        needs = self._needs
        if needs == SERVER_ADMIN:
            await self.require_admin()
        value = await handler(self)
        if needs in _RIGHTS and not self.is_allowed:
            raise RuntimeError(f"the handler of {self.method} has not checked the right of its caller")
        return value

    async def right(self, dataset: str) -> Right:
        if self.caller.is_trusted:
            return Right.ADMIN
        accounts = await trio.to_thread.run_sync(self.service.users.current)
        return self.caller.right_on(dataset, accounts, time.time())

    async def require_right(self, right: Right | None = None, name: str | None = None) -> None:
        """Raise AccessDenied, or NotFound if the caller may not see the dataset. `right`: by default the one that the
        call needs; `name`: by default of the dataset that the arguments name.
        """
        right, name = self._defaults(right, name)
        check_dataset_name(name)
        has = await self.right(name)
        if has < Right.READ:
            raise _no_dataset(name)
        if has < right:
            user = self.caller.name
            raise AccessDenied(
                f"user {user} may only {has.name.lower()} dataset {name}; "
                f"an administrator can change that: dlcmd user grant {user} {name} {right.name.lower()}"
            )
        self.is_allowed = True

    def _defaults(self, right: Right | None, name: str | None) -> tuple[Right, str]:
        if name is None:
            arguments = self.arguments
            name = str(arguments.dataset if hasattr(arguments, "dataset") else arguments.name)
        return _RIGHTS[self._needs] if right is None else right, name

    async def require_admin(self) -> None:
        if await self.right("*") < Right.ADMIN:
            raise AccessDenied(f"user {self.caller.name} is not an administrator of this server")

    async def dataset(self, right: Right | None = None, name: str | None = None) -> DatasetRecord:
        """The dataset, if the caller has this right on it; defaults: see `require_right`.

        Without the right to read, NotFound is raised whether or not the dataset exists.
        """
        return await self._looked_up(self.service.catalog.dataset, *self._defaults(right, name))

    async def dataset_id(self) -> bytes:
        """The ID of the dataset that the arguments name, also while its metadata is away or lost.

        Raises NotFound, AccessDenied like `dataset`.
        """
        return await self._looked_up(self.service.catalog.dataset_id, *self._defaults(None, None))

    async def _looked_up(self, look_up: Callable[[str], Found | None], right: Right, name: str) -> Found:
        check_dataset_name(name)
        found: Found | None = None
        failure: Unavailable | None = None
        try:
            found = await trio.to_thread.run_sync(look_up, name)
        except Unavailable as error:
            failure = error
        await self.require_right(right, name)  # before any reply about the dataset
        if failure is not None:
            raise failure
        if found is None:
            raise _no_dataset(name)
        return found

    async def bulk_length(self) -> int:
        """The number of bulk bytes that follow the call. Raises if the caller has no right to send them."""
        limit_bytes = METHODS[self.method].sizes.bulk_bytes
        if not limit_bytes:
            return 0
        length: int = self.arguments.bulk_length
        if not 0 < length <= limit_bytes:
            raise InvalidInput(f"a chunk of {length} bytes, limit {limit_bytes}")
        await self.dataset()
        return length


def _no_dataset(name: str) -> NotFound:
    """The error for a dataset that does not exist, or that the caller may not see."""
    return NotFound(f"there is no dataset {name!r}, or you have no right to see it; 'dlcmd ls' lists yours")
