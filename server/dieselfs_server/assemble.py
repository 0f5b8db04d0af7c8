"""Assembles a server from its settings, and runs it until a signal or until it is idle."""

import logging
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import trio

from dieselfs.errors import DieselfsError, InvalidInput, Unavailable, os_errors_as
from dieselfs.etcd.client import Etcd
from dieselfs.net.address import Address, TcpAddress, UnixAddress
from dieselfs.net.auth import Key
from dieselfs.net.tls import ServerTls
from dieselfs.process.service_manager import SERVICE_STOPPING, notify
from dieselfs.process.state_dirs import locked
from dieselfs.process.system_limits import allow_descriptors, room_bytes
from dieselfs.records import NoteChange
from dieselfs.rpc.login import check_provider
from dieselfs.rpc.records import CheckRecord
from dieselfs.rpc.serving.handshake import LOCAL_USER
from dieselfs.rpc.serving.server import RpcServer, open_listeners
from dieselfs.settings.table import OFF, ON
from dieselfs.telemetry.event_loop import step_watch
from dieselfs.telemetry.registry import Registry, Report
from dieselfs.telemetry.socket import PublishedMetrics, publish
from dieselfs_server import condition
from dieselfs_server.access.accounts import ALL_DATASETS, Accounts, Right, StoredKey, with_grant, with_key
from dieselfs_server.access.certificates import Certificates, browser_tls, certificate_files, identity_tls
from dieselfs_server.access.identity import LiveIdentity
from dieselfs_server.access.key_places import open_keys
from dieselfs_server.access.users import UserStore
from dieselfs_server.admission.room import Room
from dieselfs_server.audit_sending import AuditSender, parse_target
from dieselfs_server.datasets.caught_up import catch_up_next, caught_up
from dieselfs_server.datasets.commit import read_header
from dieselfs_server.datasets.snapshots import SnapshotCache
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.dispatcher import Dispatcher
from dieselfs_server.handlers.administration import WebPage
from dieselfs_server.logs import AuditLog, noting_log
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.metadata.redis.client import SCHEMES as REDIS_SCHEMES
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.reading.kept_checksums import KeptChecksums
from dieselfs_server.reading.shared_payloads import default_bytes
from dieselfs_server.registration import stay_registered
from dieselfs_server.reloading import Live, LiveSettings, changes_of
from dieselfs_server.service import Service
from dieselfs_server.settings import ServerSettings, split_url
from dieselfs_server.store.attached import Sources
from dieselfs_server.store.bundled import BundledStore
from dieselfs_server.store.large_reads import LARGE_READS_NOTE, LargeReads, SharedTurns
from dieselfs_server.store.opening import folders, is_one_disk, open_store
from dieselfs_server.store.wrapper import MeasuredStore
from dieselfs_server.web.logins import Logins
from dieselfs_server.web.page import Page, check_address
from dieselfs_server.workers.shared_page import PageElsewhere
from dieselfs_server.workers.telemetry import WorkerMetrics
from dieselfs_server.workers.worker import Worker

INTERVAL_S = 60.0
WORKER_FLUSH_S = 5.0
"""Interval at which each of several workers stores its counts, so that all of them tell nearly the same."""
SHARE_MAX = 0.05
"""The work may take this share of the time: with a slow metadata store it is done less often."""
LAST_S = 5.0
"""Limit of the work at the end of a server."""

log = logging.getLogger(__name__)


def pause_s(took_s: float, interval_s: float = INTERVAL_S) -> float:
    """Before the next work, after one that took `took_s`."""
    return max(interval_s, took_s / SHARE_MAX)


async def repeat(
    work: Callable[[], object],
    what: str,
    sleep: Callable[[float], Awaitable[None]] = trio.sleep,
    interval_s: float = INTERVAL_S,
) -> NoReturn:
    """Call `work`, which blocks, in a thread until cancelled, first after `interval_s`. An error is logged, and the
    next call may succeed.
    """
    took_s = 0.0
    while True:
        await sleep(pause_s(took_s, interval_s))
        took_s = await _timed(work, what)


async def at_end(work: Callable[[], object], what: str) -> None:
    """Call `work` once more, also if cancelled, for LAST_S at most."""
    with trio.move_on_after(LAST_S, shield=True):
        await _timed(work, what)


