"""Real Redis for tests: one server, or a cluster of six nodes, on free ports of loopback; always stopped at the end."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import redis

from lab.namespace import wait_for
from lab.ports import HOST, free_ports
from lab.redis_process import START_TIMEOUT_S, RedisProcess, running_redis

__all__ = [
    "HOST",
    "RedisCluster",
    "RedisProcess",
    "free_ports",
    "needs_redis",
    "running_cluster",
    "running_redis",
]

NODE_TIMEOUT_MS = 1000
"""A node of the cluster that is silent for this time counts as dead."""
_CREATE_OPTIONS = ("--cluster-replicas", "1", "--cluster-yes")

needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="redis-server is not installed (Debian: redis-server)"
)


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
        """Wait until every node reports that all slots are served, and every master has its replica."""
        for node in self.nodes:
            wait_for(partial(_is_whole, node), f"port {node.port} sees the whole cluster", START_TIMEOUT_S)


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
