"""A source of samples with the memory of the node before it, and in a job that of the other nodes; counts what it finds
there. This module maps files of memory.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dieselfs.arrays import Numbers
from dieselfs.errors import Damaged
from dieselfs.limits import CHUNK_PAYLOAD_BYTES_MAX
from dieselfs.samples.sample_store import SampleStore
from dieselfs.samples.worker_times import SharedMemoryFile

if TYPE_CHECKING:  # imported in a job, and for an encrypted dataset, alone
    from dieselfs.samples.sample_pool import SamplePool
    from dieselfs.sources.decrypted import Decryption

_ROWS = 1021
"""A process counts in one of these rows, by its number: two that share one may lose a little."""


class ReadCounts(NamedTuple):
    """Files that were read; those of them that were in memory, and of these, those of other nodes."""

    reads: int
    hits: int
    from_peers: int


class SampleReads(SharedMemoryFile):
    """Counts of all processes that read through a `StoredReads`, where they read."""

    NAME = "dieselfs-reads"
    MAPPED_BYTES = _ROWS * len(ReadCounts._fields) * np.dtype(np.int64).itemsize

    def add(self, counts: ReadCounts) -> None:
        self._rows()[os.getpid() % _ROWS] += counts

    def total(self) -> ReadCounts:
        return ReadCounts(*self._rows().sum(0).tolist())

    def _rows(self) -> Numbers:
        return np.frombuffer(self._memory, np.int64).reshape(_ROWS, -1)


class StoredReads:
    """A source whose samples are looked up in a store first, then in a pool if there is one; what was read from the
    source is written to the store.
    """

    def __init__(
        self,
        source: Any,
        store: SampleStore,
        make_shared: "Callable[[], tuple[SamplePool | None, Decryption | None]] | None" = None,
    ) -> None:
        """`make_shared`: called in each process that reads; gives the pool, and what encrypts files in the store."""
        self.source, self.store, self._make_shared = source, store, make_shared
        self.counts = SampleReads()

    @cached_property
    def _shared(self) -> "tuple[SamplePool | None, Decryption | None]":
        return (None, None) if self._make_shared is None else self._make_shared()

    @property
    def pool(self) -> "SamplePool | None":
        return self._shared[0]

    def read_many(self, nodes: Sequence[int]) -> list[bytes]:
        """All bytes of each file, in this order; each file is read from the source once. Raises DieselfsError."""
        wanted = [*dict.fromkeys(nodes)]
        found = {node: content for node in wanted if (content := self._kept(node)) is not None}
        missing = [node for node in wanted if node not in found]
        of_peers = self.pool.fetch(missing) if self.pool is not None and missing else {}
        missing = [node for node in missing if node not in of_peers]
        contents = self.source.read_many(missing) if missing else []
        for node, content in zip(missing, contents, strict=True):
            found[node] = content
            self._keep(node, content)
        of_others = sum(node in of_peers for node in nodes)
        self.counts.add(ReadCounts(len(nodes), len(nodes) - len(missing), of_others))
        found.update(of_peers)
        return [found[node] for node in nodes]

    read_views = read_many

    def _kept(self, node: int) -> bytes | None:
        content, (_, decryption) = self.store.read(node), self._shared
        with suppress(Damaged):
            return content if content is None or decryption is None else decryption.open_file(node, content)
        return None

    def _keep(self, node: int, content: bytes) -> None:
        _, decryption = self._shared
        if decryption is None:
            self.store.write(node, content)
        elif len(content) <= CHUNK_PAYLOAD_BYTES_MAX:  # what one encrypted extent may have
            self.store.write(node, decryption.seal_file(node, content))

    def settle(self, released: Sequence[int], kept: Sequence[int]) -> None:
        """After a step: the cache does not have the files `released`; of those that were read here it has `kept`."""
        self.store.drop(released)
        if self.pool is not None:
            self.pool.give(kept)

    def __getattr__(self, name: str) -> Any:
        """The rest is that of the source."""
        if name == "source":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.source, name)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_shared"}
