"""A server without some of the optimisations of LMDBIO: more reads of the store, or more of them at a time."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import trio

from dieselfs.arrays import Ranges
from dieselfs_server import service
from dieselfs_server.reading.executor import Cut, RequestExecutor, cut_ranges
from dieselfs_server.settings import ServerSettings
from dieselfs_server.store.wrapper import Bounds

_NO_MERGE = -1
_UNBOUNDED = 1 << 20


@dataclass(frozen=True, slots=True)
class RequestPath:
    """- `is_coalescing`: ranges that are close together, also of several requests, become one read
    - `is_staggering`: few large reads at a time, the others wait for their turn
    - `is_bounded`: limited reads of any size at a time
    """

    is_coalescing: bool = True
    is_staggering: bool = True
    is_bounded: bool = True

    @property
    def bounds(self) -> Bounds:
        """Of each store."""
        usual = Bounds()
        reads_max = usual.reads_max if self.is_bounded else _UNBOUNDED
        return Bounds(reads_max, usual.large_reads_max if self.is_staggering else reads_max)


class PathExecutor(RequestExecutor):
    """Reads as `path` says; the other arguments: as of `RequestExecutor`."""

    def __init__(self, path: RequestPath, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._path = path
        if not path.is_bounded:
            self._tokens = trio.CapacityLimiter(math.inf)

    async def _read(
        self, dataset_id: bytes, chunk_id: bytes, ranges: Ranges, cut: Cut = cut_ranges
    ) -> list[memoryview]:
        if self._path.is_coalescing:
            return await super()._read(dataset_id, chunk_id, ranges, cut)
        return await self._queue(dataset_id, chunk_id, _NO_MERGE).read(ranges, cut)  # requests do not meet


@dataclass(frozen=True, slots=True)
class PathSettings(ServerSettings):
    """Those of a server with one process, which `serving` serves."""

    path: RequestPath = field(default_factory=RequestPath)

    @property
    def bounds(self) -> Bounds:
        return self.path.bounds


def serving(path: RequestPath) -> AbstractContextManager[Callable[..., RequestExecutor]]:
    """In this block, new servers of this process have the executor of a path."""
    return patch.object(service, "RequestExecutor", partial(PathExecutor, path))
