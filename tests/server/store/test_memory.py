"""The store in memory keeps the contract of object stores."""

from pathlib import Path

from dieselfs_server.store.memory import MemoryStore
from tests.conformance.chunk_store_suite import ChunkStoreSuite


class TestMemoryStore(ChunkStoreSuite):
    def make_store(self, folder: Path) -> MemoryStore:
        return MemoryStore()
