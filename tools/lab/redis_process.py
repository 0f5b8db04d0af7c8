"""Redis processes, on a free port of loopback or of a host. This module starts processes."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dieselfs.process.launch import ProcessHandle
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

    @property
    def pid(self) -> int:
        """While it runs."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            ProcessHandle(self._process.pid).end(STOP_TIMEOUT_S)
        self.kill()

    def client(self) -> "redis.Redis":
        return redis.Redis(HOST, self.port)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "redis.log").read_text()
        once = Retry(NoBackoff(), 0)  # else a server that wants a password is asked for 4 s
        with redis.Redis(HOST, self.port, retry=once) as client:
            try:
                return bool(client.ping())
            except redis.exceptions.AuthenticationError:
                return True
            except (redis.exceptions.ConnectionError, redis.exceptions.BusyLoadingError):
                return False


@contextmanager
def running_redis(folder: Path, *options: str) -> Iterator[RedisProcess]:
    folder.mkdir(parents=True, exist_ok=True)
    process = RedisProcess(folder, free_port(), options)
    try:
        process.start()
        yield process
    finally:
        process.kill()