async def _timed(work: Callable[[], object], what: str) -> float:
    """How long it took, in seconds."""
    began_s = trio.current_time()
    try:
        await trio.to_thread.run_sync(work, abandon_on_cancel=True)
    except DieselfsError as error:
        log.warning("%s: %s", what, error)
    except Exception:  # the server must not end with a task that only keeps figures
        log.exception("%s: an internal error", what)
    return trio.current_time() - began_s


async def start_datasets(metadata: MetadataStore) -> None:
    """Apply the chunks that a crash left unapplied, while the server serves."""
    while (pause_s := await trio.to_thread.run_sync(catch_up_next, metadata)) is not None:
        await trio.sleep(pause_s)


LOCK_TIMEOUT_S = 10.0
"""Timeout of an embedded server that waits for its predecessor to exit."""

IDLE_CHECK_S = 1.0

_File = tuple[int, int] | None
"""Device and inode of a socket's file; None if there is no file."""


def open_metadata(url: str) -> MetadataStore:
    """The metadata store at `url`.

    Raises InvalidInput for an unknown kind, Unavailable if it cannot be used.
    """
    scheme, path = split_url(url)
    if scheme == "sqlite":
        return SqliteMetadata(path)
    if scheme == "memory":
        return SqliteMetadata(":memory:")
    if scheme in REDIS_SCHEMES:
        # Here, because importing redis takes a sixth of the start of a server without it.
        from dieselfs_server.metadata.redis.store import RedisMetadata

        return RedisMetadata.open(url)
    raise InvalidInput(
        f"metadata {url!r}: unknown kind of store; use sqlite:///FILE, redis://HOST:PORT/DATABASE, "
        "redis+cluster://HOST:PORT,HOST:PORT, redis+unix:///SOCKET, rediss://... with TLS, or memory:"
    )


def write_admin_key(users: UserStore, path: Path, pin: bytes, audit: AuditLog | None = None) -> None:
    """If the server has no users, create an administrator and write the key to `path`."""
    if users.current().users or path.exists():
        return
    key = Key.generate("admin", pin)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os_errors_as(InvalidInput, f"cannot write the administrator's key to {path}"):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(key.text())

    now_s = int(time.time())
    known = StoredKey(key.verifier(), now_s, 0)

    def edit(table: Accounts) -> Accounts:
        return with_grant(with_key(table, "admin", key.key_id, known), "admin", ALL_DATASETS, Right.ADMIN)

    users.change(edit)
    log.info("created user 'admin'; the key is in %s", path)
    if audit is not None:
        audit.write(
            "add_key",
            LOCAL_USER,
            "",
            has_changed=True,
            outcome="ok",
            of="admin",
            key=key.key_id,
            right="admin",
        )


def _open_audit(stack: AsyncExitStack, settings: ServerSettings, share: int) -> AuditLog | None:
    """The audit log; an embedded server, which only its own user can reach, has none. Raises InvalidInput."""
    if settings.lock is not None:
        return None
    path = settings.audit_log or settings.state / "audit.log"
    sender = AuditSender(parse_target(settings.audit_to)) if settings.audit_to else None
    if sender is not None:
        stack.callback(sender.close)
    with os_errors_as(InvalidInput, f"cannot write the audit log {path}"):
        opened = partial(AuditLog, path, share=share)
        audit = opened(send=sender.send) if sender is not None else opened()
    stack.callback(audit.close)
    return audit


def _page(
    service: Service, settings: ServerSettings, certificates: Certificates, worker: Worker | None
) -> WebPage | None:
    """The web page, of an embedded server too. Raises InvalidInput."""
    if settings.web is None:
        return Page(service, None, None, frozenset()) if settings.lock is not None else None
    if worker is not None and not worker.is_first:
        return PageElsewhere(worker.shared.page)
    shared = worker.shared.page if worker is not None else None
    check_address(settings.web, settings.tls != OFF)
    return Page(
        service,
        settings.web,
        None if settings.tls == OFF else certificates.tls(partial(browser_tls, names=settings.web_names)),
        frozenset(settings.web_names),
        Logins(trio.current_time, shared.links, shared.sessions) if shared is not None else None,
        settings.registry,
    )


