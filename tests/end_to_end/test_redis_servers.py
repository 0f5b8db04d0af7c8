"""Two servers over one Redis and one folder of chunks: Redis is emptied, and the dataset rebuilt from the
chunks; a server that holds the turns of large reads is killed.
"""

import contextlib
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import Unavailable
from dieselfs.limits import MIB
from dieselfs.settings import Settings
from dieselfs_server.metadata.redis.store import RedisMetadata
from dieselfs_server.store.large_reads import LARGE_READS_NOTE, LOST_S, PATIENCE_S
from dieselfs_server.store.turns import Holder, decoded
from lab.namespace import wait_for
from tests.support.redis import RedisProcess, needs_redis, running_redis
from tests.support.server import RunningServer, running_server

pytestmark = needs_redis

READERS = 4
WAIT_S = 60.0
"""For what comes sooner on a machine that is not busy."""
BUSY_S = 10.0
"""What a busy machine may add to a bound of the servers."""


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


@contextlib.contextmanager
def reading(settings: Settings, files: dict[str, bytes]) -> Iterator[Callable[[], int]]:
    """Reads all files again and again in several threads; yields how often they have. At the end, the last
    ones end with right bytes.
    """
    is_over, read = threading.Event(), [0] * READERS

    def reader(place: int) -> None:
        while not is_over.is_set():
            # Another one, as each keeps what it has read.
            with contextlib.closing(Dataset(settings, "pets")) as data:
                assert {path: data.get(path) for path in files} == files
            read[place] += 1

    with ThreadPoolExecutor(READERS) as threads:
        running = [threads.submit(reader, place) for place in range(READERS)]
        try:
            yield lambda: sum(read)
        finally:
            is_over.set()
        for each in running:
            each.result(WAIT_S)


def test_the_turns_of_a_killed_server_pass_to_the_other(tmp_path: Path) -> None:
    """Of large reads: with one at a time, the server is killed that has the turn."""
    chance = random.Random(5)
    files = {f"f{number}": chance.randbytes(3 * MIB) for number in range(4)}
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(running_redis(tmp_path / "redis"))
        dying, other = (
            stack.enter_context(
                running_server(tmp_path / name, [*options(tmp_path, redis, name), "--large-reads", "1"])
            )
            for name in ("one", "other")
        )
        stack.callback(dying.kill)  # also if it is stopped
        url = f"redis://127.0.0.1:{redis.port}/0"
        metadata = stack.enter_context(contextlib.closing(RedisMetadata.open(url)))

        def holders() -> dict[str, Holder]:
            return {each.name: each for each in decoded(metadata.common_note(LARGE_READS_NOTE))}

        names: set[str] = set()

        def is_seen() -> bool:
            names.update(holders())
            return bool(names)

        with opened(dying) as data:
            data.create()
            for path, content in files.items():
                data.put(path, content)
            data.flush()
        # With a Unix socket, the server passes files instead.
        over_tcp = dying.settings(dying.user("ada", all_datasets="admin"))
        with reading(over_tcp, files):
            wait_for(is_seen, "the read is seen", WAIT_S)
        (name,) = names  # of the only server that read
        both = replace(over_tcp, server=f"{dying.tcp},{other.tcp}")
        with reading(both, files) as count:
            wait_for(lambda: len(holders()) == 2, "both servers are noted", WAIT_S)

            def is_stopped_with_the_turn() -> bool:
                dying.process.send_signal(signal.SIGSTOP)
                holders()  # what it had sent before is in Redis now
                if (own := holders().get(name)) is not None and own.turns:
                    return True
                dying.process.send_signal(signal.SIGCONT)
                return False

            wait_for(is_stopped_with_the_turn, "it is stopped with the turn", WAIT_S)
            dying.kill()
            wait_for(lambda: name not in holders(), "its note is removed", LOST_S + BUSY_S)
            wait_for(lambda: any(each.turns for each in holders().values()), "the other has the turn", BUSY_S)
            before = count()
            wait_for(lambda: count() >= before + READERS, "all readers read on", WAIT_S)
    assert LOST_S <= PATIENCE_S == 3  # which docs/guide/operations.md has
