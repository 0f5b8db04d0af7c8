"""The parts of a server, and the handlers of its calls: each group is made of the parts that it needs."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import trio

from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.rpc.records import CheckRecord
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry
from dieselfs_server import condition
from dieselfs_server.access.identity import Identity, LiveIdentity
from dieselfs_server.access.users import UserStore
from dieselfs_server.admission.quotas import Quotas
from dieselfs_server.admission.room import Room
from dieselfs_server.admission.usage import QuotaFill, Traffic, Usages
from dieselfs_server.call import Access
from dieselfs_server.datasets.catalog import Catalog
from dieselfs_server.datasets.dataset_keys import DatasetKeys
from dieselfs_server.datasets.dataset_names import DatasetNames
from dieselfs_server.datasets.mirrors import Mirrors
from dieselfs_server.datasets.refresh import Refresh
from dieselfs_server.datasets.snapshots import SnapshotCache
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.handlers import handlers_of
from dieselfs_server.handlers.accounts import AccountCalls
from dieselfs_server.handlers.administration import DatasetCalls, MaintenanceCalls, ServerCalls, WebPage
from dieselfs_server.handlers.copying import CopyCalls
from dieselfs_server.handlers.leases import LeaseCalls
from dieselfs_server.handlers.mirrors import MirrorCalls
from dieselfs_server.handlers.reading import ReadCalls
from dieselfs_server.handlers.writing import WriteCalls
from dieselfs_server.logs import AuditLog, RecentFailures
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.reading.executor import RequestExecutor
from dieselfs_server.reading.kept_checksums import KeptChecksums
from dieselfs_server.reading.shared_payloads import SharedPayloads
from dieselfs_server.store.attached import AttachedStore, Sources
from dieselfs_server.store.compressed import CompressedStore
from dieselfs_server.store.interface import ObjectStore


class Service:
    """Only caches and counters, so any number of servers can run on the same backends."""

    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataStore,
        users: UserStore,
        identity: Identity | LiveIdentity,
        snapshots: SnapshotCache,
        tags: TagStore,
        scratch: Path,
        names: tuple[str, str],
        metrics: Registry | None = None,
        audit: AuditLog | None = None,
        recent: RecentFailures | None = None,
        started_s: int | None = None,
        share: int = 1,
        shared_bytes: int = 0,
        segments_max: int = 0,
        sources: Sources | None = None,
        environment_checks: Sequence[Callable[[], CheckRecord]] = (),
        room: Room | None = None,
        checksums: KeptChecksums | None = None,
        make_page: "Callable[[Service], WebPage | None]" = lambda _: None,
    ) -> None:
        """`recent`: where failures are noted; `started_s`: when the server began, which may be before this process.
        `share`: processes of this server, with equal parts of the limits of memory. `scratch`: a folder for temporary
        files; `names`: the URLs of object store and metadata store. `shared_bytes`: the limit of payloads in shared
        memory, 0: none; `segments_max`: the system allows no more of them. `sources`: what may be attached.
        `environment_checks`: of what the server depends on besides its stores. `room`: of its disks. `checksums`: of
        blocks, by default in memory. `make_page`: makes the web page, if there is one.
        """
        self.started_s = int(time.time()) if started_s is None else started_s
        self.share = share
        self.metadata, self.users, self.tags, self.audit = metadata, users, tags, audit
        self.metrics = metrics = metrics or Registry()
        metrics.declare(catalogue.UPTIME_S, lambda: int(time.time()) - self.started_s)
        self.recent = recent or RecentFailures()
        self.traffic = Traffic(metadata, users)
        self.usages = Usages(metadata, users, self.traffic)
        self.quota_fill = QuotaFill(metadata, users, metrics)
        sources = sources or Sources()
        compressed = CompressedStore(store)
        store = AttachedStore(compressed, sources)
        catalog = Catalog(store, metadata)
        self.access = Access(users, catalog)
        quotas, ids = Quotas(metadata, users, metrics, room=room), ChunkIdSource(time.time)
        checksums = checksums or KeptChecksums()
        executor = RequestExecutor(store, metrics, sources, checksums, compressed)
        shared = SharedPayloads(executor, shared_bytes, segments_max, metrics)

        async def prepare_snapshot(name: str) -> None:
            dataset = await trio.to_thread.run_sync(metadata.dataset, name, abandon_on_cancel=True)
            await trio.to_thread.run_sync(
                catalog.check_built, dataset, time.time_ns(), abandon_on_cancel=True
            )
            await snapshots.prepare(dataset)

        self.refresh = Refresh(prepare_snapshot)
        self.page = make_page(self)
        mirrors = Mirrors(store, metadata, tags)
        self.mirrors = MirrorCalls(mirrors, metadata, metrics, room or Room())
        names_of_datasets, stores, keys = DatasetNames(store), (store, metadata), DatasetKeys(store)
        copies = CopyCalls(*stores, ids, quotas, executor, catalog, snapshots, tags, keys, mirrors)
        self.handlers = handlers_of(
            AccountCalls(metadata, users, quotas, self.usages),
            DatasetCalls(
                *stores, users, quotas, catalog, names_of_datasets, snapshots, tags, shared, keys, mirrors
            ),
            self.mirrors,
            MaintenanceCalls(
                *stores,
                ids,
                sources,
                snapshots,
                tags,
                scratch,
                room or Room(),
                quotas,
                share,
                mirrors,
                copies,
            ),
            ServerCalls(
                *stores,
                identity,
                metrics,
                names,
                self.started_s,
                (
                    *environment_checks,
                    *condition.limits(room or Room(), self.quota_fill.fullest, users, time.time),
                ),
                self.page,
            ),
            copies,
            LeaseCalls(metadata),
            ReadCalls(metadata, executor, shared, catalog, snapshots, tags, mirrors, metrics),
            WriteCalls(*stores, ids, quotas, self.refresh, metrics, sources, keys, checksums, mirrors),
        )
