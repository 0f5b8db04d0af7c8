"""The read path of a mount without page push."""

import trio

from dieselfs_client.memory.chunk_cache import ChunkCache
from dieselfs_client.mount.reading.core import MountCore
from dieselfs_client.mount.reading.read_path import ReadPath
from dieselfs_client.prefetch.prefetcher import Prefetcher


class NoReadAhead(Prefetcher):
    """Holds and stores nothing, so that every chunk is fetched whole."""

    def __init__(self) -> None:
        self.moved = trio.Event()

    def note_read(self, node: int) -> None:
        pass

    def note_read_ahead(self, node: int) -> None:
        pass

    def held(self, node: int) -> memoryview | None:
        return None

    def is_starved(self, node: int) -> bool:
        return False

    def keeps(self, chunk: int) -> bool:
        return True

    def expects(self, chunk: int) -> bool:
        return True

    def stays(self, chunk: int) -> bool:
        return False

    def has_room(self, chunk: int) -> bool:
        return False

    def note_fetched(self, chunk: int, payload: memoryview) -> None:
        pass


def plain_reads(core: MountCore, chunk_cache: ChunkCache) -> ReadPath:
    return ReadPath(core, chunk_cache, NoReadAhead())
