"""The daemon of a mount; with a job, it takes part in that. `cache_daemon` is the one without a mount.

This module calls the kernel; `serve_mount` runs in the main thread.
"""

import contextlib
import logging
import os
import select
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

import trio

from dieselfs.errors import EXIT_OK, DieselfsError, InvalidInput, MountError
from dieselfs.limits import KIB
from dieselfs.process.system_limits import allow_descriptors
from dieselfs.rpc.client import ServerClient
from dieselfs.settings.table import FUSE
from dieselfs.snapshot.pin import holder_name
from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.interface import Source
from dieselfs.telemetry.socket import publish
from dieselfs_client.cluster.node_paths import lock_of
from dieselfs_client.daemon.node import Node, Prepared, allotment_of
from dieselfs_client.daemon.progress_keeper import HANDOVER_STATE, SCORES, Handover
from dieselfs_client.daemon.service import Service
from dieselfs_client.library_pages import unmap_clean
from dieselfs_client.memory.budget import Allotment
from dieselfs_client.memory.buffer_pool import BufferPool
from dieselfs_client.memory.fetch_workers import FetchWorkers, WorkerSource, fetches_at_once
from dieselfs_client.memory.trio_cache import Foreground
from dieselfs_client.mount.drivers.choice import driver_class
from dieselfs_client.mount.drivers.driver import Driver
from dieselfs_client.mount.kernel.page_cache import PageCache, largest_payload_bytes
from dieselfs_client.mount.points.connection import KernelConnection, cannot_resend, connect
from dieselfs_client.mount.points.layers import (
    BASE,
    LAYERS,
    Layers,
    cover,
    is_covered,
    make_base,
    remove_base,
    remove_bases,
)
from dieselfs_client.mount.points.mount_table import MOUNTINFO, is_staged, mount_at
from dieselfs_client.mount.points.mounting import facts, has_dead_mount, raise_read_ahead, unmount
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.mount.points.view_choice import Choice, after_refusal
from dieselfs_client.mount.views.view import View, open_view, owner, view_choices
from dieselfs_client.supervision.control_channel import DEVICE
from dieselfs_client.supervision.status import MemoryFile
from dieselfs_client.supervision.supervisor_client import Command, HandoverChunks, SupervisorClient

STOP_GRACE_S = 5.0
"""Open files are served for this long after an order to stop."""
LAYERS_BYTES_MAX = 64 * KIB
TAKEOVER_PAUSE_S = 1.0
"""A daemon that takes over serves readers for this long before it does what they do not wait for."""
WATCH_S_MIN, WATCH_S_MAX = 0.05, 10.0
"""The table of mounts is read again this long after a change, then less and less often."""

_log = logging.getLogger(__name__)


async def serve_mount(
    snapshot: Snapshot,
    source: Source,
    mountpoint: str,
    options: MountOptions,
    client: ServerClient | None,
    supervisor_client: SupervisorClient,
    destination: str = "",
    workers: int = 1,
    fetch_workers: FetchWorkers | None = None,
) -> None:
    """Mount `snapshot` on `mountpoint` (resolved), or take over the mount of an earlier daemon, and serve it until it
    is unmounted, or the supervisor orders to stop.

    `destination`: the path that another process may move the mount to, which is then served there. `workers`: of the
    mount; `fetch_workers`: those that fetch, which this closes.

    With `client`, the server keeps the generation that is mounted, and the mount takes part in the job of `options`.
    Raises MountError, and the error with which the job refuses the node: a mount that was ready stays then, and reads
    of it fail. After another error, or the order to yield, the mount stays for the next daemon; else it is gone.
    """
    allow_descriptors()  # for the files of many chunks, which stay open between reads
    parts = mountpoint, supervisor_client, destination, workers, fetch_workers
    service = _MountService(snapshot, source, options, client, *parts)
    refusal: DieselfsError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor_client.beat)
        nursery.start_soon(supervisor_client.flush)
        try:
            await service.run(supervisor_client.orders())
        except DieselfsError as error:  # raised below, where no nursery wraps it in a group
            refusal = error
        nursery.cancel_scope.cancel()
    if refusal is not None:
        raise refusal


