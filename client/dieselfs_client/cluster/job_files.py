"""The important files that the mounts of a job keep together, each on one node. This module sends requests to other
nodes, and reads and writes files of memory.

The node master of each node keeps the files that are its own in the placement of `SamplePool`: those that its cache
(`ScoredFiles`) chooses when a reader of any mount is about to read them. A reader asks the owner first. What the owner
wants and does not have is sent to it as soon as it came from elsewhere. Where an owner does not answer, files come from
elsewhere. Of an encrypted dataset, the files here are encrypted, as the chunks in the memory of the job are.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import trio

from dieselfs.arrays import Numbers
from dieselfs.errors import DieselfsError, InvalidInput, Unavailable
from dieselfs.importance.scored_files import ScoredFiles
from dieselfs.limits import PEER_ANSWER_BYTES_MAX
from dieselfs.rpc.wire import Buffer
from dieselfs.samples.sample_pool import SamplePool, pooled_sizes
from dieselfs.samples.sample_store import SampleStore, name_on
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.cluster.job_nodes import JobNodes

if TYPE_CHECKING:  # imported for an encrypted dataset alone
    from dieselfs.sources.decrypted import Decryption

_NAME = "kept"
_log = logging.getLogger(__name__)


class Found(NamedTuple):
    """Bytes of files, verified, by file; those of them that other nodes sent; and the files that their owners want."""

    contents: Mapping[int, bytes]
    from_peers: Iterable[int]
    wanted: Iterable[int]


class JobFiles:
    """Blocks, each wait bounded; thread-safe. `folder`: name of the store in memory. `close` releases the memory."""

    def __init__(self, snapshot: Snapshot, job: JobNodes, scored: ScoredFiles, folder: str) -> None:
        self.store_name = name_on(_NAME, job.node)
        self.begin: Callable[[], None] = lambda: None
        """Makes room for them, with `open`, in the trio thread of the mount. Set by its prefetcher."""
        self.decryption: Decryption | None = None
        """Of an encrypted dataset; before it is set, no files are asked for or given."""
        self.is_master = job.is_master
        self._snapshot, self._job, self._folder, self._scored = snapshot, job, folder, scored
        self._lock = RLock()  # guards all below; what the cache does not have is not in the store
        self._room: tuple[int, Numbers] | None = None
        self._store: SampleStore | None = None
        self._pool: tuple[tuple[frozenset[str], str], SamplePool] | None = None
        self._wake = trio.Event()

    def sizes(self) -> Numbers:
        """The bytes that each entry of the snapshot takes here: shape (entries,)."""
        return pooled_sizes(self._snapshot, np.arange(len(self._snapshot)))

    def open(self, capacity: int, sizes: Numbers) -> None:
        """Keep files from now on, as `ScoredFiles.keep`."""
        self._room = capacity, sizes

    def close(self) -> None:
        with self._lock:
            self._room = None
            if self._store is not None:
                self._store.close()

    # -- for readers of this mount -------------------------------------------------------------------------

    def fetch(self, files: Sequence[int]) -> Found:
        """Files that this node or others keep; nobody keeps those that are larger than a reply may be."""
        sizes = pooled_sizes(self._snapshot, np.array(files, np.int64)).tolist()
        files = [file for file, size in zip(files, sizes, strict=True) if 0 < size <= PEER_ANSWER_BYTES_MAX]
        pool = self._pool_now() if files else None
        if pool is None or not self._has_key():
            return Found({}, (), ())
        owners = zip(files, pool.owners(files), strict=True)
        own = [file for file, owner in owners if owner == self._job.node] if self.is_master() else []
        wanted = self.admit(own)
        stored = ((file, content) for file in own if (content := self.read(file)))
        here = {file: content for file, kept in stored if (content := pool.opened(file, kept)) is not None}
        from_peers, of_others = pool.ask(files)
        return Found(here | from_peers, from_peers, wanted.difference(here).union(of_others))

    def _has_key(self) -> bool:
        """Whether files can be decrypted. The first use of the key asks a server, which may be away."""
        try:
            if self.decryption is not None:
                self.decryption.load_key()
            return True
        except DieselfsError:  # readers meet it
            return False

    def give(self, contents: Mapping[int, Buffer]) -> None:
        """Keep wanted files, each at its owner."""
        pool = self._pool_now()
        if pool is not None:
            stored = {file: pool.stored(file, content) for file, content in contents.items()}
            pool.send(stored)
            for (file, content), owner in zip(stored.items(), pool.owners([*stored]), strict=True):
                if owner == self._job.node and self.is_master():
                    self.write(file, content)

    # -- as their owner, also for other nodes --------------------------------------------------------------

    def admit(self, files: Sequence[int]) -> set[int]:
        """Files are about to be read; returns those that the cache has now."""
        with self._lock:
            if not files or self._opened() is None:
                return set()
            released = self._scored.admit(np.array(files, np.int64)).released.tolist()
            self.drop(released)
            return {*files}.difference(released)

    def read(self, file: int) -> bytes | None:
        """The bytes of a file as they are stored, unverified."""
        return None if self._store is None else self._store.read(file)

    def write(self, file: int, content: Buffer) -> None:
        """Keep a file, given as it is stored, if the cache takes it and there is space."""
        with self._lock:
            store, is_kept = self._opened(), file in self.admit([file])
            if is_kept and store is not None and not store.write(file, memoryview(content)):
                self._scored.forget([file], is_full=True)

    def drop(self, files: Iterable[int]) -> None:
        files = [*files]
        with self._lock:
            self._scored.forget(files)
            if self._store is not None:
                self._store.drop(files)

    def _opened(self) -> SampleStore | None:
        """The store, with what an earlier daemon of this node has left."""
        if self._store is None and self._room is not None and self.is_master():
            (capacity, sizes), self._room = self._room, None
            try:
                self._store = SampleStore(self._folder)
            except InvalidInput as error:
                _log.warning("this mount keeps no important files: %s", error)
                return None
            left = [file for file in self._store.samples() if file < len(self._snapshot)]
            kept = self._scored.keep(capacity, sizes, left)
            self._store.drop(set(left).difference(kept.tolist()))
        return self._store

    # -- the members ---------------------------------------------------------------------------------------

    def look_again(self) -> None:
        """The members have changed; in the trio thread of `run`."""
        self._wake.set()

    async def run(self) -> None:
        """Give files away that belong to other nodes since a change, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            await trio.to_thread.run_sync(self.hand_over, abandon_on_cancel=True)

    def hand_over(self, is_leaving: bool = False) -> None:
        """Move the files here that other nodes own; `is_leaving`: all of them, as far as other nodes take them."""
        pool = self._pool_now(is_leaving)
        if pool is not None and self._store is not None:
            pool.give(self._scored.kept().tolist())

    def _pool_now(self, is_leaving: bool = False) -> SamplePool | None:
        """The files of the job, by its present members; None before this node is in the job."""
        if self._snapshot.header.is_encrypted and self.decryption is None:
            return None
        try:
            masters = self._job.masters(is_leaving)
        except Unavailable:
            return None
        me = next((node for node, member in masters.items() if member is None), "")
        key = frozenset(masters), me
        with self._lock:
            if self._pool is None or self._pool[0] != key:
                job = self._job
                pool = SamplePool(_NAME, key[0], me, self, self._snapshot, lambda: job, self.decryption)
                self._pool = key, pool
            return self._pool[1]
