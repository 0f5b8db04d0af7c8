"""The read path of a mount without page push."""

import trio

from dieselfs_client.memory.chunk_cache import ChunkCache
from dieselfs_client.mount.reading.core import MountCore
from dieselfs_client.mount.reading.read_path import ReadPath
from dieselfs_client.prefetch.prefetcher import Prefetcher
from dieselfs_client.prefetch.runs import Runs


class NoRuns(Runs):
    """Chunks ahead of a reader come into memory alone."""

    def __init__(self, chunk_cache: ChunkCache) -> None:
        self._chunk_cache = chunk_cache
        self._in_flight = {}

    def bring(self, node: int, chunk: int) -> None:
        self._chunk_cache.prefetch(chunk)

    def is_coming(self, chunk: int) -> bool:
        return False


class NoReadAhead(Prefetcher):
    """Holds and stores nothing, so that every chunk is fetched whole."""

    def __init__(self, chunk_cache: ChunkCache) -> None:
        self.moved = trio.Event()
        self.runs = NoRuns(chunk_cache)
        self._plans = {}

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
    return ReadPath(core, chunk_cache, NoReadAhead(chunk_cache))
