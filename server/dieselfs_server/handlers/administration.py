"""Handlers for datasets as a whole, their tags and maintenance, and for the server's status."""

import json
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import trio

from dieselfs import __version__
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.errors import AlreadyExists, Damaged, InvalidInput, NotFound, Unavailable
from dieselfs.fields import DATASET_ID_BYTES
from dieselfs.limits import CHUNK_PAYLOAD_BYTES_MAX, CHUNK_TARGET_BYTES
from dieselfs.names import printable
from dieselfs.records import DatasetRecord
from dieselfs.rpc.records import (
    AttachedRecord,
    CheckRecord,
    DetachReport,
    FsckReport,
    MirrorRecord,
    PageLink,
    PurgeReport,
    RebuildReport,
    RepackReport,
    ServerCheck,
    ServerStatus,
    TagRecord,
)
from dieselfs.rpc.serving.slots import part_of
from dieselfs.telemetry.activity import SERVER_METRICS
from dieselfs.telemetry.registry import Registry, Report
from dieselfs_server import condition
from dieselfs_server.access.accounts import Accounts, Caller, Right, with_owner
from dieselfs_server.access.identity import Identity, LiveIdentity
from dieselfs_server.access.users import UserStore
from dieselfs_server.admission.quotas import Quotas
from dieselfs_server.admission.room import Room
from dieselfs_server.call import Call
from dieselfs_server.datasets.catalog import Catalog
from dieselfs_server.datasets.commit import late_record
from dieselfs_server.datasets.dataset_keys import DatasetKeys
from dieselfs_server.datasets.dataset_names import DatasetNames
from dieselfs_server.datasets.mirrors import MIRROR_TAG, Mirrors, unapplied
from dieselfs_server.datasets.references import References
from dieselfs_server.datasets.snapshots import SnapshotCache
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.handlers.copying import CopyCalls
from dieselfs_server.maintenance import attachments, history
from dieselfs_server.maintenance import fsck as checking
from dieselfs_server.maintenance import purge as purging
from dieselfs_server.maintenance import rebuild as rebuilding
from dieselfs_server.maintenance import repack as repacking
from dieselfs_server.maintenance.jobs import JOBS_MAX, MaintenanceJobs, Proceed
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.reading.shared_payloads import SharedPayloads
from dieselfs_server.store.attached import Sources
from dieselfs_server.store.interface import ObjectStore

GRACE_S_MAX = 1 << 40
TIME_S_MAX = 0xFFFF_FFFF

