"""The process that daemons are forked from. This module forks, and talks with the supervisor.

    python -m dieselfs_client.supervision.zygote DATASET MOUNTPOINT OPTIONS LOG TETHER

It has imported everything and opened the dataset, and never has a second thread. What it has opened stays what it was:
the snapshot is kept by the supervisor, so that a zygote that comes after it needs neither the server nor its cache for
the same inode numbers.
"""

import gc
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy.ma  # noqa: F401  # np.unique imports it when it is first called, and then a reader would wait for it
import trio

from dieselfs.chunk_source import NodeSource
from dieselfs.dataset import connect
from dieselfs.errors import EXIT_BUG, EXIT_OK, DieselfsError
from dieselfs.meta.snapshot import Snapshot
from dieselfs.reader import ChunkReader
from dieselfs.rpc.client import ServerClient
from dieselfs_client.daemon import open_log, serve
from dieselfs_client.options import MountOptions, parse_options
from dieselfs_client.pinning import Pin
from dieselfs_client.supervision.guardian import Guardian
from dieselfs_client.supervision.record import name_process
from dieselfs_client.supervision.supervisor import SNAPSHOT
from dieselfs_client.supervision.tether import Tether, receive_inheritance

_log = logging.getLogger(__name__)


class Opened(NamedTuple):
    """A dataset as daemons serve it."""

    snapshot: Snapshot
    source: NodeSource
    pin: Pin | None
    client: ServerClient | None = None


def open_dataset(dataset: str, options: MountOptions, kept_snapshot: int | None) -> Opened:
    """Open `dataset`, in the state of the snapshot that was kept, if one was; then the server is not asked.

    Raises what `dieselfs.connect` raises.
    """
    opened = connect(
        dataset,
        server=options.server,
        key_file=options.key_file,
        home=options.home,
        generation=options.generation,
        job="",  # the mount takes part in the job by itself
        create=kept_snapshot is not None,  # which also means that it need not be there at the moment
    )
    if kept_snapshot is None:
        return Opened(opened.snapshot, opened.chunks, opened.client.pin, opened.client)
    snapshot = Snapshot.open(f"/proc/self/fd/{kept_snapshot}")
    return Opened(snapshot, ChunkReader(opened.client, snapshot), opened.client.pin, opened.client)


def fork_daemons(
    tether: Tether, opened: Opened, mountpoint: str, options: MountOptions, log_file: Path | None
) -> None:
    """Fork a daemon whenever the supervisor says so, until it closes the tether. Daemons do not come back from here."""
    gc.collect()
    gc.freeze()  # or the first collection in a daemon would copy all that it shares with us
    tether.send("warm")
    while (message := tether.receive_patiently(None)) is not None:
        if message.word == "fork" and message.descriptor is not None:
            with socket.socket(fileno=message.descriptor) as end:
                of_daemon = Tether(end)
                if _is_forked(of_daemon):
                    tether.close()
                    _be_daemon(of_daemon, opened, mountpoint, options, log_file)


def _is_forked(of_daemon: Tether) -> bool:
    """Whether this is the daemon. A process in between forks it and is gone, so that it is the supervisor's child."""
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return False
    try:
        daemon = os.fork()
        if daemon:
            of_daemon.send("born", str(daemon))
    except OSError:
        _log.exception("no daemon can be forked")
        os._exit(EXIT_BUG)
    if daemon:
        os._exit(EXIT_OK)
    return True


def _be_daemon(
    tether: Tether, opened: Opened, mountpoint: str, options: MountOptions, log_file: Path | None
) -> NoReturn:
    code = EXIT_BUG
    try:
        guardian = _guardian_when_due(tether)
        code = _served(guardian, tether, opened, mountpoint, options, log_file) if guardian else EXIT_OK
    except BaseException:  # whatever it is: it must not go on as if it were the zygote
        _log.exception("the daemon ended by a fault of its own")
    finally:
        logging.shutdown()
        os._exit(code)


def _guardian_when_due(tether: Tether) -> Guardian | None:
    """When it is this daemon's turn; None if the supervisor is gone before that."""
    try:
        return Guardian(tether)
    except ConnectionError as error:
        _log.info("a daemon that stood by ends: %s", error)
        return None


def _served(
    guardian: Guardian,
    tether: Tether,
    opened: Opened,
    mountpoint: str,
    options: MountOptions,
    log_file: Path | None,
) -> int:
    """The exit code, once there is nothing left to serve."""
    name_process("dieselfs-daemon")
    if log_file is not None:
        open_log(log_file)  # the one of the zygote may have been put aside by now
    try:
        trio.run(
            serve,
            opened.snapshot,
            opened.source,
            mountpoint,
            options,
            _nothing,
            opened.pin,
            guardian,
            opened.client,
        )
    except DieselfsError as error:
        _fail(tether, error, log_file)
        return error.exit_code
    return EXIT_OK


def _nothing() -> None:
    """For `serve`, which tells the guardian when it is ready."""


def _fail(tether: Tether, error: DieselfsError, log_file: Path | None) -> None:
    if log_file is not None:
        _log.error("%s", error)
    text = " ".join(str(error).splitlines())
    with suppress(OSError):  # there is nobody left to hear of it
        tether.send_patiently("failed", f"{error.exit_code} {type(error).__name__} {text}")


def main() -> None:
    dataset, mountpoint, text, log, end = sys.argv[1:]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # signals are for the supervisor, who gives orders
    os.umask(0o077)
    name_process("dieselfs-zygote")
    os.set_inheritable(int(end), False)
    log_file = None if log == "-" else Path(log)
    with socket.socket(fileno=int(end)) as ours:
        tether = Tether(ours)
        try:
            if log_file is None:
                logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
            else:
                open_log(log_file)
            inherited, _ = receive_inheritance(tether)
            options = parse_options(text, MountOptions())
            opened = open_dataset(dataset, options, inherited.get(SNAPSHOT))
        except DieselfsError as error:
            _fail(tether, error, log_file)
            sys.exit(error.exit_code)
        with suppress(
            OSError
        ):  # it was put out of the cache this moment: a zygote after us asks the server for it
            kept = os.open(opened.snapshot.source, os.O_RDONLY | os.O_CLOEXEC)
            tether.send("keep", SNAPSHOT, kept)
            os.close(kept)
        fork_daemons(tether, opened, mountpoint, options, log_file)


if __name__ == "__main__":
    main()
