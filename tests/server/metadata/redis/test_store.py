"""Redis keeps the contract of metadata stores, as one server and as a cluster; damaged, lost and many notes."""

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from dieselfs.errors import Damaged, Unavailable
from dieselfs.records import NoteChange
from dieselfs_server.metadata.redis import store as redis_store
from dieselfs_server.metadata.redis.store import RedisMetadata
from tests.conformance.metadata_suite import MetadataSuite
from tests.support.metadata_chunks import DATASET, DATASET_ID, NOW_NS
from tests.support.redis import RedisCluster, RedisProcess, needs_redis, running_cluster, running_redis
from tests.support.redis_faults import BreakingLink, CallingLink, store_with


def prefix_of(folder: Path) -> str:
    """Stores of different folders share a Redis, and do not see each other."""
    return "test." + sha256(str(folder).encode()).hexdigest()[:16] + ":"


@needs_redis
class TestRedis(MetadataSuite):
    server: RedisProcess

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _running(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with running_redis(tmp_path_factory.mktemp("redis")) as cls.server:
            yield

    def make_store(self, folder: Path) -> RedisMetadata:
        return RedisMetadata.open(f"redis://127.0.0.1:{self.server.port}/0?prefix={prefix_of(folder)}")


@needs_redis
class TestRedisCluster(MetadataSuite):
    cluster: RedisCluster

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _running(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with running_cluster(tmp_path_factory.mktemp("cluster")) as cls.cluster:
            yield

    def make_store(self, folder: Path) -> RedisMetadata:
        return RedisMetadata.open(f"redis+cluster://{self.cluster.hosts}?prefix={prefix_of(folder)}")


@needs_redis
def test_notes_that_change_while_a_copy_is_put_in_place_are_the_same_there(redis_url: str) -> None:
    """All of one change, as the version of a list and its members: between any two calls of the rebuild."""
    with closing(store_with(redis_url)) as other:
        other.create_dataset(DATASET, DATASET_ID)
        for place in range(60):
            before = other.notes_below(DATASET_ID, "")
            count = int(before.get("head", b"0"))
            present = [NoteChange("head", before.get("head"), b"%d" % (count + 1))]
            present.append(NoteChange(f"member{count}", None, b"here"))
            if count:
                present.append(NoteChange(f"member{count - 1}", b"here", None))
            calls = iter(range(60))

            def between(
                place: int = place, calls: Iterator[int] = calls, present: list[NoteChange] = present
            ) -> None:
                if next(calls, 0) == place:
                    assert other.change_notes(DATASET_ID, present)

            with closing(store_with(redis_url, lambda client: CallingLink(client, between))) as store:
                copy_id = store.begin_rebuild(DATASET_ID)
                store.finish_rebuild(DATASET_ID, copy_id, NOW_NS)
            is_over = next(calls, 60) <= place
            after = other.notes_below(DATASET_ID, "")
            if is_over:
                assert place > 10 and after == before
                return
            assert after == {"head": b"%d" % (count + 1), f"member{count}": b"here"}
    raise AssertionError("a rebuild has more calls than expected")


@needs_redis
def test_an_altered_note_is_damaged(redis_url: str, redis_server: RedisProcess) -> None:
    with closing(store_with(redis_url)) as store, redis_server.client() as client:
        store.create_dataset(DATASET, DATASET_ID)
        assert store.change_notes(DATASET_ID, [NoteChange("a/b", None, b"value")])
        (key,) = client.scan_iter(redis_url.partition("prefix=")[2] + "*:notes")
        (member,) = client.zrange(key, 0, -1)
        client.zrem(key, member)
        client.zadd(key, {member.replace(b"value", b"other"): 0})
        for read in (lambda: store.notes(DATASET_ID, ["a/b"]), lambda: store.notes_below(DATASET_ID, "a/")):
            with pytest.raises(Damaged, match="a/b"):
                read()


@needs_redis
def test_many_notes_come_in_several_steps(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_store, "NOTES_AT_ONCE_MAX", 3)
    notes = {f"a/{number}": b"%d" % number for number in range(10)}
    with closing(store_with(redis_url)) as store:
        store.create_dataset(DATASET, DATASET_ID)
        for count in (2, 3, 4, 6, 10):
            wanted = dict(list(notes.items())[:count])
            present = store.notes_below(DATASET_ID, "")
            new = [NoteChange(name, None, note) for name, note in wanted.items() if name not in present]
            assert store.change_notes(DATASET_ID, new)
            assert store.notes_below(DATASET_ID, "a/") == wanted
            assert store.notes_below(DATASET_ID, "b/") == {}


@needs_redis
def test_a_change_whose_answer_was_lost_is_not_done_twice(redis_url: str) -> None:
    with closing(store_with(redis_url)) as store:
        store.create_dataset(DATASET, DATASET_ID)
        with (
            closing(store_with(redis_url, partial(BreakingLink, batches=3, is_answer_lost=True))) as dying,
            pytest.raises(Unavailable),
        ):
            dying.change_notes(DATASET_ID, [NoteChange("a", None, b"1")])
        assert store.notes(DATASET_ID, ["a"]) == [b"1"]
        assert not store.change_notes(DATASET_ID, [NoteChange("a", None, b"1")])
