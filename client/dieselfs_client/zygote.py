"""The process that daemons are forked from. This module forks, and exchanges messages with the supervisor.

    python -m dieselfs_client.zygote DATASET MOUNTPOINT OPTIONS LOG DESTINATION CHANNEL

It has imported everything and opened the dataset, and never has a second thread. The supervisor keeps the snapshot, so
that a later zygote has the same inode numbers, and needs neither the server nor the snapshot cache.

The first zygote of a mount lets a child fetch and verify the snapshot, and imports the rest meanwhile. The memory and
the libraries for that end with the child.
"""

import ctypes
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path

import dieselfs_client.bare_packages  # noqa: F401  # before the others are imported
from dieselfs.errors import EXIT_BUG, EXIT_OK, DieselfsError, NotFound
from dieselfs_client.capabilities import give_up_privileges
from dieselfs_client.daemon.log_file import failure, open_log
from dieselfs_client.daemon.opening import Opened, open_dataset
from dieselfs_client.library_pages import unmap_clean
from dieselfs_client.mount.points.options import MountOptions, parse_options
from dieselfs_client.supervision.control_channel import SNAPSHOT, ControlChannel, receive_inheritance
from dieselfs_client.supervision.status import name_process

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)
_log = logging.getLogger(__name__)


def _opened_apart(
    dataset: str, options: MountOptions, report: Callable[[DieselfsError], None]
) -> Callable[[], Opened]:
    """Fetch and verify the snapshot in a child. Returns a function that waits for it, and opens the dataset.

    `report` is called in the child, with an error of `open_dataset`; then this process exits as the child did.
    """
    ours, theirs = os.pipe()
    zygote, child = os.getpid(), os.fork()
    if not child:
        code = EXIT_BUG
        try:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() == zygote:
                os.write(theirs, os.fsencode(open_dataset(dataset, options, None).snapshot.source))
                code = EXIT_OK
        except DieselfsError as error:
            report(error)
            code = error.exit_code
        except BaseException:  # any error: the process must not continue as the zygote
            _log.exception("the dataset could not be opened")
        finally:
            logging.shutdown()
            os._exit(code)
    os.close(theirs)

    def opened() -> Opened:
        with open(ours, "rb") as pipe:
            path = os.fsdecode(pipe.read())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != EXIT_OK:
            sys.exit(code if code > 0 else EXIT_BUG)
        try:
            return open_dataset(dataset, options, path)
        except NotFound:  # the cache has just removed it
            return open_dataset(dataset, options, None)

    return opened


def main() -> None:
    dataset, mountpoint, text, log, destination, end = sys.argv[1:]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # signals are for the supervisor, which sends orders
    os.umask(0o077)
    name_process("dieselfs-zygote")
    give_up_privileges()
    os.set_inheritable(int(end), False)
    log_file = None if log == "-" else Path(log)
    with socket.socket(fileno=int(end)) as ours:
        control_channel = ControlChannel(ours)

        def report(error: DieselfsError) -> None:
            with suppress(OSError):  # the supervisor has ended
                control_channel.send_patiently("failed", failure(error, log_file))

        try:
            if log_file is None:
                logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
            else:
                open_log(log_file)
            inherited, _ = receive_inheritance(control_channel)
            options = parse_options(text, MountOptions())
            kept = inherited.get(SNAPSHOT)
            if kept is None:
                open_it = _opened_apart(dataset, options, report)
            else:
                open_it = partial(open_dataset, dataset, options, f"/proc/self/fd/{kept}")
            forking = import_module("dieselfs_client.daemon.forking")  # takes a while, as opening does
            gc.collect()
            _libc.malloc_trim(0)  # compiling and importing leaves free memory
            opened = open_it()
        except DieselfsError as error:
            report(error)
            sys.exit(error.exit_code)
        except ConnectionError as error:
            _log.info("the zygote ends: %s", error)
            return
        with suppress(OSError):  # the cache has just removed it: the next zygote fetches it from the server
            file = os.open(opened.snapshot.source, os.O_RDONLY | os.O_CLOEXEC)
            control_channel.send("keep", SNAPSHOT, file)
            os.close(file)
        forking.import_for(options, opened.snapshot)
        serve = forking.serve_of(opened, mountpoint, options, destination)
        unmap_clean(has_threads=False)
        forking.fork_daemons(control_channel, serve, log_file)


if __name__ == "__main__":
    main()