Result = TypeVar("Result")

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class DatasetCalls:
    """Datasets as a whole, and their tags."""

    store: ObjectStore
    metadata: MetadataStore
    users: UserStore
    quotas: Quotas
    catalog: Catalog
    names: DatasetNames
    snapshots: SnapshotCache
    tags: TagStore
    shared: SharedPayloads
    keys: DatasetKeys
    mirrors: Mirrors

    async def create_dataset(self, call: Call) -> DatasetRecord:
        await call.require_right()
        name, asked_id = call.arguments.name, call.arguments.dataset_id or b""
        if asked_id:
            await call.require_admin()
            await trio.to_thread.run_sync(self._check_id, name, asked_id)
        owner = "" if call.caller.is_trusted else call.caller.name
        return await trio.to_thread.run_sync(self._create, name, owner, asked_id)

    def _check_id(self, name: str, dataset_id: bytes) -> None:
        """Raise InvalidInput for what is no ID, or that of another dataset, also of one that has lost its metadata."""
        if len(dataset_id) != DATASET_ID_BYTES:
            raise InvalidInput(f"a dataset ID of {len(dataset_id)} bytes; it must have {DATASET_ID_BYTES}")
        taken = [other for other, each in self.names.all().items() if each == dataset_id and other != name]
        if taken or any(record.dataset_id == dataset_id for record in self.metadata.datasets()):
            raise InvalidInput(f"a dataset with the ID {dataset_id.hex()} is here already")
        if (
            dataset_id in References(self.store).remains()
        ):  # a purge would take its chunks for those that are left
            raise InvalidInput(
                f"copies still use chunks of a removed dataset with the ID {dataset_id.hex()}: "
                "delete these copies, then run 'dlcmd purge' on their datasets"
            )

    def _create(self, name: str, owner: str, asked_id: bytes) -> DatasetRecord:
        """Raises AlreadyExists, and Unavailable if the dataset has lost its metadata. Blocks."""
        if self.catalog.dataset(name) is not None:
            raise AlreadyExists(f"dataset {name!r} exists already")
        # The name first: a crash after it leaves a name without a dataset, which the next call continues.
        asked_id = asked_id or secrets.token_bytes(DATASET_ID_BYTES)
        dataset_id = self.names.claim(name, asked_id)
        if dataset_id == asked_id:  # so a crash leaves no dataset without an owner
            self._own(name, dataset_id, owner, is_kept=True)
        dataset = self.metadata.create_dataset(name, dataset_id)
        # Of several calls for one name, the one that made the dataset decides.
        self._own(name, dataset_id, owner)
        return dataset

    def _own(self, name: str, dataset_id: bytes, owner: str, is_kept: bool = False) -> None:
        """Set the owner of a dataset, empty for none; not if there `is_kept` one, or the name is another dataset's."""

        def owned(accounts: Accounts) -> Accounts:
            # A call that takes the name changes the table after that: then this is repeated, and finds the new ID.
            is_left = (is_kept and name in accounts.owners) or self.names.find(name) not in (None, dataset_id)
            return accounts if is_left else with_owner(accounts, name, owner)

        if (owner or self.users.current().users) and self.users.change(owned):
            self.quotas.announce()

    async def get_dataset(self, call: Call) -> DatasetRecord:
        return await call.on_dataset(self.mirrors.shown)

    async def list_datasets(self, call: Call) -> Sequence[DatasetRecord]:
        datasets = await trio.to_thread.run_sync(self.metadata.datasets)
        rights = await call.rights([dataset.name for dataset in datasets])
        readable = [dataset for dataset in datasets if rights[dataset.name] >= Right.READ]
        return await trio.to_thread.run_sync(self.mirrors.all_shown, readable)

    async def list_lost_datasets(self, call: Call) -> Sequence[str]:
        names = await trio.to_thread.run_sync(self.catalog.lost_datasets)
        rights = await call.rights(names)
        return [name for name in names if rights[name] >= Right.READ]

    async def drop_dataset(self, call: Call) -> None:
        dataset, expected_id = await call.dataset(), call.arguments.dataset_id
        if expected_id and expected_id != dataset.dataset_id:  # the call came late
            raise NotFound(
                f"dataset {dataset.name!r} is not the one to drop: that is gone, and another has been made under its "
                "name, which stays; to drop it too, try again"
            )
        await trio.to_thread.run_sync(self._drop, dataset)
        self.shared.forget(dataset.dataset_id)
        log.info("dataset %s dropped by %s", dataset.name, call.caller.name)

    def _drop(self, dataset: DatasetRecord) -> None:
        # Chunks first: if the record were removed first, a crash would leave chunks that no dataset refers to.
        references, now_s = References(self.store), int(time.time())
        references.drop(dataset.dataset_id, dataset.name, now_s)
        self._own(dataset.name, dataset.dataset_id, "")  # while nobody else can have the name
        self.names.release(dataset.name, dataset.dataset_id)
        self.metadata.drop_dataset(dataset.dataset_id)
        # Chunks of puts that were in flight.
        references.drop(dataset.dataset_id, dataset.name, now_s)
        self.snapshots.drop(dataset.dataset_id)
        self.tags.drop(dataset.dataset_id)
        self.mirrors.drop(dataset.dataset_id)
        self.keys.drop(dataset.dataset_id)
        self.store.delete_record(late_record(dataset.dataset_id))

    async def get_keys(self, call: Call) -> bytes:
        return await trio.to_thread.run_sync(self.keys.get, await call.dataset_id())

    async def put_keys(self, call: Call) -> None:
        dataset, arguments = await call.dataset(), call.arguments
        if await trio.to_thread.run_sync(self.mirrors.is_mirror, dataset):
            await call.require_right(Right.ADMIN)  # as for its chunks: it gets the record of its origin
        await trio.to_thread.run_sync(self.keys.put, dataset, arguments.content, arguments.known)

    async def put_tag(self, call: Call) -> TagRecord:
        dataset = await call.dataset()
        await trio.to_thread.run_sync(self.catalog.check_built, dataset, time.time_ns())
        generation = call.arguments.generation
        snapshot = await trio.to_thread.run_sync(self.mirrors.snapshot, dataset, generation)
        if snapshot is None:
            snapshot = await self.snapshots.get(dataset, generation)
        return await trio.to_thread.run_sync(self.tags.add, snapshot, call.arguments.tag)

    async def list_tags(self, call: Call) -> Sequence[TagRecord]:
        dataset_id = await call.dataset_id()
        kept: list[TagRecord] = []
        if call.arguments.with_kept:
            kept = await trio.to_thread.run_sync(self.snapshots.generations, dataset_id)
        async with self.tags.reads:
            return kept + await trio.to_thread.run_sync(self.tags.all, call.arguments.dataset, dataset_id)

    async def delete_tag(self, call: Call) -> None:
        dataset_id, arguments = await call.dataset_id(), call.arguments
        dataset = await call.dataset() if arguments.tag == MIRROR_TAG else None
        if dataset is not None and await trio.to_thread.run_sync(self.mirrors.is_mirror, dataset):
            raise InvalidInput(f"the tag {MIRROR_TAG!r} is what the mirror {arguments.dataset} shows")
        await trio.to_thread.run_sync(self.tags.remove, arguments.dataset, dataset_id, arguments.tag)


