"""The bytes of all chunks in Redis: after a server that does not know the number, and after damage."""

from contextlib import closing

from dieselfs_server.metadata.redis.keys import STORED
from tests.support.metadata_chunks import DATASET, DATASET_ID, NOW_NS, Put, chunk_id, pack
from tests.support.redis import RedisProcess, needs_redis
from tests.support.redis_faults import store_with

CHUNKS = [pack([Put(b"a", number, size=number)], chunk_id(number)) for number in range(1, 5)]


@needs_redis
def test_a_number_that_is_out_of_date_or_damaged_is_made_again(
    redis_url: str, redis_server: RedisProcess
) -> None:
    prefix = redis_url.partition("prefix=")[2]
    with closing(store_with(redis_url)) as store, redis_server.client() as client:
        store.create_dataset(DATASET, DATASET_ID)

        def check(chunks: int) -> None:
            (found,) = store.usage([DATASET])
            assert found is not None
            assert found.stored_bytes == sum(preamble.object_length for preamble, _ in CHUNKS[:chunks])

        store.apply(DATASET_ID, *CHUNKS[0], NOW_NS)
        (key,) = client.scan_iter(prefix + "*:dataset")
        old = client.hget(key, STORED)
        store.apply(DATASET_ID, *CHUNKS[1], NOW_NS)
        client.hset(key, STORED, old)  # as if a server of before had applied the second chunk
        store.apply(DATASET_ID, *CHUNKS[2], NOW_NS)
        assert client.hget(key, STORED) == old
        check(3)
        assert client.hget(key, STORED) != old
        client.hset(key, STORED, b"damaged by somebody")
        store.apply(DATASET_ID, *CHUNKS[3], NOW_NS)
        check(4)
        client.hdel(key, STORED)
        check(4)