def _shared_bytes(settings: ServerSettings) -> int:
    """The limit of shared payloads: nobody can reach them without a Unix socket."""
    if not any(isinstance(address, UnixAddress) for address in settings.listen):
        return 0
    given = settings.shared_memory_bytes
    return default_bytes(room_bytes()[0]) if given is None else given


def _environment_checks(
    settings: ServerSettings, certificates: Certificates
) -> list[Callable[[], CheckRecord]]:
    """The checks of disks, of TLS, of etcd and of the identity provider, of a server that uses them."""
    found: list[Callable[[], CheckRecord]] = [
        partial(condition.disk, folder) for folder in folders(settings.store)
    ]
    if any(isinstance(address, TcpAddress) for address in settings.listen):
        found.append(lambda: condition.tls(settings.tls, certificates.file, time.time()))
    if (registry := settings.registry) is not None:
        found.append(lambda: condition.etcd(registry))
    if (provider := settings.provider) is not None:
        found.append(lambda: check_provider(provider.issuer, provider.authority))
    return found


def _disks(settings: ServerSettings) -> list[str]:
    """Folders of the disks that the server writes to."""
    scheme, path = split_url(settings.metadata)
    metadata = [os.path.dirname(path)] if scheme == "sqlite" else []
    return [*folders(settings.store), str(settings.state), *metadata]


async def _listening(
    stack: AsyncExitStack, address: Address, has_tls: bool
) -> list[tuple[trio.SocketListener, bool]]:
    """Listeners at an address, and whether they are encrypted. Raises Unavailable."""
    listeners = await stack.enter_async_context(open_listeners(address))
    tell_listening(address, has_tls)
    return [(listener, isinstance(address, TcpAddress) and has_tls) for listener in listeners]


def tell_listening(address: Address, has_tls: bool) -> None:
    """Log that the server listens there, and what is wrong with it."""
    is_encrypted = isinstance(address, TcpAddress) and has_tls
    log.info("listening on %s, %s TLS", address, "with" if is_encrypted else "without")
    if isinstance(address, TcpAddress) and not has_tls:
        log.warning(
            "%s: tls is off: somebody on the network between can read and change everything, "
            "and act as any user that connects",
            address,
        )


def _serve_metrics(stack: AsyncExitStack, settings: ServerSettings, report: Callable[[], Report]) -> None:
    """Raises InvalidInput, Unavailable."""
    if settings.metrics is None:
        return
    from dieselfs.telemetry import http  # prometheus-client, which few servers need

    token = http.read_token(settings.metrics_token) if settings.metrics_token else ""
    has_users = settings.metrics_users == ON
    url = stack.enter_context(
        http.serving(
            settings.metrics, lambda: [report() if has_users else http.without_users(report())], token
        )
    )
    log.info("serving metrics at %s", url)


def _lock_folder(stack: AsyncExitStack, lock: Path) -> None:
    """Keep a second server from the folder of an embedded one. Raises Unavailable."""
    lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        stack.enter_context(locked(lock, LOCK_TIMEOUT_S))
    except BlockingIOError:
        raise Unavailable(f"another server holds {lock}") from None


