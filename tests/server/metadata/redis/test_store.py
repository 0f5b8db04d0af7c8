"""Redis keeps the contract of metadata stores, as one server and as a cluster."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from dieselfs_server.metadata.redis.store import RedisMetadata
from tests.conformance.metadata_suite import MetadataSuite
from tests.support.redis import RedisCluster, RedisProcess, needs_redis, running_cluster, running_redis


def prefix_of(folder: Path) -> str:
    """Stores of different folders share a Redis, and do not see each other."""
    return "test." + sha256(str(folder).encode()).hexdigest()[:16] + ":"


@needs_redis
class TestRedis(MetadataSuite):
    server: RedisProcess

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _running(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with running_redis(tmp_path_factory.mktemp("redis")) as cls.server:
            yield

    def make_store(self, folder: Path) -> RedisMetadata:
        return RedisMetadata.open(f"redis://127.0.0.1:{self.server.port}/0?prefix={prefix_of(folder)}")


@needs_redis
class TestRedisCluster(MetadataSuite):
    cluster: RedisCluster

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _running(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with running_cluster(tmp_path_factory.mktemp("cluster")) as cls.cluster:
            yield

    def make_store(self, folder: Path) -> RedisMetadata:
        return RedisMetadata.open(f"redis+cluster://{self.cluster.hosts}?prefix={prefix_of(folder)}")
