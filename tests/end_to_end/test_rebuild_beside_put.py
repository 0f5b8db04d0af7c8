"""Uploads that run while metadata is rebuilt again and again: writers do not notice, and nothing is missing."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from lab.server import RunningServer
from tests.end_to_end.test_redis_servers import options
from tests.support.redis import needs_redis, running_redis
from tests.support.server import running_server

WRITERS = 3
FILES = 40
JOIN_S = 300.0


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=needs_redis)])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningServer]:
    with contextlib.ExitStack() as stack:
        words: list[str] = []
        if request.param == "redis":
            redis = stack.enter_context(running_redis(tmp_path / "redis"))
            words = list(options(tmp_path, redis, "one"))
        yield stack.enter_context(running_server(tmp_path / "server", words))


def test_writers_do_not_notice_a_rebuild(server: RunningServer) -> None:
    contents = {f"w{writer}/{n}": os.urandom(2000) for writer in range(WRITERS) for n in range(FILES)}
    failures: list[BaseException] = []
    with contextlib.closing(Dataset(server.settings(), "data", must_exist=False)) as data:
        data.put("first", b"1")
        data.flush()

        def write(writer: int) -> None:
            try:
                with contextlib.closing(Dataset(server.settings(), "data", must_exist=False)) as own:
                    for n in range(FILES):
                        own.put(f"w{writer}/{n}", contents[f"w{writer}/{n}"])
                        own.flush()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(WRITERS)]
        for thread in threads:
            thread.start()
        rebuilds = 0
        while any(thread.is_alive() for thread in threads):
            data.client.rebuild("data")
            rebuilds += 1
        for thread in threads:
            thread.join(JOIN_S)
        assert failures == [] and rebuilds > 1
        data.refresh()
        assert sorted(map(os.fspath, data.files())) == sorted([*contents, "first"])
        assert all(data.get(path) == content for path, content in contents.items())
        assert data.client.fsck("data", is_deep=True, is_repair=False).problem_count == 0
