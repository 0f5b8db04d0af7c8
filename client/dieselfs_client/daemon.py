"""The process behind a mount: mounts, serves until it is unmounted or told to stop, and leaves nothing behind.

This module calls the kernel and takes signals; `serve` runs in the main thread.
"""

import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import NoReturn

import trio

from dieselfs.cache.node_lock import NodeLock
from dieselfs.chunk_source import NodeSource
from dieselfs.errors import EXIT_OK, DieselfsError, MountError
from dieselfs.limits import MIB
from dieselfs.meta.snapshot import Snapshot
from dieselfs.rpc.client import ServerClient
from dieselfs_client.arena import Arena
from dieselfs_client.foreground import Foreground
from dieselfs_client.job.part import JobPart, lock_of
from dieselfs_client.job.pool import PoolTerms, terms_of
from dieselfs_client.legacy import Legacy
from dieselfs_client.logbook import Logbook
from dieselfs_client.memory import Allotment
from dieselfs_client.mount.connection import Connection, cannot_resend, connect
from dieselfs_client.mount.drivers import Driver, open_driver
from dieselfs_client.mount.mount_table import mount_at
from dieselfs_client.mount.mounting import raise_read_ahead, unmount
from dieselfs_client.mount.page_cache import PageCache, largest_payload_bytes
from dieselfs_client.node import Node, allotment_of
from dieselfs_client.options import ONESHOT, MountOptions
from dieselfs_client.pinning import Pin, holder_name, keep_pinned, unpin
from dieselfs_client.supervision.guardian import Guardian, Order
from dieselfs_client.supervision.supervisor import DEVICE
from dieselfs_client.warming import Pace

STOP_GRACE_S = 5.0
"""After an order to stop, files that are open are served for so long."""
LOGBOOK = "logbook"
"""The name under which the supervisor holds it."""
LOG_BYTES_MAX = 16 * MIB
"""The log file; it is kept once more when full."""

_log = logging.getLogger(__name__)


async def serve(
    snapshot: Snapshot,
    source: NodeSource,
    mountpoint: str,
    options: MountOptions,
    on_ready: Callable[[], None] = lambda: None,
    pin: Pin | None = None,
    guardian: Guardian | None = None,
    client: ServerClient | None = None,
) -> None:
    """Mount `snapshot` on `mountpoint` (resolved) and serve it until it is unmounted, or SIGTERM or SIGINT comes.

    `on_ready` is called once the mount can be used; `pin` keeps the server from purging what is mounted. With `client`,
    the mount may be part of a job (`options.job`), and gets its bytes from there. Raises MountError, and what the job
    refuses it with. However it ends, cancelled or by a fault, the mount is gone afterwards.

    With a `guardian`, its orders count and no signals. What is mounted already is taken over; and if this daemon is
    told to yield, or ends by a fault, the mount stays for the next one.
    """
    service = _Service(snapshot, source, mountpoint, options, on_ready, pin, guardian, client)
    if guardian is None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            await service.run(_order_at_each(signals))
        return
    refusal: DieselfsError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guardian.beat)
        nursery.start_soon(guardian.flush)
        try:
            await service.run(guardian.orders())
        except DieselfsError as error:  # by itself, and not in the group that a nursery makes of it
            refusal = error
        nursery.cancel_scope.cancel()
    if refusal is not None:
        raise refusal


async def _order_at_each(signals: AsyncIterator[int]) -> AsyncIterator[Order]:
    async for _ in signals:
        yield Order.STOP


