"""Limits the concurrent calls of a store, over all threads of the server.

Large reads have a separate limit, `large_reads_max`; further ones wait for their turn (the tokens of LMDBIO's
staggering). A disk or an OSD serves a few long reads at full speed, but has to seek between many concurrent ones. Small
reads do not wait for large ones, so reading a preamble never waits for 64 MiB.
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
    """Limits of concurrent calls. Large reads count as reads too.

    A call that has waited for `wait_s_max` raises Unavailable: the store hangs, or is far too slow.
    """

    reads_max: int = 16
    large_reads_max: int = 8
    large_read_bytes: int = 1 * MIB
    writes_max: int = 16
    wait_s_max: float = 10.0

    def __post_init__(self) -> None:
        assert 0 < self.large_reads_max <= self.reads_max and self.writes_max > 0


class LimitedStore(StoreWrapper):
    """An `ObjectStore`. A call that would exceed a limit of `store` waits.

    Lookups and listings are not limited: they are short, and few. Opening a chunk is a small read; later reads of its
    file are not limited, because they take no thread of this process.
    """

    def __init__(self, store: ObjectStore, bounds: Bounds) -> None:
        super().__init__(store)
        self._bounds = bounds
        self._large_reads = BoundedSemaphore(bounds.large_reads_max)
        reads, writes = BoundedSemaphore(bounds.reads_max), BoundedSemaphore(bounds.writes_max)
        self._tokens = dict.fromkeys(("get_range", "open_chunk", "get_record"), reads)
        self._tokens |= dict.fromkeys(
            ("put", "delete", "delete_dataset", "put_record", "create_record", "delete_record"), writes
        )

    def _pass(self, call: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
        tokens = self._tokens.get(call.__name__)
        with self._holding(tokens) if tokens else nullcontext():
            return call(*args)

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        # First, so that a waiting large read holds no token that a small read could use.
        is_large = length >= self._bounds.large_read_bytes
        with self._holding(self._large_reads) if is_large else nullcontext():
            return super().get_range(dataset_id, chunk_id, offset, length)

    @contextmanager
    def _holding(self, tokens: BoundedSemaphore) -> Iterator[None]:
        if not tokens.acquire(timeout=self._bounds.wait_s_max):
            raise Unavailable(
                f"object store: still busy with other calls after {self._bounds.wait_s_max:g} s; "
                "it hangs or is overloaded: try again later"
            )
        try:
            yield
        finally:
            tokens.release()
