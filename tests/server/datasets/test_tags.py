"""Tags as records: signed with their names, so that none can be exchanged for another."""

import pytest

from dieselfs.errors import Damaged, InvalidInput
from dieselfs.snapshot.reader import Snapshot
from dieselfs_server.datasets import tags as tag_records
from dieselfs_server.datasets.snapshots import signed
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.store.memory import MemoryStore
from tests.support.identity import IDENTITY, OTHER_IDENTITY
from tests.support.snapshots import DATASET_ID, SAMPLE, SOURCE, snapshot_bytes


def tagged(store: MemoryStore) -> TagStore:
    """A store with two tags."""
    tags = TagStore(store, IDENTITY)
    for name, tree in (("v1", SAMPLE), ("v2", {})):
        tags.add(Snapshot(signed(snapshot_bytes(tree), IDENTITY), SOURCE), name)
    return tags


def test_a_tag_that_stands_in_the_place_of_another_is_damage() -> None:
    store = MemoryStore()
    tags = tagged(store)
    one, two = store.list_records("tag-")
    content = store.get_record(two)
    assert content is not None
    store.put_record(one, content)
    assert tags.get("pets", DATASET_ID, "v2").generation == 7
    with pytest.raises(Damaged, match="tag v1 of pets: "):
        tags.get("pets", DATASET_ID, "v1")


def test_a_dataset_has_a_bounded_number_of_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take room that no quota counts."""
    tags = tagged(MemoryStore())
    monkeypatch.setattr(tag_records, "TAGS_MAX", 2)
    third = Snapshot(signed(snapshot_bytes({}), IDENTITY), SOURCE)
    with pytest.raises(InvalidInput, match="dlcmd tag rm"):
        tags.add(third, "v3")
    tags.remove("pets", DATASET_ID, "v1")
    tags.add(third, "v3")


def test_any_altered_byte_of_a_tag_is_found() -> None:
    store = MemoryStore()
    tags = tagged(store)
    record = store.list_records("tag-")[0]
    content = store.get_record(record)
    assert content is not None
    for place in range(len(content)):
        altered = bytearray(content)
        altered[place] ^= 1
        store.put_record(record, bytes(altered))
        with pytest.raises(Damaged):
            tags.get("pets", DATASET_ID, "v1")


def test_a_tag_of_other_servers_is_refused() -> None:
    store = MemoryStore()
    tagged(store)
    with pytest.raises(Damaged, match="not signed by the servers of this store"):
        TagStore(store, OTHER_IDENTITY).get("pets", DATASET_ID, "v1")
