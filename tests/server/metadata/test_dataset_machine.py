"""The whole life of a dataset against a plain dict, on each metadata store."""

from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.metadata.redis.store import RedisMetadata
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from tests.conformance.dataset_machine import MACHINE_SETTINGS, DatasetMachine
from tests.support.redis import RedisProcess, needs_redis, running_redis

_NUMBERS = count()


class SqliteMachine(DatasetMachine):
    def make_metadata(self) -> MetadataStore:
        return SqliteMetadata(":memory:")


def test_in_sqlite() -> None:
    run_state_machine_as_test(SqliteMachine, settings=MACHINE_SETTINGS)


@pytest.fixture
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@needs_redis
def test_in_redis(redis_server: RedisProcess) -> None:
    class RedisMachine(DatasetMachine):
        def make_metadata(self) -> MetadataStore:
            """Each run has a prefix of its own in one Redis."""
            url = f"redis://127.0.0.1:{redis_server.port}/0?prefix=machine{next(_NUMBERS)}:"
            return RedisMetadata.open(url)

    fewer = settings(MACHINE_SETTINGS, max_examples=6, stateful_step_count=15)
    run_state_machine_as_test(RedisMachine, settings=fewer)
