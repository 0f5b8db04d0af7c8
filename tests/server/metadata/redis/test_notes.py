"""Notes in Redis: what was altered is noticed, what was lost on the way is told, many come in several steps."""

from contextlib import closing
from functools import partial

import pytest

from dieselfs.errors import Damaged, Unavailable
from dieselfs.records import NoteChange
from dieselfs_server.metadata.redis import notes as redis_notes
from tests.support.metadata_chunks import DATASET, DATASET_ID
from tests.support.redis import RedisProcess, needs_redis
from tests.support.redis_faults import BreakingLink, store_with

pytestmark = needs_redis


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


def test_many_notes_come_in_several_steps(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_notes, "NOTES_AT_ONCE_MAX", 3)
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