@dataclass(slots=True)
class _Service:
    """One call of `serve`."""

    snapshot: Snapshot
    source: NodeSource
    mountpoint: str
    options: MountOptions
    on_ready: Callable[[], None]
    pin: Pin | None
    guardian: Guardian | None
    client: ServerClient | None
    is_yielding: bool = False
    part: JobPart | None = None
    """In the job, if the mount belongs to one."""

    async def run(self, orders: AsyncIterator[Order]) -> None:
        terms = self._job_terms()
        allotment = allotment_of(self.snapshot, self.options, max(terms.nodes, 1) if terms else 0)
        if terms is not None:
            terms = replace(terms, memory_bytes=allotment.shelf)
        connection = await trio.to_thread.run_sync(self._connect)
        is_over = self.guardian is None
        try:
            refusal = await self._serve(connection, allotment, terms, orders)
            is_over = True
        finally:
            # Where it is the last descriptor, whatever still waits is answered by the kernel now.
            os.close(connection.device)
            if is_over:
                await self._clear(connection)
        if self.part is not None and self.part.refusal is not None:
            raise self.part.refusal
        if refusal is not None:
            raise MountError(f"{self.mountpoint}: {refusal}")
        if self.guardian is not None:
            self.guardian.tell_last("ended")

    def _connect(self) -> Connection:
        inherited, is_clean = None, False
        if self.guardian is not None:
            inherited, is_clean = self.guardian.inherited.pop(DEVICE, None), self.guardian.is_clean
        connection = connect(self.mountpoint, self.snapshot.dataset, self.options, inherited, is_clean)
        if self.guardian is not None and not connection.is_taken_over:
            self.guardian.keep(DEVICE, connection.device)
            self.guardian.tell("mounted", connection.number)
            if not connection.can_resend:
                _log.warning(
                    "%s: if the daemon dies, %s is mounted anew, and files that are open fail",
                    cannot_resend(self.options),
                    self.mountpoint,
                )
        return connection

    async def _serve(
        self,
        connection: Connection,
        allotment: Allotment,
        terms: PoolTerms | None,
        orders: AsyncIterator[Order],
    ) -> str | None:
        """Until the mount is gone; why the kernel cannot be served, if that is why."""
        snapshot, options = self.snapshot, self.options
        lock = lock_of(snapshot, terms) if terms else None
        async with trio.open_nursery() as answering:
            # The kernel is answered for as long as anything else runs: pushing waits for its lookups.
            slot_bytes = largest_payload_bytes(snapshot)
            arena = Arena(slot_bytes, 1 + allotment.transit // slot_bytes)  # one is the page cache's own
            pages = PageCache(connection.device, self.mountpoint, snapshot, arena)
            try:
                async with trio.open_nursery() as nursery:
                    foreground = Foreground()
                    part = None
                    if terms and lock:
                        part = self._join(terms, lock, connection.is_taken_over, nursery, foreground)
                    node = Node(
                        snapshot,
                        self.source if part is None else part.source,
                        options,
                        allotment,
                        pages,
                        nursery,
                        self._logbook(),
                        arena,
                        part,
                        foreground=foreground,
                    )
                    user = os.getuid() if options.uid is None else options.uid
                    group = os.getgid() if options.gid is None else options.gid
                    is_taken_over = connection.is_taken_over
                    driver = open_driver(
                        options.driver,
                        connection.device,
                        node.core,
                        node.reads,
                        node.control,
                        user,
                        group,
                        is_taken_over,
                    )
                    answering.start_soon(self._answer, driver, nursery.cancel_scope)
                    nursery.start_soon(self._announce, driver, connection, part, nursery.cancel_scope)
                    if self.pin is not None:
                        nursery.start_soon(keep_pinned, self.pin, snapshot.header, self._holder)
                    nursery.start_soon(self._obey, orders, driver, connection, nursery.cancel_scope)
                    what = "going on with" if is_taken_over else "serving"
                    _log.info(
                        "%s generation %d of %s on %s",
                        what,
                        snapshot.generation,
                        snapshot.dataset,
                        self.mountpoint,
                    )
            finally:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(pages.close)
                arena.close()
            answering.cancel_scope.cancel()
        return driver.refusal

    def _job_terms(self) -> PoolTerms | None:
        if self.options.job is None or self.client is None:
            return None
        return terms_of(self.options, self.client, self.snapshot.dataset, 0, os.environ)

    def _join(
        self,
        terms: PoolTerms,
        lock: NodeLock,
        is_taken_over: bool,
        nursery: trio.Nursery,
        foreground: Foreground,
    ) -> JobPart:
        """Take part in the job."""
        assert self.client is not None
        pace = Pace(rate_bytes=self.options.warm_rate_bytes)
        legacy = None if self.guardian is None else Legacy(self.guardian, self.snapshot)
        self.part = JobPart(self.snapshot, self.client, terms, lock, nursery, foreground, pace, legacy)
        self.part.start(self.options.policy == ONESHOT, is_going_on=is_taken_over)
        return self.part

    def _logbook(self) -> Logbook | None:
        """What the daemon before wrote down, and this one goes on with; None if there will be no other daemon."""
        if self.guardian is None:
            return None
        inherited = self.guardian.inherited.pop(LOGBOOK, None)
        logbook = Logbook(inherited)
        if inherited is None:
            self.guardian.keep(LOGBOOK, logbook.descriptor)
        return logbook

    @property
    def _holder(self) -> str:
        return holder_name(self.mountpoint, os.getpid() if self.guardian is None else self.guardian.process)

    async def _answer(self, driver: Driver, others: trio.CancelScope) -> None:
        """Answer the kernel until the mount is gone; nothing else has a purpose then."""
        await driver.run()
        if self.is_yielding and self.guardian is not None:
            self.guardian.tell_last("clean")
            _leave()
        others.cancel()

    async def _announce(
        self, driver: Driver, connection: Connection, part: JobPart | None, serving: trio.CancelScope
    ) -> None:
        await driver.agreed.wait()
        if driver.refusal is not None:
            serving.cancel()
            return
        if part is not None:
            await part.gathered.wait()
        if not connection.is_taken_over and not await trio.to_thread.run_sync(
            raise_read_ahead, self.mountpoint
        ):
            _log.info("large files are read in pieces of 128 KiB: only root may raise read_ahead_kb")
        if self.guardian is not None:
            self.guardian.tell("ready", "resends" if connection.can_resend else "")
        self.on_ready()

    async def _obey(
        self,
        orders: AsyncIterator[Order],
        driver: Driver,
        connection: Connection,
        serving: trio.CancelScope,
    ) -> None:
        """Unmount at the first order to stop; leave those who have files open after a while, or at the next order."""
        is_stopping = False
        async for order in orders:
            if order is Order.YIELD:
                if connection.can_resend:
                    _leave()
                self.is_yielding = True
                driver.finish()
            elif is_stopping:
                serving.cancel()
            else:
                is_stopping = True
                await self._unmount(serving)

    async def _unmount(self, serving: trio.CancelScope) -> None:
        try:
            await trio.to_thread.run_sync(unmount, self.mountpoint)
        except MountError as error:
            _log.info("%s; files that are open are served for %g s more", error, STOP_GRACE_S)
            serving.deadline = trio.current_time() + STOP_GRACE_S
            with contextlib.suppress(MountError):  # somebody else was faster
                await trio.to_thread.run_sync(lambda: unmount(self.mountpoint, lazily=True))

    async def _clear(self, connection: Connection) -> None:
        record = mount_at(self.mountpoint)
        if record is not None and record.device == connection.number:
            with contextlib.suppress(MountError):
                unmount(self.mountpoint, lazily=True)
        _log.info("%s is unmounted", self.mountpoint)
        if self.pin is not None:
            await unpin(self.pin, self.snapshot.header, self._holder)


def _leave() -> NoReturn:
    """End at once: another daemon goes on. What is under way and cannot end without an answer of ours comes to it."""
    logging.shutdown()
    os._exit(EXIT_OK)


def default_log_file(mountpoint: str) -> Path:
    """Where the daemon of a mount writes its log."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    return state / "dieselfs" / f"mount-{mountpoint.strip('/').replace('/', '-')[-200:]}.log"


def open_log(path: Path) -> None:
    """Send the log, and whatever goes to standard error, to a file that only this user can read. Raises MountError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        os.dup2(descriptor, 2)  # and let go of the terminal, or the pipe, of whoever mounts
        os.close(descriptor)
        handler = RotatingFileHandler(path, maxBytes=LOG_BYTES_MAX, backupCount=1, errors="backslashreplace")
    except OSError as error:
        raise MountError(f"log file {path}: {error.strerror}") from None
    logging.basicConfig(
        level=logging.INFO,
        handlers=[handler],
        format="%(asctime)s %(process)d %(levelname)s %(message)s",
        force=True,
    )
