"""Whatever is cut off while a chunk is applied, applying it again makes it as if nothing had happened."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from dieselfs.errors import NotFound, Unavailable
from dieselfs_server.metadata.redis.store import RedisMetadata
from tests.conformance.metadata_suite import check_against_model
from tests.support.metadata_chunks import DATASET, DATASET_ID, NOW_NS, Put, apply, chunk_id, delete, pack
from tests.support.redis import RedisProcess, needs_redis, running_redis
from tests.support.redis_faults import BreakingLink, CallingLink, store_with

pytestmark = needs_redis

FIRST = [
    Put(b"a", 1, size=3),
    Put(b"x/d/f", 2, size=4),
    Put(b"x/d", 3, size=1),
    Put(b"a/b/c", 4),
    delete(b"a-", 9),
]
SECOND = [
    Put(b"a", 11, size=5),
    delete(b"x/d/f", 12),
    delete(b"a/b/c", 13),
    Put(b"a-", 8, size=7),
    Put(b"x/d/\xff\n", 14, size=2),
    Put(b"a/b", 15, size=6, length=4),
    Put(b"a/b", 15, size=6, place=4, length=2),
    Put(b"x/d", 3, size=1),
]
THIRD = [Put(b"x/d/f", 21, size=9), delete(b"a", 22), delete(b"x/d/\xff\n", 23), delete(b"a/b", 24)]
CHUNKS = {
    chunk_id(number): pack(puts, chunk_id(number)) for number, puts in enumerate([FIRST, SECOND, THIRD])
}
HEADERS = {identity: header for identity, (_, header) in CHUNKS.items()}


def apply_all(store: RedisMetadata, *numbers: int, is_again: bool = False) -> None:
    for number in numbers:
        store.apply(DATASET_ID, *CHUNKS[chunk_id(number)], NOW_NS, is_again=is_again)


def cut_off(url: str, batches: int, is_answer_lost: bool) -> bool:
    """Apply the second chunk with a process that dies after so many batches; returns whether it died."""
    with closing(store_with(url, lambda client: BreakingLink(client, batches, is_answer_lost))) as dying:
        try:
            apply_all(dying, 1)
        except Unavailable:
            return True
    return False


@pytest.mark.parametrize("is_answer_lost", [False, True])
@pytest.mark.parametrize(
    "mended_by", ["the same chunk", "a rebuild", "a later chunk first", "a reader of everything"]
)
def test_a_process_killed_between_any_two_batches(
    redis_url: str, is_answer_lost: bool, mended_by: str
) -> None:
    with closing(store_with(redis_url)) as store:
        for batches in count():
            store.create_dataset(DATASET, DATASET_ID)
            apply_all(store, 0)
            has_died = cut_off(redis_url, batches, is_answer_lost)
            if mended_by == "a later chunk first":
                apply_all(store, 2, 1)
                check_against_model(store, HEADERS)
            elif mended_by == "a rebuild":  # it applies each chunk again, also what another process has begun
                apply_all(store, 1, is_again=True)
                check_against_model(store, {chunk_id(number): HEADERS[chunk_id(number)] for number in (0, 1)})
            elif mended_by == "a reader of everything":
                store.entry_table(DATASET_ID)
                done = [0, 1] if store.has_chunk(DATASET_ID, chunk_id(1)) else [0]
                check_against_model(store, {chunk_id(number): HEADERS[chunk_id(number)] for number in done})
                apply_all(store, 2, 1)
                check_against_model(store, HEADERS)
            else:
                apply_all(store, 1)
                check_against_model(store, {chunk_id(number): HEADERS[chunk_id(number)] for number in (0, 1)})
                apply_all(store, 2)
                check_against_model(store, HEADERS)
            store.drop_dataset(DATASET_ID)
            if not has_died:
                break
        assert batches >= 5, "the run proves nothing: it was never cut off"


def test_two_servers_apply_the_same_chunks_at_once(redis_url: str) -> None:
    chunks = {
        chunk_id(number): pack(
            [Put(b"d%d/f%d" % (i % 3, i), 1 + (number * 7 + i) % 40, size=i % 5) for i in range(30)],
            chunk_id(number),
        )
        for number in range(8)
    }
    with closing(store_with(redis_url)) as one, closing(store_with(redis_url)) as other:
        one.create_dataset(DATASET, DATASET_ID)
        with ThreadPoolExecutor(4) as threads:
            list(
                threads.map(
                    lambda work: work[0].apply(DATASET_ID, *work[1], NOW_NS),
                    [(store, chunk) for chunk in chunks.values() for store in (one, other)],
                )
            )
        check_against_model(one, {identity: header for identity, (_, header) in chunks.items()})


def _after(batches: int, server: RedisProcess) -> Callable[[], None]:
    """Empties the server when it is called once more than `batches` times."""
    calls = count()

    def empty() -> None:
        if next(calls) == batches:
            with server.client() as client:
                client.flushall()

    return empty


def test_emptied_between_any_two_batches(redis_server: RedisProcess, redis_url: str) -> None:
    """FLUSHALL: the apply is refused, or was done before; nothing of the old dataset shows in the new one."""
    for batches in range(8):
        empty = _after(batches, redis_server)
        with (
            closing(store_with(redis_url)) as store,
            closing(store_with(redis_url, partial(CallingLink, between=empty))) as emptied,
        ):
            store.create_dataset(DATASET, DATASET_ID)
            apply_all(store, 0)
            with suppress(NotFound):
                apply_all(emptied, 1)
            if store.datasets():
                with redis_server.client() as client:
                    client.flushall()
            with pytest.raises(NotFound):
                store.dataset(DATASET)
            with pytest.raises(NotFound):
                store.lookup(DATASET_ID, b"a")
            with pytest.raises(NotFound):
                store.entry_table(DATASET_ID)
            with pytest.raises(NotFound):
                apply_all(store, 2)
            store.create_dataset(DATASET, DATASET_ID)
            assert store.reserve_versions(DATASET_ID, 1, NOW_NS) == NOW_NS
            apply_all(store, 2, 0, 1)
            check_against_model(store, HEADERS)
            store.drop_dataset(DATASET_ID)


def test_redis_restarts_from_nothing_while_many_apply(tmp_path: Path) -> None:
    chunks = {
        chunk_id(number): pack(
            [Put(b"d%d/f" % (i % 7), number + 1, size=i) for i in range(20)], chunk_id(number)
        )
        for number in range(24)
    }
    with (
        running_redis(tmp_path / "own") as server,
        closing(store_with(f"redis://127.0.0.1:{server.port}")) as store,
    ):
        store.create_dataset(DATASET, DATASET_ID)

        def try_to_apply(number: int) -> bool:
            if number == 10:
                server.kill()
                server.start()
            try:
                store.apply(DATASET_ID, *chunks[chunk_id(number)], NOW_NS)
            except (NotFound, Unavailable):
                return False
            return True

        with ThreadPoolExecutor(3) as threads:
            assert not all(threads.map(try_to_apply, range(24)))
        with pytest.raises(NotFound):
            store.dataset(DATASET)
        store.create_dataset(DATASET, DATASET_ID, generation=7)
        for preamble, header in chunks.values():
            store.apply(DATASET_ID, preamble, header, NOW_NS, is_again=True)
        assert store.dataset(DATASET).generation == 7 + 24
        store.drop_dataset(DATASET_ID)
        store.create_dataset(DATASET, DATASET_ID)
        for preamble, header in reversed(chunks.values()):
            store.apply(DATASET_ID, preamble, header, NOW_NS)
        check_against_model(store, {identity: header for identity, (_, header) in chunks.items()})


def test_what_was_lost_is_put_back_and_not_counted_twice(redis_server: RedisProcess, redis_url: str) -> None:
    prefix = redis_url.rpartition("=")[2].encode()
    with closing(store_with(redis_url)) as store, redis_server.client() as client:
        store.create_dataset(DATASET, DATASET_ID)
        apply_all(store, 0, 1, 2)
        for key in client.keys(prefix + b"*.*"):  # all buckets: what other nodes of a cluster would hold
            client.delete(key)
        apply_all(store, 2, 1, 0, is_again=True)
        check_against_model(store, HEADERS)
        (live,) = client.keys(prefix + b"*.*live:*")[:1]
        client.delete(live)
        apply_all(store, 0, 1, 2, is_again=True)
        check_against_model(store, HEADERS)


def test_an_applied_chunk_that_is_forgotten_can_come_again(redis_url: str) -> None:
    with closing(store_with(redis_url)) as store:
        store.create_dataset(DATASET, DATASET_ID)
        apply(store, [Put(b"a", 1, size=3), delete(b"x/d", 1)], chunk_id(7))
        apply(store, [Put(b"a", 2, size=4), Put(b"x/d", 2)], chunk_id(8))
        store.forget_chunk(DATASET_ID, chunk_id(7))
        apply(store, [Put(b"a", 1, size=3), delete(b"x/d", 1)], chunk_id(7))
        assert store.dataset(DATASET).total_bytes == 4
        assert [chunk.deleted_entries for chunk in store.chunks(DATASET_ID)] == [2, 0]
