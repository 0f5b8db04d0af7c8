"""Puts a server together from its settings, and runs it until it is told to stop."""

import fcntl
import logging
import os
import signal
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import trio

from dieselfs.errors import InvalidInput, Unavailable
from dieselfs.etcd import Etcd
from dieselfs.rpc.address import TcpAddress, UnixAddress
from dieselfs.rpc.auth import Key
from dieselfs.rpc.serving.reception import Reception, open_listeners
from dieselfs_server import handlers as handlers  # makes them known to the service
from dieselfs_server.commit import catch_up
from dieselfs_server.conversation import Conversations
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.metadata.redis import RedisMetadata
from dieselfs_server.metadata.redis_url import SCHEMES as REDIS_SCHEMES
from dieselfs_server.metadata.sqlite import SqliteMetadata
from dieselfs_server.registry import stay_registered
from dieselfs_server.service import Backends, Service
from dieselfs_server.settings import ServerSettings, split_url
from dieselfs_server.snapshots import SnapshotShelf
from dieselfs_server.store.opening import open_store
from dieselfs_server.tags import TagShelf
from dieselfs_server.users import ALL_DATASETS, Right, UserStore, with_grant, with_key

LOCK_TIMEOUT_S = 10.0
"""How long an embedded server waits for the one before it, which is just going away."""

IDLE_CHECK_S = 1.0
_LOCK_POLL_S = 0.05

_Identity = tuple[int, int] | None
"""Device and inode of a socket's file; None if it is gone."""

log = logging.getLogger(__name__)


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
        return RedisMetadata.open(url)
    raise InvalidInput(
        f"metadata {url!r}: this version knows sqlite:///FILE, redis://HOST:PORT/DATABASE, "
        "redis+cluster://HOST:PORT,HOST:PORT, redis+unix:///SOCKET and memory:"
    )


def open_tls(settings: ServerSettings) -> ssl.SSLContext | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except OSError as error:
        raise InvalidInput(f"TLS certificate {settings.tls_certificate}: {error.strerror or error}") from None
    return context


def write_admin_key(users: UserStore, path: Path) -> None:
    """For a server without users: make one, who may do everything, and leave the key in `path`."""
    if users.current() or path.exists():
        return
    key = Key.generate("admin")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise InvalidInput(f"cannot write the administrator's key to {path}: {error.strerror}") from None
    with os.fdopen(descriptor, "w") as file:
        file.write(key.text())
    users.change(
        lambda table: with_grant(
            with_key(table, key, int(time.time()), 0), "admin", ALL_DATASETS, Right.ADMIN
        )
    )
    log.info("made user 'admin'; the key is in %s", path)


@contextmanager
def _lock(path: Path | None) -> Iterator[None]:
    """Hold the lock of an embedded home, so that two servers never work on it at once."""
    if path is None:
        yield
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _wait_for_lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _wait_for_lock(descriptor: int, path: Path) -> None:
    deadline_s = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise Unavailable(f"another server holds {path}") from None
            time.sleep(_LOCK_POLL_S)


@asynccontextmanager
async def open_reception(settings: ServerSettings) -> AsyncIterator[Reception]:
    """Open the backends, apply what a crash left unapplied, and listen; stop and close them in the end."""
    async with AsyncExitStack() as stack:
        stack.enter_context(_lock(settings.lock))
        tls = open_tls(settings)
        store = await trio.to_thread.run_sync(open_store, settings.store)
        stack.callback(store.close)
        metadata = await trio.to_thread.run_sync(open_metadata, settings.metadata)
        stack.callback(metadata.close)
        users = UserStore(store)
        if settings.admin_key:
            write_admin_key(users, Path(settings.admin_key))
        applied = await trio.to_thread.run_sync(catch_up, store, metadata, int(time.time() * 10**9))
        if applied:
            log.info("applied %d chunks that were stored, but not applied", applied)
        shelf = SnapshotShelf(settings.state / "snapshots", metadata)
        scratch = settings.state / "scratch"
        names = (settings.store, settings.metadata)
        service = Service(Backends(store, metadata, users, shelf, TagShelf(store), scratch, names))
        reception = Reception(Conversations(service), tls)
        opened = []
        for address in settings.listen:
            listeners = await stack.enter_async_context(open_listeners(address))
            opened += [
                (listener, isinstance(address, TcpAddress) and tls is not None) for listener in listeners
            ]
            log.info("listening on %s", address)
            if isinstance(address, TcpAddress) and not address.is_loopback and tls is None:
                log.warning("%s: without TLS, data crosses the network in clear", address)
        nursery = await stack.enter_async_context(trio.open_nursery())
        stack.callback(nursery.cancel_scope.cancel)
        for listener, is_encrypted in opened:
            nursery.start_soon(reception.serve, listener, is_encrypted)
        yield reception


async def run_server(settings: ServerSettings, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, or until nobody has called for `settings.idle_exit_s`.

    Calls `ready` once it listens.
    """
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with open_reception(settings) as reception, trio.open_nursery() as nursery:
            if settings.idle_exit_s is not None:
                sockets = [Path(a.path) for a in settings.listen if isinstance(a, UnixAddress)]
                own = {path: _identity(path) for path in sockets}
                nursery.start_soon(
                    _stop_when_idle, settings.idle_exit_s, own, reception, nursery.cancel_scope
                )
            if settings.registry is not None:
                if settings.registry.is_open:
                    log.warning(
                        "%s lets everybody in: give it users (docs/operations.md)", settings.registry.etcd
                    )
                etcd = Etcd(settings.registry.etcd, settings.registry.access)
                nursery.start_soon(stay_registered, etcd, settings.registry.addresses)
            ready()
            nursery.start_soon(_stop_at_signal, signals, nursery.cancel_scope)


async def _stop_at_signal(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for number in signals:
        log.info("stopping: %s", signal.Signals(number).name)
        scope.cancel()
        return


async def _stop_when_idle(
    idle_exit_s: float, own: Mapping[Path, _Identity], reception: Reception, scope: trio.CancelScope
) -> None:
    """Stop once no client has been connected for long enough, or once our sockets are no longer there to be
    found.
    """
    busy_s = trio.current_time()
    while True:
        await trio.sleep(IDLE_CHECK_S)
        if reception.client_count:
            busy_s = trio.current_time()
        is_lost = any(_identity(path) != identity for path, identity in own.items())
        if is_lost or trio.current_time() - busy_s >= idle_exit_s:
            log.info("stopping: %s", "the socket is gone" if is_lost else "idle")
            scope.cancel()
            return


def _identity(path: Path) -> _Identity:
    with suppress(OSError):
        status = path.lstat()
        return status.st_dev, status.st_ino
    return None
