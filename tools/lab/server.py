"""Server processes, and uploads to them. This module starts processes."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dieselfs.dataset import Dataset
from dieselfs.limits import CHUNK_TARGET_BYTES
from dieselfs.rpc.client import ServerClient
from dieselfs.settings import Settings
from dieselfs.transfer.upload import TreeUpload, walk_source
from lab.ports import free_port

MODULE = "dieselfs_server.main"
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0

popen: "Callable[..., subprocess.Popen[Any]]" = subprocess.Popen
"""Starts servers and the programs of hosts; tests have one that saves the imports."""


@dataclass(frozen=True)
class RunningServer:
    """`folder` holds its chunks, metadata and log; `tcp` and `unix` are the addresses it listens on."""

    process: subprocess.Popen[bytes]
    folder: Path
    tcp: str
    unix: str

    def settings(self, key_file: Path | None = None, tls_ca: Path | None = None) -> Settings:
        """Of a client: with a key over TCP, without one over the Unix socket."""
        server = self.tcp if key_file or tls_ca else self.unix
        key, authority = (str(file) if file else None for file in (key_file, tls_ca))
        homes = self.folder / "no-home", self.folder / "client-cache"
        return Settings(*homes, server, key_file=key, tls_ca=authority)

    def client(self, key_file: Path | None = None) -> ServerClient:
        return ServerClient(self.settings(key_file))

    def user(self, name: str, **grants: str) -> Path:
        """Make a user with these rights (`data="write"`; `all_datasets="admin"` for `*`); returns the key file."""
        client = self.client()
        path = self.folder / f"{name}.key"
        path.write_text(client.add_key(name).text())
        path.chmod(0o600)
        for dataset, right in grants.items():
            client.grant(name, "*" if dataset == "all_datasets" else dataset, right)
        client.close()
        return path

    def log(self) -> str:
        return (self.folder / "server.log").read_text("utf-8", "replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)


def start_server(
    folder: Path, options: Sequence[str] = (), is_new: bool = True, module: str = MODULE, **variables: str
) -> RunningServer:
    """Start a server over `folder` and wait until it listens. With `is_new`, its store may be without a marker.
    `module`: the program, which takes the options of `dieselfs-server`. It has one process, unless `options` say
    otherwise. `variables`: of its environment, besides those of this process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tcp, unix = f"tcp://127.0.0.1:{free_port()}", f"unix:{folder}/server.sock"
    ready, report = os.pipe()
    command = [
        *(sys.executable, "-m", module),
        *("--listen", tcp, "--listen", unix),
        *("--store", f"posix://{folder}/chunks", "--metadata", f"sqlite://{folder}/metadata.db"),
        *("--ready-fd", str(report), *(("--init",) if is_new else ()), "--workers", "1", *options),
    ]
    with open(folder / "server.log", "ab") as log:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
        process = popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(report,), env=environment
        )
    os.close(report)
    poll = select.poll()  # select.select fails with descriptors above 1,023
    poll.register(ready, select.POLLIN)
    with open(ready) as answers:
        answer = answers.readline() if poll.poll(START_TIMEOUT_S * 1000) else "no answer"
    server = RunningServer(process, folder, tcp, unix)
    if answer.strip() != "ready":
        server.kill()
        raise AssertionError(f"the server did not start: {answer}\n{server.log()}")
    return server


def upload(dataset: Dataset, folder: Path, chunk_bytes: int = CHUNK_TARGET_BYTES) -> int:
    """Create the dataset and store a folder in it, as `dlcmd put -r` does. Returns the bytes stored."""
    writing = TreeUpload(dataset.client, dataset.create(), None, chunk_bytes=chunk_bytes)
    report = writing.run(lambda failed: walk_source(os.fsencode(folder), b"", failed))
    assert not report.failures, report.failures
    return report.done_bytes


@contextmanager
def running_server(
    folder: Path, options: Sequence[str] = (), module: str = MODULE
) -> Iterator[RunningServer]:
    """A server until the end of the block."""
    server = start_server(folder, options, module=module)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()


@contextmanager
def running_servers(
    folder: Path, names: Iterable[str], options: Sequence[str] = ()
) -> Iterator[list[RunningServer]]:
    """Servers over the chunks and the metadata of the first, until the end of the block."""
    with ExitStack() as stack:
        servers: list[RunningServer] = []
        for name in names:
            first = servers[0].folder if servers else folder / name
            stores = ("--store", f"posix://{first}/chunks", "--metadata", f"sqlite://{first}/metadata.db")
            own = ("--state", str(folder / name / "state"))
            servers.append(stack.enter_context(running_server(folder / name, [*stores, *own, *options])))
        yield servers
