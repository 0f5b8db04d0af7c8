"""How a zygote forks daemons. This module forks, and exchanges messages with the supervisor."""

import gc
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import trio

from dieselfs.errors import EXIT_BUG, EXIT_OK, DieselfsError, MountError
from dieselfs.process.system_limits import room_bytes, usable_processors
from dieselfs.settings.table import IMAGE
from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.plain import node_source, readable
from dieselfs.sources.server import ServerSource
from dieselfs.telemetry.shared import SharedRegistry
from dieselfs_client.daemon.log_file import failure, is_log, open_log
from dieselfs_client.daemon.mount_daemon import serve_mount
from dieselfs_client.daemon.opening import Opened
from dieselfs_client.memory.fetch_workers import FetchWorkers, start_forker
from dieselfs_client.memory.room import crowds_page_cache
from dieselfs_client.mount.drivers.choice import driver_class
from dieselfs_client.mount.points.options import MountOptions, workers_for
from dieselfs_client.mount.views.view import view_choices, view_class
from dieselfs_client.supervision.control_channel import ControlChannel
from dieselfs_client.supervision.status import name_process
from dieselfs_client.supervision.supervisor_client import SupervisorClient

Serve = Callable[[SupervisorClient], Coroutine[Any, Any, None]]
"""Serves the mount for a daemon with this client. Called while the daemon has one thread."""

_log = logging.getLogger(__name__)


def fork_daemons(control_channel: ControlChannel, serve: Serve, log_file: Path | None) -> None:
    """Fork a daemon at each request of the supervisor, until it closes the channel. Never returns in a daemon.

    Another supervisor says `go` again, and hears again that this process is warm.
    """
    gc.freeze()  # else the first collection in a daemon copies all pages that it shares with the zygote
    _tell(control_channel, "warm")
    while (message := control_channel.receive_patiently(None)) is not None:
        if message.word == "go":
            _tell(control_channel, "warm")
        elif message.descriptor is not None and message.word != "fork":
            os.close(message.descriptor)
        elif message.descriptor is not None:
            with socket.socket(fileno=message.descriptor) as end:
                of_daemon = ControlChannel(end)
                if _is_forked(of_daemon):
                    control_channel.close()
                    _be_daemon(of_daemon, serve, log_file)


def _tell(control_channel: ControlChannel, word: str, about: str = "") -> None:
    with suppress(OSError):  # the supervisor has ended
        control_channel.send(word, about)


def _is_forked(of_daemon: ControlChannel) -> bool:
    """Whether this is the daemon. A process in between forks it and ends, so the supervisor becomes its parent.

    The daemon tells its process ID itself: so the supervisor knows it before the daemon serves, whenever others run.
    """
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return False
    try:
        daemon = os.fork()
    except OSError:
        _log.exception("cannot fork a daemon")
        os._exit(EXIT_BUG)
    if daemon:
        os._exit(EXIT_OK)
    _tell(of_daemon, "born", str(os.getpid()))
    return True


def _be_daemon(control_channel: ControlChannel, serve: Serve, log_file: Path | None) -> NoReturn:
    code = EXIT_OK
    try:
        try:
            supervisor_client = SupervisorClient(control_channel)  # waits until this daemon must serve
        except ConnectionError as error:
            _log.info("the standby daemon ends: %s", error)
        else:
            code = _served(supervisor_client, serve, log_file)
    except BaseException:  # any error: the process must not continue as the zygote
        code = EXIT_BUG
        _log.exception("the daemon ended by an unexpected error")
    finally:
        logging.shutdown()
        os._exit(code)


def _served(supervisor_client: SupervisorClient, serve: Serve, log_file: Path | None) -> int:
    """Serve until the mount has ended; returns the exit code."""
    name_process("dieselfs-daemon")
    if log_file is not None and not is_log(log_file):  # the file that the zygote opened was rotated
        open_log(log_file)
    serving = serve(supervisor_client)  # may fork, which trio's threads would forbid

    async def run() -> None:
        await serving

    try:
        trio.run(run)
    except DieselfsError as error:
        supervisor_client.tell_last("failed", failure(error, log_file))
        return error.exit_code
    return EXIT_OK


def serve_of(opened: Opened, mountpoint: str, options: MountOptions, destination: str) -> Serve:
    """`serve_mount`, with workers that fetch, if the mount has several."""
    snapshot, source, client = opened
    workers = workers_for(options, usable_processors())
    with suppress(MountError):  # the daemon reports it
        is_image = view_choices(options)[0].view == IMAGE
        counts = snapshot.header.total_bytes, len(snapshot.column("extent_chunks")), snapshot.chunk_count
        client.drops_pages = is_image and options.job is None and crowds_page_cache(*counts, room_bytes()[0])

    def serve(supervisor_client: SupervisorClient) -> Coroutine[Any, Any, None]:
        reader, fetch_workers = source, None
        if workers > 1:
            processes = 1 + workers
            metrics = SharedRegistry(processes)
            disk = options.disk, options.disk_size_bytes
            # A run of chunks is spread over the workers, so none opens files ahead for it.
            reader = node_source(client, snapshot, *disk, metrics, processes, opens_ahead=False)
            # The node cache of a job keeps chunks as they are stored.
            of_worker = reader if options.job is not None else readable(reader, client)
            metrics.seal()

            def source_of(number: int, hold: int | None) -> ServerSource:
                metrics.row = number
                if hold is not None:
                    reader.share(hold)
                return of_worker

            forker = start_forker(source_of, supervisor_client.detach)
            fetch_workers = FetchWorkers(forker, workers, reader.hold)
        parts = snapshot, reader, mountpoint, options, client, supervisor_client
        return serve_mount(*parts, destination, workers, fetch_workers)

    return serve


def import_for(options: MountOptions, snapshot: Snapshot) -> None:
    """Import, and make, what only some daemons need: here it is shared memory."""
    with suppress(MountError):  # the daemon reports it
        driver_class(options.driver)
    with suppress(DieselfsError, OSError):
        view_class(view_choices(options)[0]).prepare(snapshot, options)
    if options.job is not None:
        import_module("dieselfs_client.cluster.role")
    if options.follow_s:
        import_module("dieselfs_client.daemon.following")
    if options.write:
        import_module("dieselfs_client.writing.rounds")
    if snapshot.header.is_encrypted:
        import_module("dieselfs.sources.decrypted")
