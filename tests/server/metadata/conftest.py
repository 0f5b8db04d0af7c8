"""A Redis that the tests of one run share; each test has a prefix of its own."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.redis import RedisProcess, running_redis


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisProcess, tmp_path: Path) -> str:
    prefix = "test." + sha256(str(tmp_path).encode()).hexdigest()[:16] + ":"
    return f"redis://127.0.0.1:{redis_server.port}/0?prefix={prefix}"
