"""Real mounts for tests, served by a separate process, and always unmounted.

A test that waits for a page of a mount which its own process serves would never continue: a page fault does not release
the interpreter lock.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from threading import Thread

import trio

from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.interface import Source
from dieselfs_client.daemon import mount_daemon
from dieselfs_client.daemon.log_file import open_log
from dieselfs_client.daemon.mount_daemon import serve_mount
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.supervision.control_channel import ControlChannel
from dieselfs_client.supervision.supervisor_client import SupervisorClient
from lab.network import clear
from tests.support.dataset import PackedDataset
from tests.support.forks import forks

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class RunningMount:
    path: Path
    process: BaseProcess
    log_file: Path

    def log(self) -> str:
        return self.log_file.read_text("utf-8", "replace")

    def send(self, signum: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signum)

    def wait(self) -> int | None:
        """Wait for the end of the process; its exit code, None if it does not end. After an error its log is printed,
        which pytest shows for a failed test.
        """
        self.process.join(STOP_TIMEOUT_S)
        if self.process.exitcode != 0:
            print(self.log())
        return self.process.exitcode


def _serve(
    content: bytes,
    source: Source,
    mountpoint: str,
    options: MountOptions,
    log_file: Path,
    ready: Event,
    sabotage: Callable[[], None] | None,
) -> None:
    open_log(log_file)
    if sabotage is not None:
        sabotage()
    ours, theirs = ControlChannel.pair()
    ours.send("go")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ours.send("stop"))
    Thread(target=_supervise, args=(ours, ready), daemon=True).start()
    supervisor_client = SupervisorClient(ControlChannel(theirs))
    trio.run(serve_mount, Snapshot(content, "snapshot"), source, mountpoint, options, None, supervisor_client)


def _supervise(control_channel: ControlChannel, ready: Event) -> None:
    """A supervisor without a handover, because there is no second daemon."""
    while (message := control_channel.receive_patiently(None)) is not None:
        if message.descriptor is not None:
            os.close(message.descriptor)
        if message.word == "ready":
            ready.set()


def serve_what_is_open(grace_s: float) -> None:
    """For `sabotage`: after the order to stop, open files are served for `grace_s`."""
    mount_daemon.STOP_GRACE_S = grace_s


@contextmanager
def mounted(
    dataset: PackedDataset,
    folder: Path,
    source: Source | None = None,
    options: MountOptions | None = None,
    sabotage: Callable[[], None] | None = None,
) -> Iterator[RunningMount]:
    """Mount on `folder/mount`. `source` must pickle; `sabotage` (a function of a module) is called in the process
    before it serves.
    """
    mountpoint, log_file = folder / "mount", folder / "mount.log"
    with suppress(FileExistsError):
        os.mkdir(mountpoint)  # `Path.mkdir` would look into a dead mount
    ready = forks.Event()
    process = forks.Process(
        target=_serve,
        args=(
            bytes(dataset.snapshot.content),
            source or dataset.source(),
            str(mountpoint),
            options or MountOptions(),
            log_file,
            ready,
            sabotage,
        ),
        daemon=True,
    )
    process.start()
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not ready.wait(0.05) and process.is_alive() and time.monotonic() < deadline_s:
            pass
        if not ready.is_set():
            log = log_file.read_text() if log_file.exists() else "(no log)"
            raise AssertionError(f"the mount did not start:\n{log}")
        yield RunningMount(mountpoint, process, log_file)
    finally:
        clear(mountpoint)
        process.join(STOP_TIMEOUT_S)
        if process.is_alive():
            process.kill()
            process.join()
            clear(mountpoint)
            raise AssertionError("the process of the mount did not end")
        process.close()
