"""Keeps the progress of a mount for the next daemon: its plans, pinned chunks, control files and scores. This module
writes memory files.
"""

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import trio

from dieselfs.arrays import Nodes
from dieselfs.errors import DieselfsError, InvalidInput
from dieselfs.importance.score_lines import LossBatch
from dieselfs.importance.scored_files import ORDERS_KEPT, OrderKey, ScoredFiles
from dieselfs.limits import MIB
from dieselfs.shuffle.listed import ListedOrder
from dieselfs.shuffle.plan import Share
from dieselfs.shuffle.share_name import ShareName
from dieselfs.shuffle.spec import PlanSpec
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.daemon.drawn_orders import DrawnOrders, KeptOrder
from dieselfs_client.mount.control.tree import ControlFile, ControlTree
from dieselfs_client.prefetch.prefetcher import Prefetcher
from dieselfs_client.supervision.status import MemoryFile

if TYPE_CHECKING:  # imported in a job alone
    from dieselfs_client.cluster.job_scores import JobScores

HANDOVER_INTERVAL_S = 1.0
"""Progress of plans since the last write is lost if the daemon dies."""
HANDOVER_BYTES_MAX = 8 * MIB
"""Limit of what is handed over without the scores; if there is more, the next daemon starts without it."""
HANDOVER_STATE, SCORES = "handover_state", "scores"
"""Names of the memory files at the supervisor."""
_LENGTH_BYTES = 8

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlanProgress:
    """A reader of a plan: the name of its share (`ShareName`), and the position up to which it has read everything."""

    name: str
    position: int


class HandoverEntries(NamedTuple):
    """All that is handed over. `pinned`: numbers of chunks; `files`: those of the control tree; `orders`: those that
    were drawn from what was in memory.
    """

    readings: Sequence[PlanProgress] = ()
    pinned: Sequence[int] = ()
    files: Sequence[ControlFile] = ()
    orders: Sequence[KeptOrder] = ()


def encode_handover(entries: HandoverEntries) -> bytes:
    """For `parse_handover`. Copies no chunk numbers, of which there may be many thousand."""
    return json.dumps(entries._asdict(), default=asdict).encode()


def parse_handover(data: bytes) -> HandoverEntries:
    """What a daemon wrote; empty if it was killed while it wrote."""
    try:
        found: Any = json.loads(data)
        return HandoverEntries(
            [PlanProgress(**reading) for reading in found["readings"]],
            [*map(int, found["pinned"])],
            [ControlFile(**file) for file in found["files"]],
            [KeptOrder(*order) for order in found.get("orders", ())],
        )
    except (ValueError, KeyError, TypeError, OverflowError):
        return HandoverEntries()


class KeptScores:
    """Thread-safe. The next daemon has all scores but those of the last moment, and every order that a reader got."""

    def __init__(self, snapshot: Snapshot, file: MemoryFile | None, job: "JobScores | None" = None) -> None:
        """`job`: the scores of all mounts of the job."""
        self.files = ScoredFiles(snapshot) if job is None else job.files
        self._scores = self.files if job is None else job
        self._snapshot, self._file = snapshot, file
        self._lock = Lock()  # guards the file, and the number and the orders below
        self._kept = 0
        self._orders: OrderedDict[OrderKey, tuple[Nodes, ListedOrder]] = OrderedDict()
        if file is not None and len(content := file.read()) > _LENGTH_BYTES:
            try:
                length = int.from_bytes(content[:_LENGTH_BYTES], "little")
                self.files.load(content[_LENGTH_BYTES : _LENGTH_BYTES + length])
            except InvalidInput as error:  # the previous daemon was killed while it wrote
                _log.warning("the scores of the previous daemon are lost: %s", error)

    def drawn(self, spec: PlanSpec, files: Nodes) -> ListedOrder:
        """The order of an epoch (`policies.Losses`), the same for all readers. It is kept before it is returned."""
        key = OrderKey(spec.folder, spec.seed, spec.epoch)
        nodes = self._scores.order(key, files)
        self.keep()
        with self._lock:
            drawn, order = self._orders.get(key, (None, None))
            if order is None or drawn is not nodes:
                order = ListedOrder(self._snapshot, nodes.astype(np.int64))
                self._orders[key] = nodes, order
                while len(self._orders) > ORDERS_KEPT:
                    self._orders.popitem(last=False)
            return order

    def take(self, batch: LossBatch) -> None:
        """As `ScoredFiles.take`."""
        self._scores.take(batch)

    @property
    def is_changed(self) -> bool:
        return self._file is not None and self.files.changes != self._kept

    def keep(self) -> None:
        """Write what has changed."""
        with self._lock:
            changes = self.files.changes
            if self._file is not None and changes != self._kept:
                content = self.files.encode()
                self._file.write(len(content).to_bytes(_LENGTH_BYTES, "little") + content)
                self._kept = changes


class Handover(NamedTuple):
    """The memory files with what the previous daemon has left. `scores`: None if the scores are not kept."""

    state: MemoryFile
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
        orders: Callable[[Sequence[KeptOrder]], DrawnOrders],
        scores: "JobScores | None" = None,
    ) -> None:
        """`orders`: makes the opportunistic orders, from those of the previous daemon."""
        self.scores = KeptScores(snapshot, handover.scores, scores)
        self._snapshot = snapshot
        self._state = handover.state
        self._prefetcher = prefetcher
        self._control = control
        self._share = share
        self._left = parse_handover(handover.state.read(HANDOVER_BYTES_MAX))
        self.orders = orders(self._left.orders)
        self._unresumed = [*self._left.readings]  # of the previous daemon
        control.inherit(self._left.files)

    def write(self) -> None:
        """Write all but the scores, unless it has more than HANDOVER_BYTES_MAX."""
        readings = [
            PlanProgress(str(ShareName.of(share)), position)
            for window in self._prefetcher.windows
            for share, position in window.positions()
        ]
        pinned, files = self._prefetcher.budget.pinned(), self._control.files()
        orders = self.orders.kept(HANDOVER_BYTES_MAX // 2)
        entries = HandoverEntries([*readings, *self._unresumed], pinned, files, orders)
        content = encode_handover(entries)
        if len(content) <= HANDOVER_BYTES_MAX:
            self._state.write(content)

    async def run(self) -> None:
        """Resume the plans of the previous daemon; then write everything every HANDOVER_INTERVAL_S."""
        chunk_count = self._snapshot.chunk_count
        self._prefetcher.restore(chunk for chunk in self._left.pinned if chunk < chunk_count)
        for reading in self._left.readings:
            try:
                asked = ShareName.parse(reading.name.encode())
                # It may wait for the node with the scores of a job; an unmount does not.
                share = await trio.to_thread.run_sync(self._share, asked, abandon_on_cancel=True)
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
