"""The samples that the nodes of a job keep in memory together. This module sends requests to other nodes.

Each sample has one owner among the nodes whose ranks share the pool: the placement of chunks, with equal weights, by
the number of the sample's file. Only its store keeps the sample, and the other nodes fetch it there. A rank that has
read a sample which the cache keeps gives it to its owner. Where an owner does not answer, samples are read from their
source. Stores, and what nodes exchange, have the files of an encrypted dataset encrypted.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dieselfs.arrays import Numbers
from dieselfs.cluster.chunk_requests import ChunkAvailability
from dieselfs.cluster.member import Member
from dieselfs.cluster.peer_client import PeerClient
from dieselfs.cluster.placement import Placement
from dieselfs.cluster.pooled_source import PEER_BATCH_BYTES
from dieselfs.errors import Damaged, Unavailable
from dieselfs.limits import PEER_ANSWER_BYTES_MAX, PEER_CHUNKS_MAX
from dieselfs.rpc.wire import Buffer
from dieselfs.samples.sample_store import name_on
from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.interface import Slices
from dieselfs.sources.server import first_damaged

if TYPE_CHECKING:  # imported for an encrypted dataset alone
    from dieselfs.sources.decrypted import Decryption


def pooled_sizes(snapshot: Snapshot, files: Numbers) -> Numbers:
    """The bytes of files as they are stored in a pool: shape (n,)."""
    sizes: Any = snapshot.column("sizes")[files].astype(np.int64)
    if snapshot.header.is_encrypted:
        from dieselfs.encryption.segments import sealed_length

        sizes = sealed_length(sizes)
    return np.asarray(sizes, np.int64)


class Nodes(Protocol):
    """`dieselfs.cluster.attachment.Attachment`."""

    @property
    def peers(self) -> PeerClient: ...

    def peer(self, node: str) -> Member:
        """Raises Unavailable."""
        ...


class Store(Protocol):
    """What `SamplePool` needs of a `SampleStore`."""

    def read(self, sample: int) -> bytes | None: ...

    def drop(self, samples: Iterable[int]) -> None: ...


class SamplePool:
    """Blocks, each wait bounded. `name`: the same on all `nodes`, whose ranks share the pool; `store`: that of the node
    `me`, which may be none of them; `attached`: returns the access to the nodes, in the process that calls it;
    `decryption`: of an encrypted dataset.
    """

    def __init__(
        self,
        name: str,
        nodes: Collection[str],
        me: str,
        store: Store,
        snapshot: Snapshot,
        attached: Callable[[], Nodes],
        decryption: "Decryption | None" = None,
    ) -> None:
        self._name, self._me, self._store, self._snapshot = name, me, store, snapshot
        self._attached, self._decryption = attached, decryption
        self._placement = Placement.of_names({*nodes})

    def owners(self, files: Sequence[int]) -> list[str]:
        """The node that keeps each file."""
        identities = np.zeros((len(files), 2), "<u8")
        identities[:, 0] = files
        members = self._placement.members
        return [members[place].node for place in self._placement.owners(identities.view(np.uint8)).tolist()]

    def fetch(self, files: Sequence[int]) -> dict[int, bytes]:
        """The verified bytes of those of these files that other nodes keep and send; one request to each owner, or more
        for many bytes.
        """
        return self.ask(files)[0]

    def ask(self, files: Sequence[int]) -> tuple[dict[int, bytes], list[int]]:
        """As `fetch`; and those files that their owners would keep, if they are sent to them."""
        found, wanted = {}, []
        for owner, batch, sizes in self._of_others(files):
            with suppress(Unavailable):  # logged; the peer is avoided for a while
                to, store = self._attached(), name_on(self._name, owner)
                contents = to.peers.samples(to.peer(owner), store, batch, sizes)
                for file, stored in zip(batch, contents, strict=True):
                    if isinstance(stored, memoryview) and (content := self.opened(file, stored)) is not None:
                        found[file] = content
                    elif stored != ChunkAvailability.ELSEWHERE:  # wanted, or damaged there
                        wanted.append(file)
        return found, wanted

    def give(self, files: Iterable[int]) -> None:
        """Move files that this node has read to the nodes that keep them."""
        for owner, batch, _ in self._of_others([*files]):
            here = {file: content for file in batch if (content := self._store.read(file)) is not None}
            self._send(owner, here)
            self._store.drop(batch)

    def send(self, contents: Mapping[int, Buffer]) -> None:
        """Send files, as they are stored, to the nodes that keep them, if these are other nodes."""
        for owner, batch, _ in self._of_others([*contents]):
            self._send(owner, {file: contents[file] for file in batch})

    def _send(self, owner: str, contents: Mapping[int, Buffer]) -> None:
        with suppress(Unavailable):  # logged; they are read from their source next time
            if contents:
                to, store = self._attached(), name_on(self._name, owner)
                to.peers.keep_samples(to.peer(owner), store, [*contents], [*contents.values()])

    def _of_others(self, files: Sequence[int]) -> Iterator[tuple[str, list[int], list[int]]]:
        """Files that other nodes own, in requests: owner, files, sizes. A request has PEER_BATCH_BYTES at most, or one
        file. Files without bytes, or larger than a reply may be, stay where they are.
        """
        sizes = pooled_sizes(self._snapshot, np.array(files, np.int64)).tolist()
        by_owner: dict[str, list[tuple[int, int]]] = {}
        for file, size, owner in zip(files, sizes, self.owners(files), strict=True):
            if owner != self._me and 0 < size <= PEER_ANSWER_BYTES_MAX:
                by_owner.setdefault(owner, []).append((file, size))
        for owner, pairs in by_owner.items():
            while pairs:
                ends = np.cumsum([size for _, size in pairs[:PEER_CHUNKS_MAX]])
                count = max(int(np.searchsorted(ends, PEER_BATCH_BYTES, "right")), 1)
                batch, pairs = pairs[:count], pairs[count:]
                yield owner, [file for file, _ in batch], [size for _, size in batch]

    def stored(self, file: int, content: Buffer) -> Buffer:
        """The bytes of a file as they are stored."""
        return content if self._decryption is None else self._decryption.seal_file(file, content)

    def opened(self, file: int, stored: Buffer) -> bytes | None:
        """The inverse of `stored`; None if these are not the bytes of this file."""
        if self._decryption is not None:
            with suppress(Damaged):
                return self._decryption.open_file(file, stored)
            return None
        extents = self._snapshot.extents(file)
        places, lengths = [extent.place for extent in extents], [extent.length for extent in extents]
        damaged = first_damaged(extents, Slices(memoryview(stored), places, lengths))
        return bytes(stored) if damaged is None else None
