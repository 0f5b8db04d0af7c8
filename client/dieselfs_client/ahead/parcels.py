"""How pieces travel that are fetched ahead of their readers: in parcels, as few as can be.

Most of a chunk comes as the whole of it: one checksum instead of many. Other pieces go together with those of other
chunks that come in the same request: one to each node of a job, or one for each chunk where a server is asked.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np
import trio

from dieselfs.chunk_source import Arrival, Brought, Excerpts
from dieselfs.errors import DieselfsError, Unavailable
from dieselfs.limits import MIB
from dieselfs.meta.snapshot import ExtentRef, Snapshot
from dieselfs_client.ahead.pieces import Indices, Pieces
from dieselfs_client.ahead.residency import ChunkResidency

WHOLE_SHARE = 0.75
"""A chunk of whose payload this much is wanted is fetched whole."""
JOINED_BYTES_MAX = 1 * MIB
"""What came together of several chunks is pushed together if it is no more: to push costs as much as to copy this."""

Parcel = dict[int, Pieces]
"""Pieces of some chunks, by chunk."""

Content = tuple[memoryview, Indices]
"""The bytes of pieces, and where each begins in them."""

Arrived = dict[int, Content | DieselfsError]
"""What came together of some chunks, or what went wrong."""

_log = logging.getLogger(__name__)


class PieceSource(Protocol):
    """Where pieces come from without the rest of their chunks: see `NodeSource`. Blocks."""

    def fetch_many(
        self, wanted: Mapping[int, Sequence[ExtentRef]], is_common: bool = False
    ) -> Iterator[Arrival]: ...

    def together(self, chunks: Iterable[int]) -> list[list[int]]: ...


class Parcels:
    """Used from one trio thread. What is fetched whole goes through `residency`, where readers may wait for it too."""

    def __init__(self, snapshot: Snapshot, residency: ChunkResidency, source: PieceSource) -> None:
        self._snapshot = snapshot
        self._residency = residency
        self._source = source
        self._largest_bytes = int(snapshot.column("chunk_payload_lengths").max(initial=0))

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
        arrived: Callable[[Arrived], Awaitable[None]],
    ) -> None:
        """Fetch a parcel. What comes of its chunks is handed to `arrived` as soon as it is here, each chunk once.

        For `is_common` see `NodeSource.fetch_many`. If cancelled, a request that is under way is abandoned.
        """
        chunk = next(iter(parcel))
        if self.is_whole(chunk, parcel[chunk]):
            await arrived({chunk: await self._whole(chunk, parcel[chunk])})
            return
        arriving, left = self._arriving(parcel, is_common), set(parcel)
        while left and (came := await trio.to_thread.run_sync(next, arriving, None, abandon_on_cancel=True)):
            left.difference_update(came)
            await arrived(came)

    def joined(self, parcel: Parcel, came: Arrived) -> Iterator[tuple[Pieces, Content]]:
        """What came, but for what went wrong: that of several chunks in one, if it is not large, in their order."""
        bytes_max = min(JOINED_BYTES_MAX, self._largest_bytes)
        together: list[tuple[Pieces, Content]] = []
        together_bytes = 0
        for chunk, content in came.items():
            if isinstance(content, DieselfsError):
                continue
            if together and together_bytes + len(content[0]) > bytes_max:
                yield _joined(together)
                together, together_bytes = [], 0
            together.append((parcel[chunk], content))
            together_bytes += len(content[0])
        if together:
            yield _joined(together)

    async def _whole(self, chunk: int, pieces: Pieces) -> Content | DieselfsError:
        try:
            return await self._residency.fetch(chunk), pieces.offsets
        except DieselfsError as error:
            return error

    def _arriving(self, parcel: Parcel, is_common: bool) -> Iterator[Arrived]:
        wanted = {chunk: pieces.extents() for chunk, pieces in parcel.items()}
        left = set(wanted)
        try:
            for arrival in self._source.fetch_many(wanted, is_common):
                left.difference_update(arrival)
                yield {chunk: _content(brought) for chunk, brought in arrival.items()}
        except Exception as error:  # a bug in a source costs what it did not bring, not the mount
            _log.exception("fetching ahead of readers failed")
            yield {chunk: Unavailable(f"fetching failed: {error!r}") for chunk in left}


def _content(brought: Brought) -> Content | DieselfsError:
    if isinstance(brought, Excerpts):
        return brought.content, np.array(brought.starts, np.int64)
    return brought


def _joined(parts: list[tuple[Pieces, Content]]) -> tuple[Pieces, Content]:
    if len(parts) == 1:
        return parts[0]
    payloads = [payload for _, (payload, _) in parts]
    begins = accumulate(map(len, payloads), initial=0)
    starts = [of_part + begin for (_, (_, of_part)), begin in zip(parts, begins, strict=False)]
    pieces = Pieces.joined([pieces for pieces, _ in parts])
    return pieces, (memoryview(b"".join(payloads)), np.concatenate(starts))
