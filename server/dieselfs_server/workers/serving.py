"""Runs a server with several workers. This module opens sockets, and forks."""

import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import trio

from dieselfs.errors import EXIT_OK, EXIT_UNAVAILABLE, DieselfsError
from dieselfs.rpc.serving.listening import listening_at
from dieselfs.settings.table import OFF
from dieselfs_server.assemble import run_server, tell_listening
from dieselfs_server.logs import set_level
from dieselfs_server.reloading import LiveSettings
from dieselfs_server.settings import ServerSettings
from dieselfs_server.workers.parent import Parent
from dieselfs_server.workers.shared import Shared
from dieselfs_server.workers.worker import Worker


def run_workers(
    settings: ServerSettings,
    ready: Callable[[], object],
    load: Callable[[ServerSettings], ServerSettings | None],
) -> None:
    """Serve with `settings.workers` processes until a signal to stop. Calls `ready` once all of them take connections,
    and `load` on SIGHUP, for the settings that are taken then.

    Raises what `run_server` raises if a worker cannot start.
    """
    with ExitStack() as stack:
        listeners: list[socket.socket] = []
        for address in settings.listen:
            listeners += stack.enter_context(listening_at(address))
            tell_listening(address, settings.tls != OFF)
        workers = _Workers(settings, load)
        Parent(settings.workers, listeners, workers.work, ready, workers.reload).run()


class _Workers:
    """What the parent does for its workers: their work, with the present settings."""

    def __init__(
        self, settings: ServerSettings, load: Callable[[ServerSettings], ServerSettings | None]
    ) -> None:
        self._settings, self._load = settings, load
        self._shared = Shared(settings.workers)

    def reload(self) -> bytes | None:
        found = self._load(self._settings)
        if found is None:
            return None
        self._settings = found
        set_level(found.log_level)
        return LiveSettings.of(found).encode()

    def work(self, place: int, channel: socket.socket, reason: str) -> int:
        """A worker; returns its exit code."""
        settings = self._settings
        worker = Worker(place, settings.workers, channel, self._shared, reason)
        if not worker.is_first:
            settings = replace(settings, is_new=False, admin_key=None, metrics=None)
        try:
            trio.run(run_server, settings, worker.ready, worker)
        except (DieselfsError, OSError) as error:
            worker.failed(error)
            return error.exit_code if isinstance(error, DieselfsError) else EXIT_UNAVAILABLE
        return EXIT_OK
