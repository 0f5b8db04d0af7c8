"""The state that a daemon hands over to the next one: plans in progress, pinned chunks, files of the control tree.

It is a small memory file (memfd), which the supervisor holds. This module writes and reads it.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dieselfs.limits import MIB
from dieselfs_client.mount.control.tree import ControlFile
from dieselfs_client.supervision.status import MemoryFile

HANDOVER_BYTES_MAX = 8 * MIB
"""State that a daemon hands over; if there is more, the next daemon starts without it."""


@dataclass(frozen=True, slots=True)
class PlanProgress:
    """A reader of a plan: the name of its share (`ShareName`), and the position up to which it has read everything."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class HandoverEntries:
    """All that is handed over. `pinned`: numbers of chunks; `files`: those of the control tree."""

    readings: Sequence[PlanProgress] = ()
    pinned: Sequence[int] = ()
    files: Sequence[ControlFile] = ()


class HandoverState:
    """Used by one thread. `descriptor`: the file of the previous daemon; None makes a new one."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._file = MemoryFile("dieselfs-handover", descriptor)
        self.descriptor = self._file.descriptor

    def write(self, entries: HandoverEntries) -> None:
        """Replace the content. Content above HANDOVER_BYTES_MAX is not written."""
        text = json.dumps(asdict(entries)).encode()
        if len(text) <= HANDOVER_BYTES_MAX:
            self._file.write(text)

    def read(self) -> HandoverEntries:
        """What the previous daemon wrote; empty if it was killed while it wrote."""
        length = min(os.fstat(self.descriptor).st_size, HANDOVER_BYTES_MAX)
        return parse_handover(os.pread(self.descriptor, length, 0))


def parse_handover(data: bytes) -> HandoverEntries:
    """What a daemon wrote; empty if it was killed while it wrote."""
    try:
        found: Any = json.loads(data)
        return HandoverEntries(
            [PlanProgress(**reading) for reading in found["readings"]],
            [*map(int, found["pinned"])],
            [ControlFile(**file) for file in found["files"]],
        )
    except (ValueError, KeyError, TypeError, OverflowError):
        return HandoverEntries()
