"""Two servers over one Redis and one folder of chunks; Redis emptied, and the dataset made anew from the chunks."""

import contextlib
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import Unavailable
from tests.support.redis import RedisProcess, needs_redis, running_redis
from tests.support.server import RunningServer, running_server

pytestmark = needs_redis


def options(folder: Path, redis: RedisProcess, name: str) -> list[str]:
    return [
        *("--metadata", f"redis://127.0.0.1:{redis.port}/0"),
        *("--store", f"posix://{folder}/chunks"),
        *("--state", f"{folder}/{name}-state"),
    ]


def opened(server: RunningServer) -> "contextlib.closing[Dataset]":
    return contextlib.closing(Dataset(server.settings(), "pets", must_exist=False))


def test_what_one_server_takes_the_other_gives_and_survives_redis(tmp_path: Path) -> None:
    files = {f"d{number % 7}/f{number}": b"%d" % number * (number % 50) for number in range(500)}
    with (
        running_redis(tmp_path / "redis") as redis,
        running_server(tmp_path / "one", options(tmp_path, redis, "one")) as one,
    ):
        with opened(one) as data:
            data.create()
            for path, content in files.items():
                data.put(path, content)
            data.flush()
            data.delete("d1/f1")
            data.put("d2/f2", b"replaced")
            data.flush()
        files["d2/f2"] = b"replaced"
        del files["d1/f1"]
        with running_server(tmp_path / "other", options(tmp_path, redis, "other")) as other:
            one.kill()
            with opened(other) as data:
                assert {path: data.get(path) for path in data.files()} == files
            with redis.client() as client:
                client.flushall()
            with opened(other) as data, pytest.raises(Unavailable, match="dlcmd rebuild dl://pets"):
                data.refresh()
            client = other.client()
            client.rebuild("pets")
            client.close()
            with opened(other) as data:
                assert {path: data.get(path) for path in data.files()} == files


def test_a_server_rebuilds_what_another_one_has_made_under_the_name(tmp_path: Path) -> None:
    with (
        running_redis(tmp_path / "redis") as redis,
        running_server(tmp_path / "one", options(tmp_path, redis, "one")) as one,
        running_server(tmp_path / "other", options(tmp_path, redis, "other")) as other,
    ):
        with opened(one) as data:
            data.create()
            data.put("f", b"of the first dataset")
        with opened(other) as data:
            data.delete_dataset()
        with opened(other) as data:
            data.create()
            data.put("f", b"of the second dataset")
        with redis.client() as client:
            client.flushall()
        with contextlib.closing(one.client()) as client:  # which has cached the ID of the first dataset
            assert client.rebuild("pets").files == 1 and client.lost_datasets() == []
        for server in (one, other):
            with opened(server) as data:
                assert data.get("f") == b"of the second dataset"
