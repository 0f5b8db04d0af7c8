"""Redis processes, on a free port of loopback or of a host. This module starts processes."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redis

from lab.namespace import wait_for
from lab.ports import HOST, free_port

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0


@dataclass(eq=False)
class RedisProcess:
    """A redis-server with its files in `folder`, which can be restarted on the same port."""

    folder: Path
    port: int
    options: Sequence[str] = ()
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", HOST, "--dir", str(self.folder)]
        with (self.folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--save", "", "--daemonize", "no", *self.options], stdout=log, stderr=log
            )
        wait_for(self._answers, f"redis-server listens on port {self.port}", START_TIMEOUT_S)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def client(self) -> "redis.Redis":
        return redis.Redis(HOST, self.port)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "redis.log").read_text()
        with self.client() as client:
            try:
                return bool(client.ping())
            except redis.exceptions.AuthenticationError:
                return True
            except (redis.exceptions.ConnectionError, redis.exceptions.BusyLoadingError):
                return False

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, number)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None


@contextmanager
def running_redis(folder: Path, *options: str) -> Iterator[RedisProcess]:
    folder.mkdir(parents=True, exist_ok=True)
    process = RedisProcess(folder, free_port(), options)
    try:
        process.start()
        yield process
    finally:
        process.kill()
