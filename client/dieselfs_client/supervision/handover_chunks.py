"""Hands the pinned chunks of a mount's daemon over to the next one, as descriptors.

The supervisor holds them. After a crash or an upgrade the node has the same chunks in memory, and fetches none of them
again. Their bytes were verified before, and are sealed.
"""

import logging
import os
from collections.abc import Iterator

from dieselfs.chunk.segment import Segment
from dieselfs.errors import DieselfsError
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.supervision.kept_descriptors import CHUNK
from dieselfs_client.supervision.supervisor_client import SupervisorClient

_log = logging.getLogger(__name__)


class HandoverChunks:
    """Used from one trio thread."""

    def __init__(self, supervisor_client: SupervisorClient, snapshot: Snapshot) -> None:
        """Takes the chunks of the previous daemon out of `supervisor_client.inherited`."""
        self._supervisor_client = supervisor_client
        self._snapshot = snapshot
        # Names have the digest: in another snapshot the same number is another chunk.
        self._prefix = f"{CHUNK}{snapshot.digest.hex()}-"
        names = [name for name in supervisor_client.inherited if name.startswith(CHUNK)]
        self._left = {name: supervisor_client.inherited.pop(name) for name in names}

    def take(self) -> Iterator[tuple[int, Segment]]:
        """The chunks of the previous daemon, each once. The caller passes each to `keep` again, or to `drop`."""
        while self._left:
            name, descriptor = self._left.popitem()
            if not name.startswith(self._prefix):
                self._refuse(name, descriptor)
                continue
            chunk = int(name.removeprefix(self._prefix))
            try:
                segment = Segment.adopt(descriptor, self._snapshot.chunk_payload_length(chunk))
            except DieselfsError as error:
                _log.warning(
                    "cannot take over a chunk of the previous daemon, which is fetched again: %s", error
                )
                self.drop(chunk)
                continue
            yield chunk, segment

    def renounce(self) -> None:
        """Drop all chunks of the previous daemon: another process is the node master."""
        while self._left:
            self._refuse(*self._left.popitem())

    def keep(self, chunk: int, segment: Segment) -> None:
        """Keep a chunk for the next daemon."""
        self._supervisor_client.tell("keep", f"{self._prefix}{chunk}", segment.descriptor, segment)

    def drop(self, chunk: int) -> None:
        """Stop keeping a chunk."""
        self._supervisor_client.tell("drop", f"{self._prefix}{chunk}")

    def _refuse(self, name: str, descriptor: int) -> None:
        os.close(descriptor)
        self._supervisor_client.tell("drop", name)
