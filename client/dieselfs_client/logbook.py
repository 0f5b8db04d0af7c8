"""What a daemon writes down for the one that takes over from it: which plans are being read, and what is kept.

It is a small file in memory without a name (memfd), which the supervisor holds. This module writes and reads it.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dieselfs.limits import LOGBOOK_BYTES_MAX
from dieselfs.meta.snapshot import Snapshot
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.order import Layout
from dieselfs.shuffle.plan import Plan, Share
from dieselfs_client.mount.control_tree import ControlFile


@dataclass(frozen=True, slots=True)
class Reading:
    """A reader of a plan: where it is (the text of a cursor), in which folder, and how positions are dealt to it."""

    cursor: str
    folder: str
    rank: int
    world: int
    batch: int
    start: int
    worker: int
    workers: int
    drop_last: bool

    @classmethod
    def of(cls, share: Share, position: int) -> "Reading":
        """A reader of this share that has read all before `position`."""
        plan = share.plan
        return cls(
            str(plan.cursor(position)),
            os.fsdecode(plan.folder),
            share.rank,
            share.world,
            share.batch,
            share.start,
            share.steps.start - share.start // share.batch,
            share.steps.step,
            share.end < len(plan),
        )

    def resumed(self, snapshot: Snapshot, layout: Layout) -> tuple[Share, int]:
        """The share again, and the position. Raises InvalidInput if it is of another snapshot."""
        cursor = Cursor.parse(self.cursor)
        share = Plan.at(snapshot, cursor, layout).share(
            self.rank, self.world, self.batch, self.start, self.worker, self.workers, self.drop_last
        )
        return share, cursor.position


@dataclass(frozen=True, slots=True)
class Entries:
    """All that is in the book. `kept`: numbers of chunks; `files`: those of the control tree."""

    readings: Sequence[Reading] = ()
    kept: Sequence[int] = ()
    files: Sequence[ControlFile] = ()


class Logbook:
    """Written and read by one thread. `descriptor` is of an earlier daemon's book; None for a new one."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = (
            os.memfd_create("dieselfs-logbook", os.MFD_CLOEXEC) if descriptor is None else descriptor
        )
        self._written = b""

    def write(self, entries: Entries) -> None:
        """Replace all that was in it; does nothing if that is the same."""
        text = json.dumps(asdict(entries)).encode()
        if text != self._written and len(text) <= LOGBOOK_BYTES_MAX:
            os.ftruncate(self.descriptor, len(text))
            os.pwrite(self.descriptor, text, 0)
            self._written = text

    def read(self) -> Entries:
        """What the daemon before wrote; nothing, if it was killed while it wrote."""
        length = min(os.fstat(self.descriptor).st_size, LOGBOOK_BYTES_MAX)
        try:
            found: Any = json.loads(os.pread(self.descriptor, length, 0))
            return Entries(
                [Reading(**reading) for reading in found["readings"]],
                [*map(int, found["kept"])],
                [ControlFile(**file) for file in found["files"]],
            )
        except (ValueError, KeyError, TypeError):
            return Entries()

    def close(self) -> None:
        os.close(self.descriptor)
