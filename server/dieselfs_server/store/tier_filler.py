"""Copies chunks into the fast tier, in its own thread: new chunks, and the datasets that are being read.

New chunks are in memory and are copied at once. The copies of datasets use the slow tier for SLOW_SHARE of the time at
most, so that readers that miss the fast tier rarely wait for them.
"""

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from threading import Condition, Thread

from dieselfs.errors import DieselfsError
from dieselfs.limits import MIB

SLOW_SHARE = 0.25
"""Largest share of the time in which the slow tier is read for the fast one."""

PENDING_BYTES_MAX = 64 * MIB
"""Limit of new chunks that wait to be copied. Further ones are copied only when their dataset is read."""

DATASETS_WAITING_MAX = 64
LOST_MAX = 4096
"""Limit of chunks that wait to be copied again because their copies were damaged or lost."""

REFILL_PAUSE_S = 60.0
"""After a dataset was copied as far as it fits, its missing chunks are not looked for again for this time."""

log = logging.getLogger(__name__)


def pause_after(duration_s: float, share: float) -> float:
    """The pause after a read of the slow tier of `duration_s`, in seconds."""
    return duration_s * (1 - share) / share


class TierFiller:
    """Runs until it is closed.

    `admit` copies content; `chunks` lists the missing chunks of a dataset; `fetch` copies one chunk from the slow tier,
    and returns False if there is no room for more of its dataset. Their DieselfsErrors are logged, and end the copy of
    the dataset.
    """

    def __init__(
        self,
        admit: Callable[[bytes, bytes, bytes], None],
        chunks: Callable[[bytes], Iterator[bytes]],
        fetch: Callable[[bytes, bytes], bool],
        slow_share: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert 0 < slow_share <= 1
        self._admit, self._chunks, self._fetch = admit, chunks, fetch
        self._slow_share = slow_share
        self._clock = clock
        self._changed = Condition()  # guards all below, except the thread
        self._put: deque[tuple[bytes, bytes, bytes]] = deque()
        self._put_bytes = 0
        self._wanted: OrderedDict[bytes, Iterator[bytes]] = OrderedDict()  # the last is copied first
        self._lost: OrderedDict[tuple[bytes, bytes], None] = OrderedDict()  # copied before whole datasets
        self._rested_s: dict[bytes, float] = {}  # from when on a dataset may be copied again
        self._fetch_from_s = float("-inf")
        self._is_busy = False
        self._is_closed = False
        self._thread = Thread(target=self._run, name="tier-filler", daemon=True)
        self._thread.start()

    def offer(self, dataset_id: bytes, chunk_id: bytes, content: bytes) -> None:
        """Copy a new chunk soon; not if PENDING_BYTES_MAX already wait."""
        with self._changed:
            if self._put_bytes + len(content) <= PENDING_BYTES_MAX:
                self._put.append((dataset_id, chunk_id, content))
                self._put_bytes += len(content)
                self._changed.notify_all()

    def want(self, dataset_id: bytes) -> None:
        """Start to copy a dataset; no effect if its copy is in progress, or ended less than REFILL_PAUSE_S ago."""
        with self._changed:
            is_new = dataset_id not in self._wanted and len(self._wanted) < DATASETS_WAITING_MAX
            if is_new and self._clock() >= self._rested_s.get(dataset_id, float("-inf")):
                self._wanted[dataset_id] = self._chunks(dataset_id)
                self._changed.notify_all()

    def copy_again(self, dataset_id: bytes, chunk_id: bytes) -> None:
        """Copy a chunk again whose copy is damaged or lost."""
        with self._changed:
            if len(self._lost) < LOST_MAX:
                self._lost[dataset_id, chunk_id] = None
                self._changed.notify_all()

    def forget(self, dataset_id: bytes) -> None:
        """Stop copying a dataset, because it is being removed."""
        with self._changed:
            self._wanted.pop(dataset_id, None)
            self._lost = OrderedDict.fromkeys(chunk for chunk in self._lost if chunk[0] != dataset_id)
            self._put = deque(item for item in self._put if item[0] != dataset_id)
            self._put_bytes = sum(len(content) for _, _, content in self._put)

    def wait_until_idle(self) -> None:
        """Wait until nothing is left to copy."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or not (self._is_busy or self._put or self._has_fetches)
            )

    @property
    def _has_fetches(self) -> bool:
        return bool(self._lost or self._wanted)

    def close(self) -> None:
        """Stop after the chunk that is being copied."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while (step := self._next_step()) is not None:
            try:
                step()
            except DieselfsError as error:
                log.warning("fast tier: %s", error)
            finally:
                with self._changed:
                    self._is_busy = False
                    self._changed.notify_all()

    def _next_step(self) -> Callable[[], object] | None:
        """Wait for the next copy; None when closed."""
        with self._changed:
            while not self._is_closed:
                pause_s = self._fetch_from_s - self._clock()
                if self._put:
                    self._is_busy = True
                    item = self._put.popleft()
                    self._put_bytes -= len(item[2])
                    return partial(self._admit, *item)
                if self._has_fetches and pause_s <= 0:
                    self._is_busy = True
                    return self._next_fetch()
                self._changed.wait(pause_s if self._has_fetches else None)
        return None

    def _next_fetch(self) -> Callable[[], object]:
        if self._lost:
            chunk, _ = self._lost.popitem(last=False)
            return partial(self._fetch_in_share, *chunk)
        return partial(self._copy_next, *next(reversed(self._wanted.items())))

    def _copy_next(self, dataset_id: bytes, chunk_ids: Iterator[bytes]) -> None:
        """Copy the next chunk of a dataset."""
        is_done = True
        try:
            chunk_id = next(chunk_ids, None)
            is_done = chunk_id is None or not self._fetch_in_share(dataset_id, chunk_id)
        finally:
            if is_done:
                now_s = self._clock()
                with self._changed:
                    self._wanted.pop(dataset_id, None)
                    self._rested_s = {other: s for other, s in self._rested_s.items() if s > now_s}
                    self._rested_s[dataset_id] = now_s + REFILL_PAUSE_S

    def _fetch_in_share(self, dataset_id: bytes, chunk_id: bytes) -> bool:
        """Copy one chunk; the next copy waits until the share of the time allows it."""
        started_s = self._clock()
        try:
            return self._fetch(dataset_id, chunk_id)
        finally:
            now_s = self._clock()
            with self._changed:
                self._fetch_from_s = now_s + pause_after(now_s - started_s, self._slow_share)
