"""The limit of large reads over several servers with one Redis: reads together, a dead server, a Redis that is away."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest

from dieselfs.errors import Unavailable
from dieselfs.records import NoteChange
from dieselfs_server.metadata.redis.store import RedisMetadata
from dieselfs_server.store import large_reads
from dieselfs_server.store.large_reads import LOST_S, SLICE_S, LargeReads, SharedTurns
from dieselfs_server.store.opening import file_system_of, is_one_disk
from tests.support.redis import running_redis

NOTE = "reads"
TIMEOUT_S = 20.0


class CommonNote:
    """In memory, instead of the metadata store."""

    def __init__(self) -> None:
        self.value: bytes | None = None
        self.is_away = False

    def read(self) -> bytes | None:
        if self.is_away:
            raise Unavailable("away")
        return self.value

    def swap(self, expected: bytes | None, value: bytes) -> bool:
        if self.is_away:
            raise Unavailable("away")
        was_there = self.value == expected
        self.value = value if was_there else self.value
        return was_there


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def turns(note: CommonNote, name: str, turns_max: int, clock: Clock) -> SharedTurns:
    return SharedTurns(note.read, note.swap, name, turns_max, clock)


def test_a_server_that_died_loses_its_turns_and_others_do_not() -> None:
    note, clock = CommonNote(), Clock()
    dead, living, waiting = (turns(note, name, 2, clock) for name in "abc")
    assert (dead.ask(0, 1), living.ask(0, 1), waiting.ask(0, 1)) == (1, 1, 0)
    while clock.now_s < 100 + LOST_S - 0.2:
        clock.now_s += 0.1
        assert living.ask(1, 0) == (clock.now_s - 100 < SLICE_S) and waiting.ask(0, 1) == 0
    clock.now_s += 0.3
    assert waiting.ask(0, 1) == 1
    assert living.ask(1, 0) == 1  # no other waits now


def test_where_the_note_is_away_each_server_has_its_own_limit() -> None:
    note = CommonNote()
    note.is_away = True
    assert turns(note, "a", 3, Clock()).ask(0, 1) == 3


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[list[RedisMetadata]]:
    """The metadata of two servers."""
    with running_redis(tmp_path) as redis, ExitStack() as opened:
        url = f"redis://127.0.0.1:{redis.port}/0"
        yield [opened.enter_context(closing(RedisMetadata.open(url))) for _ in range(2)]


def test_reads_of_two_servers_are_limited_together(stores: list[RedisMetadata]) -> None:
    limits = [LargeReads(8) for _ in stores]
    for number, (metadata, limit) in enumerate(zip(stores, limits, strict=True)):

        def swap(expected: bytes | None, value: bytes, metadata: RedisMetadata = metadata) -> bool:
            return metadata.change_common_note(NoteChange(NOTE, expected, value))

        limit.share(SharedTurns(partial(metadata.common_note, NOTE), swap, str(number), 3))
    lock, inside, most = threading.Lock(), 0, 0
    pause = threading.Event()

    def read(limit: LargeReads) -> None:
        nonlocal inside, most
        assert limit.acquire(timeout=TIMEOUT_S)
        with lock:
            inside += 1
            most = max(most, inside)
        pause.wait(0.01)
        with lock:
            inside -= 1
        limit.release()

    with ThreadPoolExecutor(16) as threads:
        for _ in threads.map(read, limits * 60):
            pass
    assert most == 3


def test_a_read_that_waits_for_too_long_begins_within_the_limit_of_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(large_reads, "PATIENCE_S", 0.05)
    note, clock = CommonNote(), Clock()
    assert turns(note, "other", 1, clock).ask(0, 1) == 1
    limit = LargeReads(1)
    limit.share(turns(note, "own", 1, clock))
    assert limit.acquire(timeout=TIMEOUT_S)
    assert not limit.acquire(timeout=0.1)
    limit.release()
    assert limit.acquire(timeout=TIMEOUT_S)


def test_a_folder_on_a_local_disk_is_one_disk_and_a_bucket_is_not(tmp_path: Path) -> None:
    assert file_system_of("/proc") == "proc"
    assert is_one_disk(f"posix://{tmp_path}")
    assert is_one_disk(f"tiered:fast=memory:,slow=posix://{tmp_path},size=1GiB")
    assert not is_one_disk("s3://bucket") and not is_one_disk("rados://pool") and not is_one_disk("memory:")


def test_a_renewal_that_fails_is_begun_again_by_the_next_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_reads, "PATIENCE_S", 0.05)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    own = turns(CommonNote(), "own", 1, Clock())
    limit, ask = LargeReads(1), own.ask
    failed: list[bool] = []

    def failing(reads: int, waiting: int) -> int:
        if not failed:
            failed.append(True)
            raise ZeroDivisionError
        return ask(reads, waiting)

    monkeypatch.setattr(own, "ask", failing)
    limit.share(own)
    assert limit.acquire(timeout=TIMEOUT_S)
    limit.release()
    monkeypatch.setattr(large_reads, "PATIENCE_S", TIMEOUT_S)
    began_s = time.monotonic()
    assert limit.acquire(timeout=TIMEOUT_S) and time.monotonic() - began_s < TIMEOUT_S / 2


def test_reads_do_not_wait_for_a_note_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    own, silence = turns(CommonNote(), "own", 2, Clock()), threading.Event()
    ask = own.ask

    def silent(reads: int, waiting: int) -> int:
        silence.wait(TIMEOUT_S)
        return ask(reads, waiting)

    monkeypatch.setattr(own, "ask", silent)
    limit = LargeReads(2)
    limit.share(own)
    began_s = time.monotonic()
    for _ in range(20):
        assert limit.acquire(timeout=TIMEOUT_S)
        limit.release()
    assert limit.acquire(timeout=TIMEOUT_S) and limit.acquire(timeout=TIMEOUT_S)
    assert time.monotonic() - began_s < large_reads.PATIENCE_S
    assert not limit.acquire(timeout=0.1)
    silence.set()
