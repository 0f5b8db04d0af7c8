"""The counting store counts, and changes nothing."""

from pathlib import Path

import pytest

from dieselfs.errors import AlreadyExists, Damaged
from dieselfs_server.store.memory import MemoryStore
from lab.counting_store import CountingStore
from tests.conformance.chunk_store_suite import CHUNK_ID, DATASET_ID, ChunkStoreSuite


class TestCountingStore(ChunkStoreSuite):
    def make_store(self, folder: Path) -> CountingStore:
        return CountingStore(MemoryStore())


def test_what_moves_bytes_is_counted() -> None:
    store = CountingStore(MemoryStore())
    store.put(DATASET_ID, CHUNK_ID, [b"123", memoryview(bytes(8)).cast("I")])
    with pytest.raises(AlreadyExists):
        store.put(DATASET_ID, CHUNK_ID, [b"1"])
    store.get_range(DATASET_ID, CHUNK_ID, 2, 5)
    with pytest.raises(Damaged):
        store.get_range(DATASET_ID, CHUNK_ID, 2, 50)
    store.size(DATASET_ID, CHUNK_ID)
    assert store.metrics.as_dict()["store"] == {"reads": 2, "read_bytes": 5, "puts": 2, "put_bytes": 11}
