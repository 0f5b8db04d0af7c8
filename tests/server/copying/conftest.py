"""Metadata stores for tests of copies: SQLite, and one Redis for all of them."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.metadata.redis.store import RedisMetadata
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from tests.support.redis import needs_redis, running_redis


@pytest.fixture(scope="session")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server.port


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=needs_redis)])
def metadata(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MetadataStore]:
    if request.param == "sqlite":
        store: MetadataStore = SqliteMetadata(":memory:")
    else:
        port = request.getfixturevalue("redis_port")
        store = RedisMetadata.open(f"redis://127.0.0.1:{port}/0?prefix={tmp_path.name}:")
    with closing(store):
        yield store