@asynccontextmanager
async def open_server(
    settings: ServerSettings, worker: Worker | None = None, changes: AsyncIterator[LiveSettings] | None = None
) -> AsyncIterator[RpcServer]:
    """Open the backends, and listen, while chunks are applied that a crash left; on exit, stop and close all. A
    `worker` does not listen, but gets connections from its parent. `changes` of the settings are taken meanwhile.
    """
    async with AsyncExitStack() as stack:
        if settings.lock is not None:
            _lock_folder(stack, settings.lock)
        metrics = Registry() if worker is None else WorkerMetrics(worker)
        about = {"component": "server"}
        stack.enter_context(step_watch(metrics))
        service, live, tls = await _open_service(stack, settings, metrics, worker)
        rates = None if worker is None else worker.shared.rates
        dispatcher = Dispatcher(service, rates)
        logins = None
        if settings.provider is not None:
            # Here, because few servers need its HTTP.
            from dieselfs_server.access.provider import ProviderLogins

            logins = ProviderLogins(settings.provider, service.users)
        server = RpcServer(dispatcher, tls, metrics=metrics, share=service.share, logins=logins)
        stack.enter_context(noting_log(service.recent))
        page = service.page
        if isinstance(page, Page):
            page.ask, page.provider = dispatcher.reply_here, logins
        if page is not None and settings.web is not None:
            await stack.enter_async_context(page.served())
        _serve_metrics(stack, settings, lambda: metrics.report(about))
        opened = [
            each
            for address in (settings.listen if worker is None else ())
            for each in await _listening(stack, address, tls is not None)
        ]
        flushed = service.traffic.flush, "traffic is not stored yet"
        stack.push_async_callback(at_end, *flushed)
        nursery = await stack.enter_async_context(trio.open_nursery())
        stack.callback(nursery.cancel_scope.cancel)
        nursery.start_soon(start_datasets, service.metadata)
        nursery.start_soon(service.refresh.run)
        nursery.start_soon(live.certificates.keep_fresh)
        if changes is not None:
            nursery.start_soon(live.follow, changes)
        flush_s = INTERVAL_S if worker is None else WORKER_FLUSH_S
        nursery.start_soon(repeat, *flushed, trio.sleep, flush_s)
        nursery.start_soon(repeat, service.mirrors.forget_ended, "the lag of mirrors is old")
        if worker is None or worker.is_first:
            nursery.start_soon(repeat, service.quota_fill.update, "the metrics of quotas are old")
            nursery.start_soon(publish, PublishedMetrics(metrics, about))
        for listener, is_encrypted in opened:
            nursery.start_soon(server.serve, listener, is_encrypted)
        if worker is not None:
            nursery.start_soon(server.serve_accepted, worker.accepted(tls is not None))
            nursery.start_soon(worker.tell_ended)
            if isinstance(page, Page):
                nursery.start_soon(worker.shared.page.tell, page.where)
        if isinstance(metrics, WorkerMetrics):
            nursery.start_soon(metrics.run)
        if page is not None and settings.web is None:
            nursery.start_soon(page.serve_on_request)
        yield server


async def _open_service(
    stack: AsyncExitStack, settings: ServerSettings, metrics: Registry, worker: Worker | None
) -> tuple[Service, Live, Callable[[], ServerTls] | None]:
    """The service over its backends, which `stack` closes, and the certificate for TCP."""
    bounds = settings.bounds
    large_reads = LargeReads(bounds.large_reads_max)
    options = settings.store, settings.is_new, bounds, metrics, large_reads
    store = BundledStore(MeasuredStore(await trio.to_thread.run_sync(open_store, *options), metrics))
    stack.callback(store.close)
    opened_metadata = await trio.to_thread.run_sync(open_metadata, settings.metadata)
    stack.callback(opened_metadata.close)
    if split_url(settings.metadata)[0] in REDIS_SCHEMES and is_one_disk(settings.store):
        large_reads.share(_shared_turns(opened_metadata, settings.large_reads_max))
    locks = settings.state / "starting" if worker else None
    metadata = await trio.to_thread.run_sync(
        partial(caught_up, store, opened_metadata, is_starting=True, locks=locks)
    )
    keys = await trio.to_thread.run_sync(open_keys, settings.server_identity)
    identity = await trio.to_thread.run_sync(LiveIdentity, store, keys)
    certificates = Certificates(identity, certificate_files(settings.tls_certificate, settings.tls_key))
    tls = None
    if settings.tls != OFF and any(isinstance(address, TcpAddress) for address in settings.listen):
        tls = await trio.to_thread.run_sync(certificates.tls, identity_tls)
    users = UserStore(store, changes=worker.shared.accounts(worker.place) if worker else None)
    live = Live(certificates, Sources(settings.attach_roots), users)
    share = worker.count if worker else 1
    audit = _open_audit(stack, settings, share)
    replaced = metrics.counter(
        "workers.replaced", "Workers of a server that died or hung, and were replaced."
    )
    if worker is not None and worker.reason:
        replaced.value += 1
        if audit is not None:
            whose = {"worker": str(worker.place), "reason": worker.reason}
            audit.write("replace_worker", "", "", has_changed=True, outcome="ok", **whose)
    if settings.admin_key:
        write_admin_key(users, Path(settings.admin_key), identity.current.pin, audit)
    checksums = await trio.to_thread.run_sync(KeptChecksums, settings.state / "blocks.db")
    stack.callback(checksums.close)
    service = Service(
        store,
        metadata,
        users,
        identity,
        SnapshotCache(
            settings.state / "snapshots",
            metadata,
            identity,
            lambda dataset_id, chunk_id: read_header(store, dataset_id, chunk_id)[1],
            worker.shared.run if worker else b"",
        ),
        TagStore(store, identity),
        settings.state / "scratch",
        names=(settings.store, settings.metadata),
        metrics=metrics,
        audit=audit,
        recent=metrics.failures if isinstance(metrics, WorkerMetrics) else None,
        started_s=worker.shared.started_s if worker else None,
        share=share,
        shared_bytes=_shared_bytes(settings) if worker is None or worker.is_first else 0,
        segments_max=allow_descriptors(),
        sources=live.sources,
        environment_checks=[
            *_environment_checks(settings, certificates),
            lambda: condition.identity(identity),
            lambda: condition.maintenance(store, time.time()),
        ],
        room=Room(_disks(settings)),
        checksums=checksums,
        make_page=lambda service: _page(service, settings, certificates, worker),
    )
    return service, live, tls


