"""Real Redis for tests: one server, or a cluster of six nodes, on free ports of loopback; always stopped again."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import pytest
import redis

HOST = "127.0.0.1"
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
NODE_TIMEOUT_MS = 1000
"""A node of the cluster that is silent for this long is taken to be dead by the others."""
_POLL_S = 0.02
_CREATE_OPTIONS = ("--cluster-replicas", "1", "--cluster-yes")

needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="redis-server is not installed (Debian: redis-server)"
)


@dataclass(eq=False)
class RedisProcess:
    """One redis-server, whose files lie in `folder`. It can be killed, and started again on the same port."""

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
        wait_until(self._answers, f"redis-server on port {self.port}")

    def kill(self) -> None:
        """As a power cut would: SIGKILL."""
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


def wait_until(condition: "object", what: str) -> None:
    """Wait until `condition()` holds; fail after START_TIMEOUT_S."""
    assert callable(condition)
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} is not ready after {START_TIMEOUT_S} s"
        Event().wait(_POLL_S)


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, below 55536 (a cluster uses the port 10000 above as well)."""
    with ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            probe = stack.enter_context(socket.socket())
            probe.bind((HOST, 0))
            port = probe.getsockname()[1]
            if port < 55_536:
                ports.append(port)
        return ports


@contextmanager
def running_redis(folder: Path, *options: str) -> Iterator[RedisProcess]:
    folder.mkdir(parents=True, exist_ok=True)
    process = RedisProcess(folder, free_ports(1)[0], options)
    try:
        process.start()
        yield process
    finally:
        process.kill()


@dataclass(eq=False)
class RedisCluster:
    """Three masters and a replica of each."""

    nodes: Sequence[RedisProcess]

    @property
    def hosts(self) -> str:
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    def masters(self) -> list[RedisProcess]:
        return [node for node in self.nodes if _role(node) == b"master"]

    def wait_until_whole(self) -> None:
        """Until every node says that all slots are served, and every master has its replica."""
        for node in self.nodes:
            wait_until(lambda node=node: _is_whole(node), f"the cluster, seen from port {node.port}")


@contextmanager
def running_cluster(folder: Path) -> Iterator[RedisCluster]:
    ports = free_ports(6)
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT_MS))
    nodes = []
    for port in ports:
        (folder / str(port)).mkdir(parents=True)
        nodes.append(RedisProcess(folder / str(port), port, options))
    try:
        for node in nodes:
            node.start()
        subprocess.run(
            ["redis-cli", "--cluster", "create", *(f"{HOST}:{port}" for port in ports), *_CREATE_OPTIONS],
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=START_TIMEOUT_S,
        )
        cluster = RedisCluster(nodes)
        cluster.wait_until_whole()
        yield cluster
    finally:
        for node in nodes:
            node.kill()


def _role(node: RedisProcess) -> bytes | None:
    with node.client() as client:
        try:
            role = client.execute_command("ROLE")[0]
        except redis.exceptions.ConnectionError:
            return None
        return role if isinstance(role, bytes) else str(role).encode()


def _is_whole(node: RedisProcess) -> bool:
    with node.client() as client:
        try:
            info = client.execute_command("CLUSTER INFO")
            slots = client.execute_command("CLUSTER SLOTS")
        except redis.exceptions.ConnectionError:
            return False
    state = info["cluster_state"] if isinstance(info, dict) else ""
    replicated = (
        all(len(s.get("replicas", [])) == 1 for s in slots.values()) if isinstance(slots, dict) else True
    )
    return state == "ok" and replicated
