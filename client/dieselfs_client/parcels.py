"""How pieces travel that are fetched ahead of their readers: in parcels, as few as can be.

Most of a chunk comes as the whole of it: one checksum instead of many. Other pieces go together with those of other
chunks that come in the same request: one to each node of a job, or one for each chunk where a server is asked.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import trio

from dieselfs.chunk_source import Brought, Excerpts
from dieselfs.errors import DieselfsError, Unavailable
from dieselfs.meta.snapshot import ExtentRef, Snapshot
from dieselfs_client.pieces import Indices, Pieces
from dieselfs_client.residency import ChunkResidency

WHOLE_SHARE = 0.75
"""A chunk of whose payload this much is wanted is fetched whole."""

Parcel = dict[int, Pieces]
"""Pieces of some chunks, by chunk."""

Content = tuple[memoryview, Indices]
"""The bytes of pieces of one chunk, and where each begins in them."""

_log = logging.getLogger(__name__)


class PieceSource(Protocol):
    """Where pieces come from without the rest of their chunks: see `NodeSource`. Blocks."""

    def fetch_many(
        self, wanted: Mapping[int, Sequence[ExtentRef]], is_common: bool = False
    ) -> Iterator[tuple[int, Brought]]: ...

    def together(self, chunks: Iterable[int]) -> list[list[int]]: ...


class Parcels:
    """Used from one trio thread. What is fetched whole goes through `residency`, where readers may wait for it too."""

    def __init__(self, snapshot: Snapshot, residency: ChunkResidency, source: PieceSource) -> None:
        self._snapshot = snapshot
        self._residency = residency
        self._source = source

    def is_whole(self, chunk: int, pieces: Pieces) -> bool:
        """Whether pieces are so much of a chunk that it is fetched whole."""
        return bool(pieces.lengths.sum() >= WHOLE_SHARE * self._snapshot.chunk_payload_length(chunk))

    def packed(self, wanted: Parcel) -> Iterator[Parcel]:
        """The same pieces, in parcels; the order is that of the first chunk in each."""
        parts = [chunk for chunk, pieces in wanted.items() if not self.is_whole(chunk, pieces)]
        parcels = {group[0]: group for group in self._source.together(parts)}
        companions = set(parts).difference(parcels)
        for chunk in wanted:
            if chunk not in companions:
                yield {each: wanted[each] for each in parcels.get(chunk, [chunk])}

    async def fetch(
        self,
        parcel: Parcel,
        is_common: bool,
        arrived: Callable[[int, Content | DieselfsError], Awaitable[None]],
    ) -> None:
        """Fetch a parcel. What comes of each chunk, or what went wrong, is handed to `arrived` as soon as it is here.

        For `is_common` see `NodeSource.fetch_many`. If cancelled, a request that is under way is abandoned.
        """
        chunk = next(iter(parcel))
        if self.is_whole(chunk, parcel[chunk]):
            await arrived(chunk, await self._whole(chunk, parcel[chunk]))
            return
        arriving = self._arriving(parcel, is_common)
        while (
            each := await trio.to_thread.run_sync(next, arriving, None, abandon_on_cancel=True)
        ) is not None:
            await arrived(*each)

    async def _whole(self, chunk: int, pieces: Pieces) -> Content | DieselfsError:
        try:
            return await self._residency.fetch(chunk), pieces.offsets
        except DieselfsError as error:
            return error

    def _arriving(self, parcel: Parcel, is_common: bool) -> Iterator[tuple[int, Content | DieselfsError]]:
        wanted = {chunk: pieces.extents() for chunk, pieces in parcel.items()}
        left = set(wanted)
        try:
            for chunk, brought in self._source.fetch_many(wanted, is_common):
                left.discard(chunk)
                if isinstance(brought, Excerpts):
                    yield chunk, (brought.content, np.array(brought.starts, np.int64))
                else:
                    yield chunk, brought
        except Exception as error:  # a bug in a source costs what it did not bring, not the mount
            _log.exception("fetching ahead of readers failed")
            for chunk in left:
                yield chunk, Unavailable(f"fetching failed: {error!r}")