def _shared_turns(metadata: MetadataStore, turns_max: int) -> SharedTurns:
    """Turns at the disk of the store, which all processes of all servers over this metadata share."""

    def swap(expected: bytes | None, value: bytes) -> bool:
        return metadata.change_common_note(NoteChange(LARGE_READS_NOTE, expected, value))

    return SharedTurns(partial(metadata.common_note, LARGE_READS_NOTE), swap, secrets.token_hex(8), turns_max)


async def initialize(settings: ServerSettings) -> None:
    """Create what a new store lacks: its marker, its identity, and the administrator with a key. Nobody is served.

    A store that has them stays as it is.
    """
    async with open_server(replace(settings, listen=(), metrics=None, web=None)):
        log.info("%s is ready", settings.store)


async def run_server(
    settings: ServerSettings,
    ready: Callable[[], object],
    worker: Worker | None = None,
    load: Callable[[ServerSettings], ServerSettings | None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, or until no client was connected for `settings.idle_exit_s`.

    Calls `ready` once it listens. `worker`: of several processes that serve together. `load`: called on SIGHUP; what it
    returns is taken as far as possible without a restart.
    """
    with ExitStack() as stack:
        signals = stack.enter_context(trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT))
        changes: AsyncIterator[LiveSettings] | None = None if worker is None else worker.changes
        if load is not None:
            changes = changes_of(
                settings, stack.enter_context(trio.open_signal_receiver(signal.SIGHUP)), load
            )
        async with open_server(settings, worker, changes) as server, trio.open_nursery() as nursery:
            if settings.idle_exit_s is not None:
                sockets = [Path(a.path) for a in settings.listen if isinstance(a, UnixAddress)]
                own = {path: _file_at(path) for path in sockets}
                nursery.start_soon(_stop_when_idle, settings.idle_exit_s, own, server, nursery.cancel_scope)
            if settings.registry is not None and (worker is None or worker.is_first):
                registry = settings.registry
                if danger := registry.danger():
                    log.warning("%s %s (docs/guide/several-servers.md)", registry.etcd, danger)
                etcd = Etcd(registry.etcd, registry.access)
                nursery.start_soon(stay_registered, etcd, registry.addresses)
            ready()
            async for number in signals:
                if worker is None:
                    log.info("stopping: %s", signal.Signals(number).name)
                    notify(SERVICE_STOPPING)
                nursery.cancel_scope.cancel()
                return


async def _stop_when_idle(
    idle_exit_s: float, own: Mapping[Path, _File], server: RpcServer, scope: trio.CancelScope
) -> None:
    """Stop once no client was connected for `idle_exit_s`, or once the file of a socket is gone or replaced."""
    busy_s = trio.current_time()
    while True:
        await trio.sleep(IDLE_CHECK_S)
        if server.client_count:
            busy_s = trio.current_time()
        is_lost = any(_file_at(path) != identity for path, identity in own.items())
        if is_lost or trio.current_time() - busy_s >= idle_exit_s:
            log.info("stopping: %s", "the socket is gone" if is_lost else "idle")
            scope.cancel()
            return


def _file_at(path: Path) -> _File:
    with suppress(OSError):
        status = path.lstat()
        return status.st_dev, status.st_ino
    return None
