"""Copies in Redis: a crash at any step of a rebuild leaves one whole dataset, and keys that the next one removes."""

import os
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from dieselfs.errors import Damaged, NotFound, Unavailable
from dieselfs.records import NoteChange
from dieselfs_server.metadata.redis.store import RedisMetadata
from tests.support.metadata_chunks import (
    DATASET,
    DATASET_ID,
    NOW_NS,
    Put,
    apply,
    apply_to_copy,
    chunk_id,
    table_records,
)
from tests.support.redis import RedisProcess, needs_redis, running_redis
from tests.support.redis_faults import BreakingLink, CallingLink, flipped, store_with

pytestmark = needs_redis

CONTENT = [Put(b"a", 1, size=3), Put(b"d/b", 2, size=4)]


def _dying(url: str, batches: int, is_answer_lost: bool) -> RedisMetadata:
    """A store whose connection breaks after this many batches."""
    return store_with(url, lambda link: BreakingLink(link, batches, is_answer_lost))


@pytest.mark.parametrize("is_answer_lost", [False, True])
def test_a_crash_at_any_step_leaves_one_whole_dataset(
    redis_url: str, redis_server: RedisProcess, is_answer_lost: bool
) -> None:
    prefix = redis_url.partition("prefix=")[2]
    with closing(store_with(redis_url)) as store, redis_server.client() as client:
        store.create_dataset(DATASET, DATASET_ID)
        apply(store, CONTENT, chunk_id(1))
        store.change_notes(DATASET_ID, [NoteChange("pins/x", None, b"1")])
        generation = 0
        for batches in count(1):
            with suppress(Unavailable), closing(_dying(redis_url, batches, is_answer_lost)) as dying:
                copy = dying.begin_rebuild(DATASET_ID)
                apply_to_copy(dying, copy, CONTENT, chunk_id(1))
                dying.finish_rebuild(DATASET_ID, copy, NOW_NS)
                break
            with closing(store_with(redis_url)) as other:  # a server that has not cached the old keys
                for each in (store, other):
                    record = each.dataset(DATASET)
                    assert (record.files, record.chunks, record.dataset_id) == (2, 1, DATASET_ID)
                    assert record.generation >= generation
                    assert set(table_records(each.entry_table(DATASET_ID))) == {b"a", b"d/b"}
                    assert each.notes(DATASET_ID, ["pins/x"]) == [b"1"]
                    assert each.datasets() == [record]
                generation = record.generation
                other.reserve_versions(DATASET_ID, 1, NOW_NS)
        assert batches > 10
        store.finish_rebuild(DATASET_ID, store.begin_rebuild(DATASET_ID), NOW_NS)
        names = [key.split(b"{")[1].split(b"}")[0] for key in client.scan_iter(prefix + "*")]
        assert not [name for name in names if b"." in name]  # no bucket of any copy is left


@pytest.mark.parametrize("change", ["rebuild", "drop"])
def test_nothing_is_removed_once_redis_has_forgotten_what_replaced_it(tmp_path: Path, change: str) -> None:
    with running_redis(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as process:
        url = f"redis://127.0.0.1:{process.port}/0"
        sizes: list[int] = []

        def forget() -> None:
            """Once, before the first batch that removes keys."""
            if sizes:
                process.kill()
                os.truncate(process.folder / log, sizes.pop())
                process.start()

        with closing(store_with(url, partial(CallingLink, between=forget, command=b"UNLINK"))) as store:
            store.create_dataset(DATASET, DATASET_ID)
            apply(store, CONTENT, chunk_id(1))
            copy = store.begin_rebuild(DATASET_ID) if change == "rebuild" else b""
            (log,) = process.folder.glob("appendonlydir/*.incr.aof")
            sizes.append(log.stat().st_size)
            with pytest.raises(Unavailable, match="restarted"):
                if change == "rebuild":
                    store.finish_rebuild(DATASET_ID, copy, NOW_NS)
                else:
                    store.drop_dataset(DATASET_ID)
        with closing(store_with(url)) as other:
            other.check_whole(DATASET_ID)
            assert set(table_records(other.entry_table(DATASET_ID))) == {b"a", b"d/b"}


def test_a_damaged_record_is_rebuilt(redis_url: str, redis_server: RedisProcess) -> None:
    prefix = redis_url.partition("prefix=")[2]
    with closing(store_with(redis_url)) as store, redis_server.client() as client:
        store.create_dataset(DATASET, DATASET_ID)
        apply(store, CONTENT, chunk_id(1))
        (key,) = (key for key in client.scan_iter(prefix + "*") if key.endswith(b":dataset"))
        client.hset(key, "record", flipped(client.hget(key, "record")))
        with pytest.raises(Damaged):
            store.dataset(DATASET)
        copy = store.begin_rebuild(DATASET_ID)
        apply_to_copy(store, copy, CONTENT, chunk_id(1))
        store.finish_rebuild(DATASET_ID, copy, NOW_NS)
        assert store.dataset(DATASET).files == 2


def test_a_server_with_cached_keys_finds_the_copy(redis_url: str) -> None:
    with closing(store_with(redis_url)) as store, closing(store_with(redis_url)) as other:
        store.create_dataset(DATASET, DATASET_ID)
        apply(other, CONTENT, chunk_id(1))
        for _ in range(3):
            store.finish_rebuild(DATASET_ID, store.begin_rebuild(DATASET_ID), NOW_NS)
        assert not other.has_chunk(DATASET_ID, chunk_id(1))
        other.drop_dataset(DATASET_ID)
        with pytest.raises(NotFound):
            store.dataset(DATASET)


def test_a_dataset_is_found_while_rebuilds_replace_it_twice(redis_url: str) -> None:
    """Before each of its reads, in turn: what it has read before is replaced, and removed."""
    with closing(store_with(redis_url)) as store:
        store.create_dataset(DATASET, DATASET_ID)
        for step in range(4):
            reads = count()

            def replace(reads: Iterator[int] = reads, step: int = step) -> None:
                if next(reads) == step:
                    for _ in range(2):
                        store.finish_rebuild(DATASET_ID, store.begin_rebuild(DATASET_ID), NOW_NS)

            with closing(store_with(redis_url, partial(CallingLink, between=replace))) as other:
                assert other.dataset(DATASET).dataset_id == DATASET_ID
                assert [record.name for record in other.datasets()] == [DATASET]
            assert next(reads) > step, "the search has no such read"
