"""Moves a mount to new generations of its dataset. This module calls the server and the kernel, and starts processes.

    look      every `interval_s` the server is asked for the newest generation
    prepare   a complete mount of that generation, with processes of its own, is made on `.next` in the base
    wait      for a moment between plans
    switch    that mount is put beneath the visible one, which is then detached: one step for all who open paths

What is open on the old mount stays open, and its daemon serves it until it is closed. So a file, a folder or a working
folder shows one generation. A new daemon of the old mount finishes the switch of one that died, or begins again.
"""

import errno
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol

import trio

from dieselfs.errors import DieselfsError, MountError, NotFound
from dieselfs.names import Location
from dieselfs.records import DatasetRecord
from dieselfs.rpc.client import ServerClient
from dieselfs.snapshot.reader import Snapshot
from dieselfs.telemetry.registry import Registry
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.layers import Layers
from dieselfs_client.mount.points.mount_table import is_above, mount_at
from dieselfs_client.mount.points.mounting import put_in_place, uncover, unmount
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.mount.reading.error_log import Refused

SETTLED_S = 2.0
"""A mount moves to a generation that has been the newest for this long, or for the interval if that is shorter."""
SETTLED_MAX_S = 30.0
"""While a writer publishes one generation after another, the mount moves at least this often."""
MOMENT_S = 0.1
"""Interval between checks whether a plan is being read, which delays the move."""
STRAGGLERS_S = 1.0
"""How long after a move requests may arrive from programs that looked up the old mount."""

_log = logging.getLogger(__name__)


class Moments(Protocol):
    """When a mount may change."""

    def is_idle(self) -> bool:
        """Whether no program reads the files of a plan, or is about to."""

    def is_between(self) -> bool:
        """Whether a program that opens an order now is the only one, and has read the files of the one before."""


