"""A wrapper that changes nothing keeps the contract."""

from pathlib import Path

from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.wrapper import StoreWrapper
from tests.conformance.chunk_store_suite import ChunkStoreSuite


class TestStoreWrapper(ChunkStoreSuite):
    def make_store(self, folder: Path) -> StoreWrapper:
        return StoreWrapper(MemoryStore())
