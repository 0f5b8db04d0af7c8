from pathlib import Path

from dieselfs_server.store.posix import PosixStore

from tests.conformance.chunk_store_suite import ChunkStoreSuite


class TestPosixStore(ChunkStoreSuite):
    def make_store(self, folder: Path) -> PosixStore:
        return PosixStore(folder / "store")
