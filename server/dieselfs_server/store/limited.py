"""Bounds how much is asked of a store at once, over all who use it.

Large reads also take turns: one starts when another has ended, once `large_reads_max` are under way (the tokens of
LMDBIO's staggering). A disk or an OSD serves a few long reads at full speed, and many at once by seeking between them;
small reads go past, so that nobody waits for 64 MiB to read a preamble.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from threading import BoundedSemaphore

from dieselfs.errors import Unavailable
from dieselfs.limits import MIB
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.wrapper import Arguments, Result, StoreWrapper


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many calls may be under way at once. Large reads count as reads too.

    A call that has waited for `wait_s_max` raises Unavailable: then the store hangs, or is far too slow.
    """

    reads_max: int = 16
    large_reads_max: int = 8
    large_read_bytes: int = 1 * MIB
    writes_max: int = 16
    wait_s_max: float = 10.0

    def __post_init__(self) -> None:
        assert 0 < self.large_reads_max <= self.reads_max and self.writes_max > 0


class LimitedStore(StoreWrapper):
    """An `ObjectStore` that makes a thread wait whose call to `store` would be one too many.

    Looking things up and listing are not bounded: they are short, and few. To open a chunk is a small read; what is
    read of the file afterwards is not bounded here: that takes no thread of this process.
    """

    def __init__(self, store: ObjectStore, bounds: Bounds) -> None:
        super().__init__(store)
        self._bounds = bounds
        self._large_reads = BoundedSemaphore(bounds.large_reads_max)
        reads, writes = BoundedSemaphore(bounds.reads_max), BoundedSemaphore(bounds.writes_max)
        self._tokens = dict.fromkeys(("get_range", "open_chunk", "get_record"), reads)
        self._tokens |= dict.fromkeys(
            ("put", "delete", "delete_dataset", "put_record", "delete_record"), writes
        )

    def _pass(self, call: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
        tokens = self._tokens.get(call.__name__)
        with self._holding(tokens) if tokens else nullcontext():
            return call(*args)

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        # First, so that who waits for it takes no place from small reads.
        is_large = length >= self._bounds.large_read_bytes
        with self._holding(self._large_reads) if is_large else nullcontext():
            return super().get_range(dataset_id, chunk_id, offset, length)

    @contextmanager
    def _holding(self, tokens: BoundedSemaphore) -> Iterator[None]:
        if not tokens.acquire(timeout=self._bounds.wait_s_max):
            raise Unavailable(
                f"object store: busy for {self._bounds.wait_s_max:g} s with what was asked of it before"
            )
        try:
            yield
        finally:
            tokens.release()