@dataclass(eq=False)
class _MountService(Service):
    """One call of `serve_mount`."""

    options: MountOptions
    mountpoint: str
    supervisor_client: SupervisorClient
    destination: str = ""
    workers: int = 1
    fetch_workers: FetchWorkers | None = None
    is_yielding: bool = False
    is_stopping: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.holder = holder_name(self.mountpoint, self.supervisor_client.process)
        self.layers = Layers(self.mountpoint)
        self._layers_file: MemoryFile | None = None
        self._base: int | None = None
        self._choices: list[Choice] | None = None
        self._refused_view: MountError | None = None
        self._view: View | None = None
        self._pages: PageCache | None = None

    async def run(self, orders: AsyncIterator[Command]) -> None:
        self._allot(0)  # raises before anything is mounted
        while True:
            self._refused_view = None
            connection = await trio.to_thread.run_sync(self._connect)
            try:
                assert self._view is not None
                allotment = self._allot(self._view.metadata_bytes)
                refusal = await self._serve(connection, self._view, allotment, orders)
            finally:
                # If this is the last descriptor, the kernel now fails the requests that still wait.
                os.close(connection.device)
            if self.supervisor_client.was_ready and (refusal or (self.role and self.role.refusal)):
                break  # it stays, dead: an empty folder would look like a dataset without files
            await trio.to_thread.run_sync(self._clear, connection)
            _log.info("%s is unmounted", self.mountpoint)
            if self._refused_view is None or self.is_stopping:
                break
            self._view.close()
            self._drop_choice(self._refused_view)
        if self.fetch_workers is not None:
            await trio.to_thread.run_sync(self.fetch_workers.close)
        await self.close_source()
        await self.unpin()
        self.raise_refusal()
        if refusal is not None:
            raise MountError(f"{self.mountpoint}: {refusal}")
        self.supervisor_client.tell_last("ended")

    def _allot(self, metadata_bytes: int) -> Allotment:
        nodes = max(self.config.nodes, 1) if self.config else 0
        fetches = fetches_at_once(self.workers)
        return allotment_of(self.snapshot, self.options, nodes, metadata_bytes, fetches)

    def _connect(self) -> KernelConnection:
        supervisor = self.supervisor_client
        inherited = supervisor.inherited.pop(DEVICE, None)
        self._arrange_layers()
        connection = connect(
            self.layers, self.snapshot.location, self.options, inherited, supervisor.is_clean
        )
        if not connection.is_taken_over:
            supervisor.tell("keep", DEVICE, connection.device)
            self._note_layers(replace(self.layers, number="" if self.layers.has_cover else connection.number))
            supervisor.tell("mounted", self.layers.number)
            if not connection.can_resend:
                _log.warning(
                    "%s: if the daemon dies, %s is mounted again, and open files fail",
                    cannot_resend(self.options),
                    self.mountpoint,
                )
        return connection

    def _arrange_layers(self) -> None:
        """Take over the layers of the previous daemon, or choose new ones."""
        supervisor = self.supervisor_client
        self._base = supervisor.inherited.pop(BASE, None)
        if LAYERS in supervisor.inherited:
            self._layers_file = supervisor.memory_file(LAYERS)
            self.layers = Layers.decode(self._layers_file.read(LAYERS_BYTES_MAX))
            self.mountpoint = self.layers.mountpoint
            self._choices = [Choice(self.layers.view, self.layers.reason)]
            self._view = self._open_view(self._choices[0], supervisor.inherited.pop(self.layers.view, None))
            return
        remove_bases()
        if self._choices is None:
            self._choices = view_choices(self.options)
        self._view = None
        while self._view is None:
            try:
                self._view = self._open_view(self._choices[0], None)
            except InvalidInput as error:
                self._drop_choice(error)
        view, reason = self._choices[0]
        base = ""
        replaces = facts().may_mount_beneath and has_dead_mount(self.mountpoint)
        if view != FUSE or self.options.follow_s or replaces:
            base, self._base = make_base()
            supervisor.tell("keep", BASE, self._base)
        self._note_layers(Layers(self.mountpoint, view, reason, base))
        supervisor.tell("view", reason)

    def _open_view(self, choice: Choice, inherited: int | None) -> View:
        """Raises InvalidInput for a dataset that the view cannot show, or not in the memory of the mount."""
        view = open_view(choice, self.snapshot, self.options, inherited)
        try:
            self._allot(view.metadata_bytes)
        except InvalidInput:
            view.close()
            raise
        if view.kept is not None and inherited is None:
            self.supervisor_client.tell("keep", choice.view, view.kept)
        return view

    def _drop_choice(self, refusal: DieselfsError) -> None:
        """Go on with the next view. Raises `refusal` if there is none."""
        self._choices = after_refusal((self._choices or [])[1:], str(refusal))
        if not self._choices:
            raise refusal

    def _note_layers(self, layers: Layers) -> None:
        """Keep what the next daemon must know of the layers."""
        self.layers = layers
        if self._layers_file is None:
            self._layers_file = self.supervisor_client.memory_file(LAYERS, layers.encode())
        else:
            self._layers_file.write(layers.encode())

    async def _serve(
        self,
        connection: KernelConnection,
        view: View,
        allotment: Allotment,
        orders: AsyncIterator[Command],
    ) -> str | None:
        """Serve until the mount has ended; returns why the kernel cannot be served, if that is the reason."""
        snapshot, is_taken_over = self.snapshot, connection.is_taken_over
        lock = lock_of(snapshot, self.config) if self.config else None
        async with trio.open_nursery() as answering:
            # This nursery outlives the inner one: pushing pages needs the answers to the kernel's lookups.
            slot_bytes = largest_payload_bytes(snapshot)
            slots = 1 + allotment.evictable // slot_bytes  # one for the page cache
            buffer_pool = BufferPool(slot_bytes, slots, allotment.window // slot_bytes)
            self._pages = pages = view.pages(connection.device, self.layers, buffer_pool, self.workers)
            try:
                async with trio.open_nursery() as nursery:
                    foreground = Foreground()
                    if lock is not None:
                        chunks = HandoverChunks(self.supervisor_client, snapshot)
                        of_job = lock, allotment.node_cache, nursery, foreground, chunks
                        self.join(*of_job, is_taken_over, self.fetch_workers)
                    is_on_way = is_staged(self.mountpoint)
                    prepared = Prepared(
                        snapshot, self.options, allotment, view, pages, buffer_pool, is_on_way, self.workers
                    )
                    node = Node(
                        prepared,
                        self._source(buffer_pool),
                        nursery,
                        Handover(*map(self.supervisor_client.memory_file, (HANDOVER_STATE, SCORES))),
                        self.role,
                        self.metrics,
                        foreground,
                    )
                    if self.client is not None:
                        node.watch_servers(self.client)
                    parts = node.core, node.reads, node.control, *owner(self.options)
                    root_user = os.geteuid() if view.is_private else None
                    driver = driver_class(self.options.driver)(
                        connection.device, *parts, is_taken_over, root_user
                    )
                    answering.start_soon(self._answer, driver, nursery.cancel_scope)
                    nursery.start_soon(self._announce_mount, driver, node, view, connection, nursery)
                    self.published_metrics.about = self._about()
                    nursery.start_soon(self._begin_background, driver, is_taken_over, nursery)
                    nursery.start_soon(self._tell_of_use, node)
                    nursery.start_soon(self._obey, orders, driver, connection, nursery.cancel_scope)
                    what = "taking over" if is_taken_over else "serving"
                    generation, dataset = snapshot.generation, snapshot.location
                    _log.info("%s generation %d of %s on %s", what, generation, dataset, self.mountpoint)
                    name, reason = view.choice
                    _log.info("view %s%s", name, f" ({reason})" if reason else "")
                    if node.memory_advice:
                        _log.warning("%s", node.memory_advice)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(pages.close)
                buffer_pool.close()
            answering.cancel_scope.cancel()
        return driver.refusal

    def _source(self, buffer_pool: BufferPool) -> Callable[[], Source]:
        """The current source for readers, with the fetch workers if there are any."""
        current, workers = self.plain_source(), self.fetch_workers
        if workers is None:
            return current
        workers.use(buffer_pool)
        if self.role is not None:  # they fetch for its node cache
            return current
        source = WorkerSource(current, workers)
        return lambda: source

    def _about(self) -> dict[str, str]:
        """The labels of its metrics."""
        place = self.destination or self.mountpoint
        return {"component": "mount", "mountpoint": place, **self.labels()}

    async def _answer(self, driver: Driver, others: trio.CancelScope) -> None:
        """Answer the kernel until the mount has ended, then end the other tasks."""
        await driver.run()
        if self.is_yielding:
            self.supervisor_client.tell_last("clean")
            _leave()
        others.cancel()

    async def _announce_mount(
        self, driver: Driver, node: Node, view: View, connection: KernelConnection, nursery: trio.Nursery
    ) -> None:
        serving = nursery.cancel_scope
        await driver.agreed.wait()
        if driver.refusal is not None:
            serving.cancel()
            return
        raises = not connection.is_taken_over and view.reads_ahead
        if raises and not await trio.to_thread.run_sync(raise_read_ahead, self.layers.fuse_place):
            _log.info("the kernel reads large files in steps of 128 KiB: only root may raise read_ahead_kb")
        if not self.layers.number:
            try:
                await self._cover(view)
            except MountError as error:
                self._refused_view = error
                serving.cancel()
                return
        nursery.start_soon(self._watch_cover, node)
        await self.settled(connection.is_taken_over)
        self.supervisor_client.tell("ready", "resends" if connection.can_resend else "")
        unmap_clean()
        if not is_staged(self.mountpoint):
            self._begin_following(node)
        if self.options.write:
            nursery.start_soon(self._keep_stored)

    async def _keep_stored(self) -> None:
        """Store what programs write, at each interval, until cancelled; the next daemon does the rest of a round."""
        from dieselfs_client.writing.rounds import Shown, store
        from dieselfs_client.writing.upper import WriteFolder

        folder = WriteFolder(self.options.write_folder or "")
        do_round = partial(store, folder, self.client, Shown(self.snapshot))
        while True:
            await trio.sleep(self.options.write_every_s)
            try:
                outcome = await trio.to_thread.run_sync(do_round, abandon_on_cancel=True)
            except (DieselfsError, OSError) as error:  # must not end the daemon
                _log.warning("what was written is not stored yet: %s", error)
                continue
            for line in outcome.warnings():
                _log.warning("%s", line)

    async def _begin_background(self, driver: Driver, is_taken_over: bool, nursery: trio.Nursery) -> None:
        """Pin the generation, and publish the metrics. The pin of an earlier daemon holds meanwhile."""
        if is_taken_over:
            await driver.agreed.wait()
            await trio.sleep(TAKEOVER_PAUSE_S)
        nursery.start_soon(self.keep_pinned)
        nursery.start_soon(publish, self.published_metrics)

    async def _tell_of_use(self, node: Node) -> None:
        """Let the supervisor keep a standby daemon for readers from now on."""
        await node.used.wait()
        self.supervisor_client.tell("used")

    async def _cover(self, view: View) -> None:
        """Mount what users see over the FUSE mount. Raises MountError if the kernel refuses."""
        view.opening()
        layers = await trio.to_thread.run_sync(
            cover, self.layers, view.mount, self.snapshot.location, self.options.noexec
        )
        self.layers = layers  # before the next checkpoint: an order to stop must find the mount
        await view.opened()
        self._note_layers(layers)
        self.supervisor_client.tell("mounted", self.layers.number)

    async def _watch_cover(self, node: Node) -> None:
        """Detach the FUSE mount when the mount that users see is unmounted; its last user ends the connection. One that
        is moved to its destination is served there.
        """
        if not self.layers.base:
            return
        await uncovered(self.layers)
        moved = replace(self.layers, mountpoint=self.destination)
        if is_staged(self.mountpoint) and await trio.to_thread.run_sync(is_covered, moved):
            self.mountpoint = self.destination
            self._note_layers(moved)
            self.supervisor_client.tell("moved", self.mountpoint)
            _log.info("generation %d is on %s now", self.snapshot.generation, self.mountpoint)
            if self._pages is not None:
                self._pages.moved(self.mountpoint)
            self._begin_following(node)
            await uncovered(self.layers)
        if self.options.follow_s:
            self.supervisor_client.tell("moved", "")  # its path may be that of the next generation
        if node.follower is not None:
            await node.follower.end()
        if self.layers.has_cover:
            await trio.to_thread.run_sync(remove_base, self.layers)

    def _begin_following(self, node: Node) -> None:
        """Move to new generations from now on, with the option for it."""
        if self.options.follow_s and self.client is not None and node.follower is None:
            from dieselfs_client.daemon.following import Follower

            node.begin(
                Follower(self.snapshot, self.client, self.options, lambda: self.layers, node, self.metrics)
            )

    async def _obey(
        self,
        orders: AsyncIterator[Command],
        driver: Driver,
        connection: KernelConnection,
        serving: trio.CancelScope,
    ) -> None:
        """Unmount at the first order to stop; end after STOP_GRACE_S, or at the second, even if files are open.

        While the layers are being mounted, the first order ends the tasks: `_clear` unmounts what is there by then.
        """
        async for order in orders:
            if order is Command.YIELD:
                if connection.can_resend:
                    _leave()
                self.is_yielding = True
                driver.finish()
            elif self.is_stopping or not self.layers.number:
                self.is_stopping = True
                serving.cancel()
            else:
                self.is_stopping = True
                if not is_covered(self.layers):  # only open files are served
                    serving.deadline = trio.current_time() + STOP_GRACE_S
                else:
                    await self._unmount(serving)

    async def _unmount(self, serving: trio.CancelScope) -> None:
        try:
            await trio.to_thread.run_sync(self._unmount_own, False)
        except MountError as error:
            _log.info("%s; open files are served for %g s more", error, STOP_GRACE_S)
            serving.deadline = trio.current_time() + STOP_GRACE_S
            with contextlib.suppress(MountError):  # another process has unmounted it
                await trio.to_thread.run_sync(self._unmount_own, True)

    def _unmount_own(self, lazily: bool) -> None:
        record = mount_at(self.mountpoint)
        is_own = record is not None and record.device == self.layers.number
        unmount(self.mountpoint, lazily, number=record.number if record is not None and is_own else 0)

    def _clear(self, connection: KernelConnection) -> None:
        """Unmount what is left, and remove the base."""
        record = mount_at(self.mountpoint)
        number = self.layers.number or ("" if self.layers.has_cover else connection.number)
        if record is not None and record.device == number:
            with contextlib.suppress(MountError):
                unmount(self.mountpoint, lazily=True, number=record.number)
        if self._base is not None:
            remove_base(self.layers)
            os.close(self._base)
            self._base = None
            self.supervisor_client.tell("drop", BASE)


async def uncovered(layers: Layers) -> None:
    """Wait until the mount that users see is gone. If cancelled, nothing stays behind."""
    with select.epoll() as changes, open(MOUNTINFO, "rb") as mounts:
        # The kernel reports a change of the table as an exceptional condition, once. `trio` waits for readable
        # descriptors only, and an epoll instance is one while it has something to report. A change that comes between
        # a look at the table and the wait is lost: `trio` asks for it before it waits. So after each change, which is
        # often the first of several, the table is read again soon.
        changes.register(mounts, select.EPOLLPRI)
        pause_s = WATCH_S_MIN
        while is_covered(layers):
            with trio.move_on_after(pause_s) as pause:
                await trio.lowlevel.wait_readable(changes.fileno())
            pause_s = min(2 * pause_s, WATCH_S_MAX) if pause.cancelled_caught else WATCH_S_MIN


def _leave() -> NoReturn:
    """End at once: the kernel sends the unanswered requests to the next daemon."""
    logging.shutdown()
    os._exit(EXIT_OK)
