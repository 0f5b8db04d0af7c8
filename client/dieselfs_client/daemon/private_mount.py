"""Runs a command with a mount of its own, for `dlcmd run`. This module starts processes.

In a private table of mounts, which no other process sees; where that is not allowed, an ordinary mount that ends with
the command.
"""

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from dieselfs.errors import MountError
from dieselfs.process.keeper import follow_parent, fork_keeper, kill_descendants, run_command
from dieselfs.process.state_dirs import log_path
from dieselfs_client.daemon import control
from dieselfs_client.mount.points import namespace
from dieselfs_client.mount.points.layers import Layers, make_base, remove_base, remove_bases
from dieselfs_client.mount.points.mounting import resolved_mountpoint
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.supervision.status import supervision_of

PLACE_VARIABLE = "DIESELFS_MOUNT"
"""The environment variable of the command with the path of its mount."""
_PLACE = "mount"


def run(
    dataset: str,
    command: Sequence[str],
    options: MountOptions,
    at: str | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> int:
    """Mount a dataset, run a command, unmount, and return its status as of waitpid(2).

    Returns, or raises, in a child of the calling process, which must have one thread: that process only waits, and ends
    as its child ends. When either or both are killed, all processes are, and nothing stays mounted. `at`: an empty
    folder to mount on; None makes one. `note` gets the reason why the mount is not private.

    Raises what `control.mount` raises, OSError if the command cannot be run, and KeyboardInterrupt.
    """
    ended, _ = os.pipe()  # process and keeper hold its write end
    fork_keeper(remove_bases)
    parent = os.getppid()
    reason = namespace.obstacle()
    if reason is None:
        namespace.enter()
        follow_parent(parent)
    base, lock = ("", None) if at is not None else make_base(_PLACE)
    place = resolved_mountpoint(os.path.join(base, _PLACE) if at is None else at)
    if reason is not None:
        note(f"{reason}; until the command ends, the mount on {place} is there for all your processes")
    if options.log_file is None:
        options = replace(options, log_file=str(log_path("run", dataset)))
    try:
        control.mount(dataset, place, options, owner=ended)
        try:
            environment = {**os.environ, PLACE_VARIABLE: place}
            return run_command(command, environment, namespace.give_up_rights)
        finally:
            _unmount(place, note)
    finally:
        kill_descendants()
        if lock is not None:
            remove_base(Layers(place, base=base))
            os.close(lock)


def _unmount(place: str, note: Callable[[str], None]) -> None:
    """Kill what the command left, unmount, and store what was written; `note` gets warnings. Signals do not interrupt
    it: it takes a bounded time.
    """
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    supervision = supervision_of(place)
    kill_descendants({supervision.supervisor} if supervision else ())
    try:
        for line in control.unmount(place):
            note(line)
    except MountError:
        with suppress(MountError):  # another process has unmounted it
            control.unmount(place, lazily=True)
