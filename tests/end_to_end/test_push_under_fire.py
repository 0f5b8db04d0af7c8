"""Files are pushed into the page cache, while all that can go wrong goes wrong: no reader ever sees an error, or
another byte than was stored.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest

from dieselfs.dataset import Dataset
from dieselfs.limits import MIB
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.mount_table import mount_at
from dieselfs_client.mount.points.mounting import unmount
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.supervision.status import supervision_of
from tests.support import plan_reader
from tests.support.server import RunningServer, running_server

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")

FILES = 2000
LARGE_FILES = 3
READERS = 2
FIRE_S = 6.0
FIRES_MIN = 10
STOPPED_S = 0.3
SERVER_STOPPED_S = 1.0
MEMORIES = {"all is kept": 256 * MIB, "most streams": 40 * MIB}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        with Dataset(server.settings(), "fire", must_exist=False) as data:
            for path in paths():
                data.put(path, plan_reader.content_of(path))
        yield server


def paths() -> list[str]:
    small = [f"{number % 7}/{number}" for number in range(FILES)]
    return [*small, *(f"large-{number}" for number in range(LARGE_FILES))]


class Fire:
    """What happens to a mount and its server, at random but from a seed."""

    def __init__(self, mountpoint: Path, server: RunningServer, seed: int) -> None:
        self._mountpoint = mountpoint
        self._server = server.process.pid
        self._choice = random.Random(seed)
        self.happened: list[str] = []
        self._deck: list[Callable[[], None]] = []
        self._acts: list[Callable[[], None]] = [self.kill, self.stop, self.stop_server, self.drop_some]
        if os.access("/proc/sys/vm/drop_caches", os.W_OK):
            self._acts.append(self.drop_all)

    def happen(self) -> None:
        if not self._deck:
            self._deck = self._choice.sample(self._acts, len(self._acts))
        act = self._deck.pop()
        self.happened.append(act.__name__)
        act()

    def _daemon(self) -> int:
        found = supervision_of(str(self._mountpoint))
        assert found is not None, "the supervisor is gone"
        return found.daemon

    def kill(self) -> None:
        if daemon := self._daemon():
            with suppress(ProcessLookupError):
                os.kill(daemon, signal.SIGKILL)

    def stop(self) -> None:
        if daemon := self._daemon():
            self._pause(daemon, STOPPED_S)

    def stop_server(self) -> None:
        self._pause(self._server, SERVER_STOPPED_S)

    @staticmethod
    def _pause(process: int, pause_s: float) -> None:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGSTOP)
            try:
                Event().wait(pause_s)  # so long it lasts; nothing is hoped for
            finally:
                os.kill(process, signal.SIGCONT)

    def drop_some(self) -> None:
        """Pages of some files, as memory pressure takes them."""
        for path in self._choice.sample(paths(), 200):
            with suppress(OSError):
                descriptor = os.open(self._mountpoint / path, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)

    def drop_all(self) -> None:
        """All pages, names and inodes that are not in use."""
        Path("/proc/sys/vm/drop_caches").write_text("3")


@pytest.mark.parametrize("memory", MEMORIES)
def test_every_byte_is_right_whatever_happens(server: RunningServer, tmp_path: Path, memory: str) -> None:
    mountpoint, stop = tmp_path / "mount", tmp_path / "stop"
    mountpoint.mkdir()
    options = MountOptions(
        server=server.unix, memory_bytes=MEMORIES[memory], log_file=str(tmp_path / "mount.log")
    )
    readers = []
    try:
        control.mount("fire", mountpoint, options)
        command = [sys.executable, plan_reader.__file__, str(mountpoint), str(stop)]
        readers = [
            subprocess.Popen([*command, str(rank), str(READERS), "1"], stdout=subprocess.PIPE, text=True)
            for rank in range(READERS)
        ]
        fire = Fire(mountpoint, server, seed=len(memory))
        until_s = time.monotonic() + FIRE_S
        while time.monotonic() < until_s or len(fire.happened) < FIRES_MIN:
            fire.happen()
            time.sleep(0.1)
        stop.touch()
        results = [json.loads(reader.communicate(timeout=90)[0]) for reader in readers]
        stats = json.loads((mountpoint / ".dieselfs/stats").read_text())
        assert [result["failures"] for result in results] == [[]] * READERS, fire.happened
        assert all(result["files"] >= plan_reader.FILES_MIN for result in results), results
        allotted, used = stats["memory"]["allotted_bytes"], stats["memory"]["used_bytes"]
        assert used["pinned"] <= allotted["pinned"] and used["window"] <= allotted["window"] + 4 * MIB
        control.unmount(mountpoint)
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()
            assert reader.stdout is not None
            reader.stdout.close()
        while mount_at(str(mountpoint)) is not None:
            unmount(str(mountpoint), lazily=True)