@dataclass(eq=False)
class MaintenanceCalls:
    store: ObjectStore
    metadata: MetadataStore
    ids: ChunkIdSource
    sources: Sources
    snapshots: SnapshotCache
    tags: TagStore
    scratch: Path
    """A folder for temporary files."""
    room: Room
    quotas: Quotas
    share: int
    """Processes of this server, which have equal parts of the limit of jobs."""
    mirrors: Mirrors
    copies: CopyCalls

    def __post_init__(self) -> None:
        self._jobs = MaintenanceJobs(self.metadata, time.time_ns, part_of(JOBS_MAX, self.share))

    async def _run(
        self, call: Call, dataset_id: bytes, what: str, work: Callable[..., Result], *arguments: object
    ) -> Result:
        """What `work` returns; it gets the stores first, and a `Proceed` last."""
        return await self._jobs.run(
            dataset_id,
            what,
            lambda proceed: work(self.store, self.metadata, *arguments, proceed),
            call.show_progress,
        )

    async def purge(self, call: Call) -> PurgeReport:
        dataset, grace_s, is_dry_run = await call.dataset(), call.arguments.grace_s, call.arguments.is_dry_run
        if not 0 <= grace_s < GRACE_S_MAX:
            raise InvalidInput(f"grace time of {grace_s} s is out of range (0 to {GRACE_S_MAX - 1})")
        asked = time.time_ns(), grace_s, is_dry_run, self.room.for_purge
        work = purging.purge, dataset, self.tags, *asked
        report = await self._run(call, dataset.dataset_id, f"purge of {dataset.name}", *work)
        if not is_dry_run:
            await self._note(history.PURGE)
        return report

    async def list_attached(self, call: Call) -> Sequence[AttachedRecord]:
        dataset = await call.dataset()  # it names files of the server
        dataset_id, check = dataset.dataset_id, lambda source: self.sources.open(source).close()
        work = attachments.list_attached, dataset_id, call.arguments.after, check
        return await self._run(call, dataset_id, f"list of the sources of {dataset.name}", *work)

    async def detach(self, call: Call) -> DetachReport:
        location = call.arguments.location
        call.audited["source"] = printable(location)
        dataset = await call.dataset()
        work = attachments.detach, dataset, location, time.time_ns(), self.ids
        return await self._run(call, dataset.dataset_id, f"detach from {dataset.name}", *work)

    async def copy_attached(self, call: Call) -> int:
        dataset = await call.dataset()
        work = purging.copy_attached, dataset, time.time_ns(), call.arguments.is_dry_run
        return await self._run(call, dataset.dataset_id, f"purge --copy of {dataset.name}", *work)

    async def repack(self, call: Call) -> RepackReport:
        dataset, asked = await call.dataset(), call.arguments
        if asked.seed < 0:
            raise InvalidInput(f"seed {asked.seed} is out of range (0 to {(1 << 63) - 1})")
        snapshot = await self.snapshots.get(dataset, asked.generation)
        chunk_bytes = asked.chunk_bytes or CHUNK_TARGET_BYTES
        if not 0 < chunk_bytes <= CHUNK_PAYLOAD_BYTES_MAX:
            raise InvalidInput(
                f"chunks of {chunk_bytes} bytes are out of range (1 to {CHUNK_PAYLOAD_BYTES_MAX})"
            )
        admitted = partial(self.quotas.admitted, dataset)
        check_room = partial(self.room.check_ahead, f"repack of dl://{dataset.name}")
        options = call.bulk, asked.seed, chunk_bytes, time.time_ns, asked.is_dry_run, admitted, check_room
        work = repacking.repack, dataset, snapshot, *options
        return await self._run(call, dataset.dataset_id, f"repack of {dataset.name}", *work)

    async def rebuild(self, call: Call) -> RebuildReport:
        dataset_id, name, since_s = await call.owner_id(), call.arguments.dataset, call.arguments.since_s
        if not -1 <= since_s <= TIME_S_MAX:
            raise InvalidInput(f"time {since_s} is out of range (-1 to {TIME_S_MAX})")
        asked = None if since_s < 0 else since_s, call.arguments.is_forced
        if not call.arguments.is_forced:
            await trio.to_thread.run_sync(self._check_settled, dataset_id, name)
        work = self._rebuild, name, dataset_id, *asked
        return await self._run(call, dataset_id, f"rebuild of {name}", *work)

    def _rebuild(
        self,
        store: ObjectStore,
        metadata: MetadataStore,
        name: str,
        dataset_id: bytes,
        since_s: int | None,
        is_forced: bool,
        proceed: Proceed,
    ) -> RebuildReport:
        now_ns = self.mirrors.time_of_rebuild(dataset_id)
        report = rebuilding.rebuild(store, metadata, name, dataset_id, now_ns, since_s, is_forced, proceed)
        if is_forced and since_s is None:
            self.mirrors.end_promotion(name, dataset_id, report, is_forced)
        return report

    def _check_settled(self, dataset_id: bytes, name: str) -> None:
        try:
            self.mirrors.check_settled(dataset_id, name)
        except InvalidInput:
            # A promotion cannot continue without metadata: that is rebuilt first.
            with suppress(NotFound, Damaged):
                if self.metadata.dataset(name).dataset_id == dataset_id:
                    raise

    async def object_bytes(self, call: Call) -> int:
        dataset = await call.dataset()
        work = purging.object_bytes, dataset.dataset_id
        return await self._run(call, dataset.dataset_id, f"sizes of {dataset.name}", *work)

    async def fsck(self, call: Call) -> FsckReport:
        dataset, asked = await call.dataset(), (call.arguments.is_deep, call.arguments.is_repair)
        await trio.to_thread.run_sync(self.mirrors.check_settled, dataset.dataset_id, dataset.name)
        work = checking.fsck, self.snapshots, self.tags, dataset, self.scratch, time.time_ns(), *asked
        report = await self._run(call, dataset.dataset_id, f"fsck of {dataset.name}", *work)
        await self._note(history.FSCK)
        return report

    async def _note(self, kind: str) -> None:
        await trio.to_thread.run_sync(history.note, self.store, kind, time.time())

    async def promote_mirror(self, call: Call) -> MirrorRecord:
        dataset = await call.dataset()
        work = partial(self._promote, dataset)
        return await self._jobs.run(dataset.dataset_id, f"promotion of {dataset.name}", work)

    def _promote(self, dataset: DatasetRecord, proceed: Proceed) -> MirrorRecord:
        metadata = unapplied(self.metadata, dataset.dataset_id, time.time_ns())  # before users can write
        shown, snapshot = self.mirrors.begin_promotion(dataset)
        if snapshot is not None:
            trio.from_thread.run(self.copies.store_entries, metadata, dataset, snapshot)
            self.mirrors.note_stored(dataset)
        name, dataset_id = dataset.name, dataset.dataset_id
        now_ns = self.mirrors.time_of_rebuild(dataset_id)
        report = rebuilding.rebuild(self.store, self.metadata, name, dataset_id, now_ns, proceed=proceed)
        self.mirrors.end_promotion(name, dataset_id, report)
        log.info("%s, a mirror of %s, is promoted", dataset.name, shown.origin)
        return shown


