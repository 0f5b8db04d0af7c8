"""What the shelf of a mount's daemon leaves to the next one: descriptors of the chunks that it keeps.

The supervisor holds them. So after a crash, or an upgrade, the node has in memory what it had, and the servers
are asked for nothing of it. The bytes were verified before they were left, and are sealed.
"""

import logging
import os
from collections.abc import Iterator

from dieselfs.cache.segment import Segment
from dieselfs.errors import DieselfsError
from dieselfs.meta.snapshot import Snapshot
from dieselfs_client.supervision.guardian import Guardian
from dieselfs_client.supervision.supervisor import CHUNK

_log = logging.getLogger(__name__)


class Legacy:
    """Used from one trio thread."""

    def __init__(self, guardian: Guardian, snapshot: Snapshot) -> None:
        """Takes what the daemon before has left out of `guardian.inherited`."""
        self._guardian = guardian
        self._snapshot = snapshot
        # Chunks go by their numbers, which mean something else in another snapshot.
        self._prefix = f"{CHUNK}{snapshot.digest.hex()}-"
        names = [name for name in guardian.inherited if name.startswith(CHUNK)]
        self._left = {name: guardian.inherited.pop(name) for name in names}

    def take(self) -> Iterator[tuple[int, Segment]]:
        """The chunks that were left, each once. What is not kept again is to be dropped."""
        while self._left:
            name, descriptor = self._left.popitem()
            if not name.startswith(self._prefix):
                self._refuse(name, descriptor)
                continue
            chunk = int(name.removeprefix(self._prefix))
            try:
                segment = Segment.adopt(descriptor, self._snapshot.chunk_payload_length(chunk))
            except DieselfsError as error:
                _log.warning("a chunk of the daemon before is fetched again: %s", error)
                self.drop(chunk)
                continue
            yield chunk, segment

    def renounce(self) -> None:
        """Another process has taken this one's place: nothing of what was left is needed."""
        while self._left:
            self._refuse(*self._left.popitem())

    def keep(self, chunk: int, segment: Segment) -> None:
        """Leave a chunk to the next one."""
        self._guardian.keep(f"{self._prefix}{chunk}", segment.descriptor)

    def drop(self, chunk: int) -> None:
        """It is not on the shelf any more."""
        self._guardian.drop(f"{self._prefix}{chunk}")

    def _refuse(self, name: str, descriptor: int) -> None:
        os.close(descriptor)
        self._guardian.drop(name)
