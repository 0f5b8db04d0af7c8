"""One round of a mirror: what its origin has is stored at the servers of this session, and then shown whole. This
module waits for sockets, and starts threads.

Chunks keep their IDs and payloads, and get a header without entries; so the snapshot of the origin is valid here, with
its digest and the signature of its servers. An encrypted dataset stays encrypted: names and bytes are copied as they
are, with the record of the key, which no site can use.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np

from dieselfs.chunk.builder import SealedChunk
from dieselfs.dataset.dataset import Dataset, connect_with
from dieselfs.encryption.key_record import KeyRecord
from dieselfs.errors import InvalidInput, NotFound
from dieselfs.names import SCHEME, Location
from dieselfs.records import DatasetRecord
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.records import MirrorRecord
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.site_copy import FETCHES, pinned

CHUNKS_AT_ONCE = 64
"""Chunks that are given to threads at a time; then the pin of the origin is renewed."""
_FIRST_BYTE = np.array([(0, 1)], np.uint32)


class Mirroring:
    """Rounds of one mirror. `done_bytes` of `total_bytes` is the progress of a round, for any thread."""

    def __init__(self, session: Session, place: Location) -> None:
        self._here = session
        self._origin = session.at(place.remote)
        self._place = place
        self._key_id = b""
        self.done_bytes = self.total_bytes = 0

    @property
    def name(self) -> str:
        """Of the origin, in the record of the mirror."""
        return f"{self._place.remote}:{self._place.state}"

    def round(self) -> MirrorRecord:
        """Show the newest generation of the origin, or of the tag. Interrupted, the last one stays, and the next round
        continues.

        Raises Unavailable, NotFound; InvalidInput for what cannot be mirrored; Damaged for wrong bytes from the origin.
        """
        place, client, here = self._place, self._origin.client, self._here.client
        record, newest = client.dataset(place.dataset), 0
        if place.tag:
            newest = next((tag.generation for tag in client.tags(place.dataset) if tag.name == place.tag), 0)
            if not newest:
                raise NotFound(f"{place}: there is no such tag")
        _ensure(here, record)
        # First: a promoted mirror is refused here, and keeps its keys.
        state = here.keep_mirror(place.dataset, self.name, newest or record.generation)
        self._keep_keys(client.keys(place.dataset))
        if state.generation == state.newest:
            return state
        with closing(_sealed(self._origin, place.state)) as data:
            with pinned(data) as renew_pin:
                self._store(data, self._shown(state), renew_pin)
            return here.put_mirror(place.dataset, data.snapshot.content)

    def _keep_keys(self, content: bytes) -> None:
        """The record of the key is that of the origin, also when recipients come and go, or the key is destroyed."""
        here, name = self._here.client, self._place.dataset
        if (present := here.keys(name)) != content:
            here.put_keys(name, content, present)
        self._key_id = KeyRecord.decode(content).key_id if content else b""

    def _shown(self, state: MirrorRecord) -> set[bytes]:
        """IDs of the chunks that the mirror has for certain."""
        if not state.generation:
            return set()
        with closing(_sealed(self._here, state.dataset)) as data:
            return {data.snapshot.chunk_id(chunk) for chunk in range(data.snapshot.chunk_count)}

    def _store(self, data: Dataset, known: set[bytes], renew_pin: Callable[[], None]) -> None:
        """Store the chunks that are not here."""
        tree = data.snapshot
        missing = [chunk for chunk in range(tree.chunk_count) if tree.chunk_id(chunk) not in known]
        self.done_bytes, self.total_bytes = 0, sum(map(tree.chunk_payload_length, missing))
        threads = ThreadPoolExecutor(FETCHES, "dieselfs-mirror")
        try:
            for start in range(0, len(missing), CHUNKS_AT_ONCE):
                renew_pin()
                for length in threads.map(
                    lambda n: self._put(data, n), missing[start : start + CHUNKS_AT_ONCE]
                ):
                    self.done_bytes += length
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def _put(self, data: Dataset, chunk: int) -> int:
        """Store a chunk, unless an interrupted round has; the server compares all with the snapshot at the end."""
        tree, here = data.snapshot, self._here.client
        chunk_id, name = tree.chunk_id(chunk), tree.dataset
        try:
            here.ranges(name, chunk_id, _FIRST_BYTE)
        except NotFound:
            sealed = SealedChunk((), b"", bytes(data.chunks.fetch_chunk(chunk)))
            parts = sealed.encode(chunk_id, name, tree.header.dataset_id, 1)
            here.put_chunk(name, chunk_id, parts, self._key_id)
        return tree.chunk_payload_length(chunk)


def _sealed(session: Session, state: str) -> Dataset:
    """A dataset, read as its servers have it."""
    data = connect_with(session.settings(), state)
    data.client.leave_sealed(data.name)
    return data


def _ensure(here: ServerClient, origin: DatasetRecord) -> None:
    """Make the dataset of a mirror. Raises InvalidInput if another dataset has its name."""
    try:
        found = here.dataset(origin.name)
    except NotFound:
        found = here.create_dataset(origin.name, origin.dataset_id)
    if found.dataset_id != origin.dataset_id:
        raise InvalidInput(
            f"{SCHEME}{origin.name} is another dataset here: a mirror needs the name of its origin"
        )