class WebPage(Protocol):
    """What the server asks of its web page (`web/page.py`)."""

    def served(self) -> AbstractAsyncContextManager[str]: ...

    async def serve_on_request(self) -> None: ...

    async def open(self, caller: Caller, lease_s: int) -> PageLink: ...

    def keep(self, caller: Caller, lease_s: int) -> None: ...


@dataclass(frozen=True, eq=False)
class ServerCalls:
    """`names`: the URLs of object store and metadata store."""

    store: ObjectStore
    metadata: MetadataStore
    identity: Identity | LiveIdentity
    metrics: Registry
    names: tuple[str, str]
    started_s: int
    environment_checks: Sequence[Callable[[], CheckRecord]]
    page: WebPage | None

    async def server_pin(self, call: Call) -> bytes:
        """With `with_next`, the pin of the next identity follows, if there is one."""
        if call.arguments.with_next:
            await trio.to_thread.run_sync(self.identity.refresh, True)
        following = self.identity.next if call.arguments.with_next else None
        return self.identity.current.pin + (following.pin if following else b"")

    async def status(self, _: Call) -> ServerStatus:
        report = Report({"component": "server"}, self.metrics.families(SERVER_METRICS))
        content = json.dumps(asdict(report)).encode()
        return ServerStatus(__version__, self.started_s, *self.names, self.metrics.numbers(), content)

    async def check_server(self, call: Call) -> ServerCheck:
        if not call.arguments.is_whole:
            return ServerCheck(time.time_ns(), ())
        stores = self.store, self.metadata
        checks = await trio.to_thread.run_sync(condition.checks, *stores, self.environment_checks)
        return ServerCheck(time.time_ns(), checks)

    async def open_page(self, call: Call) -> PageLink:
        return await self._page().open(call.caller, call.arguments.lease_s)

    async def keep_page(self, call: Call) -> None:
        self._page().keep(call.caller, call.arguments.lease_s)

    def _page(self) -> WebPage:
        if self.page is None:
            raise Unavailable(
                'this server has no web page; an administrator can set its address: web = "HOST:PORT"'
            )
        return self.page