class Follower:
    """Used from one trio thread. `layers`: of the mount now; `interval_s` is `options.follow_s`."""

    def __init__(
        self,
        snapshot: Snapshot,
        client: ServerClient,
        options: MountOptions,
        layers: Callable[[], Layers],
        moments: Moments,
        metrics: Registry,
    ) -> None:
        self._snapshot = snapshot
        self._client = client
        self._options = options
        self._layers = layers
        self._moments = moments
        self._state, self._reason, self._looked = "current", "", ""
        self._next: int | None = None
        self._is_staged = False
        self._switch = trio.Lock()
        self._running = trio.CancelScope()
        self._replaced_s: float | None = None
        self._sent_on: set[bytes] = set()
        self._checks = metrics.counter("follow.checks", "Questions to the server for a newer generation.")
        self._failures = metrics.counter(
            "follow.failures", "Newer generations that could not be mounted yet."
        )
        metrics.info(
            "following", "The next generation of a mount with --follow, and what it waits for.", self.fields
        )

    def fields(self) -> dict[str, Any]:
        """What is announced, for `.dieselfs/info`."""
        return {
            "interval_s": self._options.follow_s,
            "state": self._state,
            "next_generation": self._next,
            "reason": self._reason,
            "looked": self._looked,
        }

    @property
    def is_replaced(self) -> bool:
        return self._replaced_s is not None

    async def run(self) -> None:
        """Look, and move, until this mount is replaced, `end`, or the task is cancelled."""
        with self._running:
            await self._attempt(self._clear)
            while not self.is_replaced:
                await trio.sleep(self._options.follow_s)
                await self._attempt(self._take_next)

    async def end(self) -> None:
        """This mount is on its path no more: begin nothing, and detach what was prepared."""
        self._running.cancel()
        async with self._switch:
            if self._is_staged:
                self._is_staged = False
                with suppress(MountError, OSError):  # it has just ended
                    await trio.to_thread.run_sync(uncover, self._layers().staging)

    async def order_opened(self, name: bytes) -> None:
        """A program opens the order `name`: between two plans, it gets that of the next generation.

        Raises Refused: the kernel then walks the path again, which leads to the mount of that generation now.
        """
        if self._is_staged and self._moments.is_between():
            with suppress(MountError):  # noted in `_move`; it is prepared again
                await self._move()
        async with self._switch:
            pass
        is_late = self._replaced_s is not None and trio.current_time() < self._replaced_s + STRAGGLERS_S
        if is_late and name not in self._sent_on:  # the second time, it is relative to a folder of this mount
            self._sent_on.add(name)
            raise Refused(errno.ESTALE)

    # -- steps -------------------------------------------------------------------------------------------

    async def _attempt(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except (DieselfsError, OSError) as error:  # must not end the daemon
            self._failures.value += 1
            self._note("failed", None, str(error))
            _log.warning("the next generation is not mounted yet: %s", error)

    async def _clear(self) -> None:
        await trio.to_thread.run_sync(_clear_staging, self._layers())

    async def _take_next(self) -> None:
        if (found := await self._look()) is not None:
            await self._prepare(found)
            await self._wait()

    async def _look(self) -> DatasetRecord | None:
        """The record of a newer generation; None if there is none."""
        header = self._snapshot.header
        record = await self._record()
        if record.dataset_id != header.dataset_id:
            raise NotFound(f"dataset {header.dataset} was dropped, and another one has its name: mount that")
        if record.generation == header.generation or record.updated_ns <= header.updated_ns:
            self._note("current", None)
            return None
        with trio.move_on_after(SETTLED_MAX_S):
            while True:
                await trio.sleep(min(SETTLED_S, self._options.follow_s))
                before, record = record, await self._record()
                if record.generation == before.generation:
                    break
        return record

    async def _record(self) -> DatasetRecord:
        self._checks.value += 1
        record = await trio.to_thread.run_sync(
            self._client.dataset, self._snapshot.dataset, abandon_on_cancel=True
        )
        self._looked = datetime.now(UTC).isoformat(timespec="seconds")
        return record

    async def _prepare(self, found: DatasetRecord) -> None:
        """Mount the newest generation, beside this one. Raises what `control.mount` raises."""
        self._note("preparing", found.generation)
        layers = self._layers()
        await trio.to_thread.run_sync(_check_shows, layers)
        await self._clear()
        name = Location(self._snapshot.dataset, self._snapshot.folder).part
        # Without a request to stop, its start is bounded by MOUNT_START_TIMEOUT_S; it ends if this process does.
        await trio.to_thread.run_sync(
            lambda: control.mount(name, layers.staging, self._options, destination=layers.mountpoint),
            abandon_on_cancel=True,
        )
        generation = await trio.to_thread.run_sync(control.generation_of, layers.staging)
        self._is_staged = True
        self._note("waiting", generation or found.generation, "for a moment between plans")
        _log.info("generation %s is ready, and waits for a moment between plans", self._next)

    async def _wait(self) -> None:
        while self._is_staged:
            if self._moments.is_idle():
                await self._move()
            else:
                await trio.sleep(MOMENT_S)

    async def _move(self) -> None:
        """Put the next generation in the place of this one. Raises MountError; then it is prepared again."""
        async with self._switch:
            if not self._is_staged or self.is_replaced:
                return
            self._is_staged = False
            try:
                await trio.to_thread.run_sync(_put_in_place, self._layers())
            except (MountError, OSError) as error:
                self._note("failed", self._next, str(error))
                raise MountError(str(error)) from error
            self._replaced_s = trio.current_time()
            self._note("replaced", self._next)
            _log.info("generation %s has taken the place of %d", self._next, self._snapshot.generation)

    def _note(self, state: str, generation: int | None, reason: str = "") -> None:
        self._state, self._next, self._reason = state, generation, reason


def _check_shows(layers: Layers) -> int:
    """The number of this mount. Raises MountError if another mount would be detached instead of it."""
    record = mount_at(layers.mountpoint)
    if record is None or record.device != layers.number:
        what = "nothing" if record is None else "something else"
        raise MountError(f"{layers.mountpoint}: {what} is mounted there")
    return record.number


def _put_in_place(layers: Layers) -> None:
    put_in_place(layers.staging, layers.mountpoint, _check_shows(layers))


def _clear_staging(layers: Layers) -> None:
    """End what an earlier daemon of this mount has begun: a switch is finished, a mount that was not used is detached.

    Its own processes notice the latter, and end.
    """
    with suppress(FileExistsError):
        os.mkdir(layers.staging, mode=0o700)
    staged = mount_at(layers.staging)
    if staged is None:
        return
    with suppress(MountError):  # it has just ended
        record = mount_at(layers.mountpoint)
        shows = record is not None and record.device == layers.number
        if record is not None and shows and is_above(layers.number, staged.device, layers.mountpoint):
            uncover(layers.mountpoint, record.number)
        unmount(layers.staging, lazily=True)
