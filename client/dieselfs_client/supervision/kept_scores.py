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
from dieselfs.importance.scored_files import ORDERS_KEPT, OrderKey, ScoredFiles
from dieselfs.shuffle.listed import ListedOrder
from dieselfs.shuffle.spec import PlanSpec
from dieselfs.snapshot.reader import Snapshot
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
        self._lock = Lock()  # guards the file, and the number and the orders below
        self._kept = 0
        self._orders: OrderedDict[OrderKey, tuple[Nodes, ListedOrder]] = OrderedDict()
        if file is not None and (size := os.fstat(file.descriptor).st_size) > _LENGTH_BYTES:
            content = os.pread(file.descriptor, size, 0)
            try:
                length = int.from_bytes(content[:_LENGTH_BYTES], "little")
                self.files.load(content[_LENGTH_BYTES : _LENGTH_BYTES + length])
            except InvalidInput as error:  # the previous daemon was killed while it wrote
                _log.warning("the scores of the previous daemon are lost: %s", error)

    def drawn(self, spec: PlanSpec, files: Nodes) -> ListedOrder:
        """The order of an epoch (`policies.Losses`), the same for all readers. It is kept before it is returned."""
        key = OrderKey(spec.folder, spec.seed, spec.epoch)
        nodes = self.files.order(key, files)
        self.keep()
        with self._lock:
            drawn, order = self._orders.get(key, (None, None))
            if order is None or drawn is not nodes:
                order = ListedOrder(self._snapshot, nodes.astype(np.int64))
                self._orders[key] = nodes, order
                while len(self._orders) > ORDERS_KEPT:
                    self._orders.popitem(last=False)
            return order

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
