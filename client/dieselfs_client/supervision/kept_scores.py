"""The scores of a mount's files, kept for the next daemon in a memory file, which the supervisor holds. This module
reads and writes it.
"""

import logging
import os
from collections import OrderedDict
from threading import Lock

import numpy as np

from dieselfs.arrays import Nodes
from dieselfs.errors import InvalidInput
from dieselfs.importance.scored_files import ORDERS_KEPT, POLICY, OrderKey, ScoredFiles
from dieselfs.shuffle.listed import ListedPlan
from dieselfs.shuffle.plan import Share
from dieselfs.shuffle.share_name import ShareName
from dieselfs.shuffle.spec import PlanSpec
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.subtree import files_below
from dieselfs_client.supervision.status import MemoryFile

SCORES = "scores"
"""The name of the descriptor at the supervisor."""
_LENGTH_BYTES = 8

_log = logging.getLogger(__name__)


class KeptScores:
    """Thread-safe. The next daemon has all scores but those of the last moment, and every order that a reader got."""

    def __init__(self, snapshot: Snapshot, file: MemoryFile | None) -> None:
        self.files = ScoredFiles(snapshot)
        self._snapshot, self._file = snapshot, file
        self._lock = Lock()  # guards the file, and the number and the plans below
        self._kept = 0
        self._plans: OrderedDict[OrderKey, tuple[Nodes, ListedPlan]] = OrderedDict()  # with their orders
        if file is not None and (size := os.fstat(file.descriptor).st_size) > _LENGTH_BYTES:
            content = os.pread(file.descriptor, size, 0)
            try:
                length = int.from_bytes(content[:_LENGTH_BYTES], "little")
                self.files.load(content[_LENGTH_BYTES : _LENGTH_BYTES + length])
            except InvalidInput as error:  # the previous daemon was killed while it wrote
                _log.warning("the scores of the previous daemon are lost: %s", error)

    def share(self, asked: ShareName) -> Share:
        """The share of a reader of an epoch; its order is kept before it is returned. Raises InvalidInput, NotFound."""
        spec = asked.plan
        if spec.skips.end:
            raise InvalidInput("an order by importance has no skips: leave out skip=")
        root = self._snapshot.require(spec.folder)
        if not self._snapshot.stat(root).is_folder:
            raise InvalidInput(f"{os.fsdecode(spec.folder)} is not a folder")
        files = np.sort(files_below(self._snapshot, root)).astype(np.uint32)
        key = OrderKey(spec.folder, spec.seed, spec.epoch)
        order = self.files.order(key, files)
        self.keep()
        return Share(self._plan(key, order), asked.reader)

    def _plan(self, key: OrderKey, order: Nodes) -> ListedPlan:
        """The plan of an order, the same for all readers."""
        with self._lock:
            drawn, plan = self._plans.get(key, (None, None))
            if plan is None or drawn is not order:
                spec = PlanSpec(key.seed, key.epoch, folder=key.folder, policy=POLICY)
                plan = ListedPlan(self._snapshot, order.astype(np.int64), spec=spec)
                self._plans[key] = order, plan
                while len(self._plans) > ORDERS_KEPT:
                    self._plans.popitem(last=False)
            return plan

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
