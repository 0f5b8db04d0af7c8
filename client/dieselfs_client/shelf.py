"""The chunks that a node holds for others: for processes on it, and for the other nodes of its job.

Each is a sealed segment, fetched once however many want it, and verified before anybody sees it. What comes first is
*kept* and never given up for another, as much as fits; the rest is in *transit*, until those who need it have had it.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import trio

from dieselfs.cache.segment import Segment
from dieselfs.cache.warmth import Warmth
from dieselfs.chunk.ids import chunk_name
from dieselfs.errors import Damaged, DieselfsError
from dieselfs.limits import FETCHES_AT_ONCE_MAX, READ_TIMEOUT_S
from dieselfs.meta.snapshot import Snapshot
from dieselfs_client.ahead.reads import ASKED_CHUNKS_MAX, REQUEST_BYTES, WHOLE_SHARE
from dieselfs_client.flights import Flights
from dieselfs_client.foreground import Foreground
from dieselfs_client.legacy import Legacy
from dieselfs_client.transit import Ranges, Transit


@dataclass(slots=True)
class ShelfFigures:
    """Counts since the start. `loads`: chunks that were fetched; `hits`: times that one was there already; `inherited`:
    chunks that the daemon before has left.
    """

    loads: int = 0
    load_bytes: int = 0
    hits: int = 0
    inherited: int = 0


class Shelf:
    """Used from one trio thread. `fetch` brings a chunk, verified and sealed; it blocks, and raises DieselfsError.

    Fetches run in `nursery`: cancelling it abandons them. What the daemon before has left in `legacy` is kept at once;
    and what is kept is left there.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        fetch: Callable[[int], Segment],
        kept_bytes: int,
        transit_bytes: int,
        nursery: trio.Nursery,
        timeout_s: float = READ_TIMEOUT_S,
        fetches_at_once: int = FETCHES_AT_ONCE_MAX,
        foreground: Foreground | None = None,
        legacy: Legacy | None = None,
    ) -> None:
        self.figures = ShelfFigures()
        self._snapshot = snapshot
        self._kept_max_bytes = kept_bytes
        self._flights: Flights[int, Segment] = Flights(
            fetch, self._depart, self._land, self._name, nursery, timeout_s, fetches_at_once, foreground
        )
        # All below change only between checkpoints.
        self._asked_bytes: OrderedDict[int, int] = (
            OrderedDict()
        )  # of chunks that are not here, the last at the end
        self._damaged: set[int] = set()
        self._coming: dict[int, int] = {}  # the bytes of chunks on their way that will be kept
        self._kept: dict[int, Segment] = {}
        self._transit = Transit(snapshot, transit_bytes)
        self._legacy = legacy
        self.kept_bytes = 0
        if legacy is not None:
            self._inherit(legacy)

    def _name(self, chunk: int) -> str:
        return f"chunk {chunk_name(self._snapshot.chunk_id(chunk))}"

    def kept(self, chunk: int) -> memoryview | None:
        """The payload of a chunk if it is here for good. May be called from any thread."""
        segment = self._kept.get(chunk)
        return None if segment is None else segment.view

    def held(self, chunk: int) -> Segment | None:
        """A chunk if it is here; counts as a use."""
        segment = self._kept.get(chunk)
        return self._transit.get(chunk) if segment is None else segment

    def start(self, chunk: int) -> None:
        """Fetch a chunk, unless it is here, on its way, or damaged."""
        if not self._is_here(chunk) and chunk not in self._damaged:
            self._flights.start(chunk)

    def handed_out(self, chunk: int, ranges: Ranges) -> None:
        """Somebody has got pieces of a chunk that is here, which others do not want: when all are handed out, it may
        go. (Who wants all of it may not be the only one.)
        """
        self._transit.handed_out(chunk, ranges)

    def _is_here(self, chunk: int) -> bool:
        return chunk in self._kept or chunk in self._transit

    async def payload(self, chunk: int) -> memoryview:
        """The payload of a chunk, as `segment`; it stays readable for as long as the view is held."""
        return (await self.segment(chunk)).view

    async def segment(self, chunk: int, lane: trio.CapacityLimiter | None = None) -> Segment:
        """A chunk of the snapshot, fetched if it is not here; to be used before the next checkpoint, or duplicated. For
        the `lane` see `Flights.wait`.

        Raises what fetching raises; Damaged at once for a chunk that was found damaged before; Unavailable if it takes
        too long. If cancelled, the fetch goes on.
        """
        segment = self.held(chunk)
        if segment is not None:
            self.figures.hits += 1
            return segment
        if chunk in self._damaged:
            raise Damaged(f"{self._name(chunk)} is damaged")
        return await self._flights.wait(chunk, lane)

    def is_worth_fetching(self, chunk: int, wanted_bytes: int, is_common: bool = False) -> bool:
        """Whether a chunk is to be here for the sake of so many of its bytes: it is, or will be; it would be kept;
        others want the rest (`is_common`); or much of it was asked for lately. Else whoever wants them is better off
        without the rest.
        """
        if is_common or self._is_here(chunk) or self._flights.is_underway(chunk) or self.has_room(chunk):
            return True
        asked_bytes = self._asked_bytes.pop(chunk, 0) + wanted_bytes + REQUEST_BYTES
        if asked_bytes * WHOLE_SHARE >= self._snapshot.chunk_payload_length(chunk):
            return True
        self._asked_bytes[chunk] = asked_bytes
        if len(self._asked_bytes) > ASKED_CHUNKS_MAX:
            self._asked_bytes.popitem(last=False)
        return False

    def has_room(self, chunk: int) -> bool:
        """Whether one more chunk would be kept, beside those that are on their way to be."""
        length_bytes = self._snapshot.chunk_payload_length(chunk)
        promised_bytes = self.kept_bytes + sum(self._coming.values())
        return chunk in self._coming or promised_bytes + length_bytes <= self._kept_max_bytes

    @property
    def transit_bytes(self) -> int:
        return self._transit.bytes

    # -- before anybody asks: `warming.Warmable` -----------------------------------------------------------

    def lacks(self, chunk: int) -> bool:
        """Whether a chunk is not kept, and not known to be damaged."""
        return chunk not in self._kept and chunk not in self._damaged

    async def bring(self, chunk: int, lane: trio.CapacityLimiter) -> None:
        """Fetch a chunk that there is room for, as `segment`; one that is here on its way through stays."""
        segment = self._transit.take(chunk) if self.has_room(chunk) else None
        if segment is not None:
            self._keep(chunk, segment)
        elif self.lacks(chunk):
            await self.segment(chunk, lane)

    def warmth(self, own: npt.NDArray[np.int64]) -> Warmth:
        """How much is kept of these chunks, of what could be. Others that are kept take room, and count for nothing:
        they are here in the place of a node that is silent, and leave when it is well.
        """
        here = np.fromiter([*self._kept, *self._damaged], np.int64)
        lacking = np.setdiff1d(own, here, assume_unique=True)
        lengths = self._snapshot.column("chunk_payload_lengths")
        kept = np.intersect1d(own, np.fromiter(self._kept, np.int64), assume_unique=True)
        kept_bytes = int(lengths[kept].sum(dtype=np.int64))
        kept_max_bytes = self._kept_max_bytes - (self.kept_bytes - kept_bytes)
        damaged = len(np.intersect1d(own, np.fromiter(self._damaged, np.int64)))
        return Warmth.of(kept_bytes, kept_max_bytes, lengths[lacking], damaged)

    # ----------------------------------------------------------------------------------------------------

    def chunks(self) -> list[int]:
        """Those that are kept."""
        return list(self._kept)

    def drop(self, chunks: Iterable[int]) -> None:
        """Let go of chunks. Whoever has mapped one keeps it for as long as he does."""
        for chunk in chunks:
            segment = self._kept.pop(chunk, None)
            if segment is not None:
                self.kept_bytes -= len(segment)
                if self._legacy is not None:
                    self._legacy.drop(chunk)
            self._transit.take(chunk)

    def _keep(self, chunk: int, segment: Segment) -> None:
        self._kept[chunk] = segment
        self.kept_bytes += len(segment)
        if self._legacy is not None:
            self._legacy.keep(chunk, segment)

    def _inherit(self, legacy: Legacy) -> None:
        for chunk, segment in legacy.take():
            if self.has_room(chunk):
                self._kept[chunk] = segment
                self.kept_bytes += len(segment)
                self.figures.inherited += 1
            else:
                legacy.drop(chunk)

    def _depart(self, chunk: int) -> None:
        if self.has_room(chunk):
            self._coming[chunk] = self._snapshot.chunk_payload_length(chunk)

    def _land(self, chunk: int, segment: Segment | None, error: DieselfsError | None) -> bool:
        is_kept = self._coming.pop(chunk, None) is not None or self.has_room(chunk)
        if segment is None:
            if not isinstance(error, Damaged):
                return True
            self._damaged.add(chunk)
            return False
        self.figures.loads += 1
        self.figures.load_bytes += len(segment)
        if is_kept:
            self._keep(chunk, segment)
        else:
            self._transit.add(chunk, segment)
        return False
