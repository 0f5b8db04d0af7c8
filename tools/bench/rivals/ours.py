"""dieselfs: a server that clients reach over TLS, chunks in a store, metadata in Redis, and mounts on the clients.

This module starts processes and mounts datasets.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from bench.harness.forms import MOUNT_MEMORY_BYTES
from bench.rivals.rival import Mounted, Rival, Storing
from dieselfs.errors import MountError
from dieselfs_client.daemon import control
from dieselfs_client.supervision.status import supervision_of
from lab.job import DLCMD
from lab.network import Host, clear
from lab.server import RunningServer, start_server


class OurServer:
    """Restarts on the same port."""

    def __init__(
        self, folder: Path, storage: Host, port: int, options: Sequence[str], variables: Mapping[str, str]
    ) -> None:
        self.address = f"tcp://{storage.address}:{port}"
        self._folder, self._storage, self._variables = folder, storage, variables
        self._options = [*options, "--listen", self.address, "--advertise", self.address]
        self._options += ["--state", f"{folder}/state"]
        self._running = self._start(is_new=True)
        with storage.inside():
            self.key_file = self._running.user("bench", all_datasets="admin")

    @property
    def process(self) -> int:
        return self._running.process.pid

    def restart(self) -> None:
        self.stop()
        self._running = self._start(is_new=False)

    def stop(self) -> None:
        if self._running.process.poll() is None:
            self._running.stop()

    def _start(self, is_new: bool) -> RunningServer:
        with self._storage.inside():
            return start_server(self._folder, self._options, is_new, **self._variables)


class Dieselfs(Rival):
    """`stores`: the processes of its object store and of Redis. Each tree is a dataset."""

    def __init__(self, name: str, server: OurServer, stores: Sequence[int]) -> None:
        self.name = name
        self._server, self._stores = server, stores
        self._dlcmd = [*DLCMD, "--server", server.address, "--key-file", str(server.key_file)]

    def servers(self) -> Sequence[int]:
        return [self._server.process, *self._stores]

    def forget(self) -> None:
        self._server.restart()

    @contextmanager
    def storing(self, host: Host, folder: Path, tree: str) -> Iterator[Storing]:
        yield Storing(partial(host.run, [*self._dlcmd, "put", "-r", f"{folder}/", f"dl://{tree}"]), ())

    @contextmanager
    def mounted(self, host: Host, tree: str) -> Iterator[Mounted]:
        mountpoint = host.folder / "dieselfs"
        mountpoint.mkdir(exist_ok=True)
        options = f"memory={MOUNT_MEMORY_BYTES},log_file={host.folder}/dieselfs.log"
        try:
            host.run([*self._dlcmd, "mount", tree, mountpoint, "-o", options])
            supervision = supervision_of(str(mountpoint))
            assert supervision is not None
            yield Mounted(mountpoint, [supervision.supervisor])
        finally:
            with suppress(MountError):
                control.unmount(mountpoint)
            clear(mountpoint)


@contextmanager
def running_dieselfs(
    name: str,
    folder: Path,
    storage: Host,
    port: int,
    options: Sequence[str],
    stores: Sequence[int],
    variables: Mapping[str, str],
) -> Iterator[Dieselfs]:
    """With a server of its own until the end of the block. `options`, `variables`: of the server."""
    server = OurServer(folder, storage, port, options, variables)
    try:
        yield Dieselfs(name, server, stores)
    finally:
        server.stop()
