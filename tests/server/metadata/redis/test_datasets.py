"""The list of datasets: taken once among many servers, and whatever a crash leaves of a drop is finished."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from itertools import count

import pytest

from dieselfs.errors import AlreadyExists, NotFound, Unavailable
from tests.conformance.metadata_suite import check_against_model
from tests.support.metadata_chunks import DATASET, DATASET_ID, NOW_NS, Put, apply, chunk_id, pack
from tests.support.redis import RedisProcess, needs_redis
from tests.support.redis_faults import BreakingLink, store_with

pytestmark = needs_redis


def test_of_many_servers_one_creates(redis_url: str) -> None:
    def create(number: int) -> bool:
        with closing(store_with(redis_url)) as store:
            try:
                store.create_dataset(DATASET if number % 2 else f"d{number}", DATASET_ID)
            except AlreadyExists:
                return False
            return True

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(create, range(12))) == 1


def test_another_server_drops_and_creates_anew(redis_url: str) -> None:
    """What this server remembers of the dataset is out of date."""
    with closing(store_with(redis_url)) as one, closing(store_with(redis_url)) as other:
        one.create_dataset(DATASET, DATASET_ID)
        apply(one, [Put(b"a", 1)], chunk_id(1))
        assert other.lookup(DATASET_ID, b"a") is not None
        one.drop_dataset(DATASET_ID)
        with pytest.raises(NotFound):
            other.lookup(DATASET_ID, b"a")
        one.create_dataset(DATASET, DATASET_ID)
        assert other.lookup(DATASET_ID, b"a") is None
        apply(other, [Put(b"b", 1)], chunk_id(2))
        check_against_model(one, {chunk_id(2): pack([Put(b"b", 1)], chunk_id(2))[1]})


@pytest.mark.parametrize("is_answer_lost", [False, True])
def test_a_server_killed_between_any_two_batches_of_a_drop(redis_url: str, is_answer_lost: bool) -> None:
    preamble, header = pack([Put(b"b/c", 1, size=2)], chunk_id(2))
    with closing(store_with(redis_url)) as store:
        for batches in count():
            store.create_dataset(DATASET, DATASET_ID)
            apply(store, [Put(b"a", 1), Put(b"x/y/z", 1, size=3)], chunk_id(1))
            with closing(
                store_with(redis_url, partial(BreakingLink, batches=batches, is_answer_lost=is_answer_lost))
            ) as dying:
                has_died = False
                try:
                    dying.drop_dataset(DATASET_ID)
                except Unavailable:
                    has_died = True
            is_there = bool(store.datasets())
            if is_there:
                assert store.lookup(DATASET_ID, b"a") is not None
                store.drop_dataset(DATASET_ID)
            with pytest.raises(NotFound):
                store.lookup(DATASET_ID, b"a")
            store.create_dataset(DATASET, DATASET_ID)
            store.apply(DATASET_ID, preamble, header, NOW_NS)
            check_against_model(store, {chunk_id(2): header})
            store.drop_dataset(DATASET_ID)
            if not has_died:
                break
        assert batches >= 5, "the run proves nothing: it was never cut off"


@pytest.mark.parametrize("is_answer_lost", [False, True])
def test_a_server_killed_between_any_two_batches_of_a_creation(redis_url: str, is_answer_lost: bool) -> None:
    with closing(store_with(redis_url)) as store:
        for batches in range(5):
            with (
                closing(
                    store_with(
                        redis_url, partial(BreakingLink, batches=batches, is_answer_lost=is_answer_lost)
                    )
                ) as dying,
                suppress(Unavailable),
            ):
                dying.create_dataset(DATASET, DATASET_ID)
            if not store.datasets():
                store.create_dataset(DATASET, DATASET_ID)
            check_against_model(store, {})
            store.drop_dataset(DATASET_ID)


def test_a_dropped_dataset_leaves_no_key(redis_server: RedisProcess, redis_url: str) -> None:
    prefix = redis_url.rpartition("=")[2].encode()
    with closing(store_with(redis_url)) as store, redis_server.client() as client:
        store.create_dataset(DATASET, DATASET_ID)
        apply(store, [Put(b"a/b", 1, size=3), Put(b"d", 3, size=4, length=2)], chunk_id(1))
        assert len(client.keys(prefix + b"*")) > 8
        store.drop_dataset(DATASET_ID)
        assert client.keys(prefix + b"*") == [prefix + b"{datasets2}"]
