"""Keeps the progress of a mount for the next daemon: its plans, pinned chunks, control files and scores. This module
writes memory files.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from dieselfs.errors import DieselfsError
from dieselfs.shuffle.plan import Share
from dieselfs.shuffle.share_name import ShareName
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.mount.control.tree import ControlTree
from dieselfs_client.prefetch.prefetcher import Prefetcher
from dieselfs_client.supervision.handover_state import HandoverEntries, HandoverState, PlanProgress
from dieselfs_client.supervision.kept_scores import KeptScores
from dieselfs_client.supervision.status import MemoryFile

HANDOVER_INTERVAL_S = 1.0
"""Progress of plans since the last write is lost if the daemon dies."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False, slots=True)
class Handover:
    """The files with what the previous daemon has left. `scores`: None if the scores are not kept."""

    state: HandoverState = field(default_factory=HandoverState)
    scores: MemoryFile | None = None


class ProgressKeeper:
    """Used from one trio thread, except `scores`. Begins with what the previous daemon has left: the control tree has
    its files at once, and `run` resumes its plans. `share`: the share of a name; called in worker threads.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        handover: Handover,
        prefetcher: Prefetcher,
        control: ControlTree,
        share: Callable[[ShareName], Share],
    ) -> None:
        self.scores = KeptScores(snapshot, handover.scores)
        self._snapshot = snapshot
        self._state = handover.state
        self._prefetcher = prefetcher
        self._control = control
        self._share = share
        self._left = handover.state.read()
        self._unresumed = [*self._left.readings]  # of the previous daemon
        control.inherit(self._left.files)

    def write(self) -> None:
        """Write all but the scores."""
        readings = [
            PlanProgress(str(ShareName.of(share)), position)
            for window in self._prefetcher.windows
            for share, position in window.positions()
        ]
        pinned, files = self._prefetcher.budget.pinned(), self._control.files()
        self._state.write(HandoverEntries([*readings, *self._unresumed], pinned, files))

    async def run(self) -> None:
        """Resume the plans of the previous daemon; then write everything every HANDOVER_INTERVAL_S."""
        chunk_count = self._snapshot.chunk_count
        self._prefetcher.restore(chunk for chunk in self._left.pinned if chunk < chunk_count)
        for reading in self._left.readings:
            try:
                share = await trio.to_thread.run_sync(self._share, ShareName.parse(reading.name.encode()))
            except DieselfsError as error:
                _log.warning("cannot resume a plan of the previous daemon: %s", error)
            else:
                self._prefetcher.declare(share, reading.position)
            self._unresumed.remove(reading)
        while True:
            self.write()
            if self.scores.is_changed:
                await trio.to_thread.run_sync(self.scores.keep)
            await trio.sleep(HANDOVER_INTERVAL_S)
