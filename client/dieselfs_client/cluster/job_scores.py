"""One set of scores for all mounts of a job. This module sends requests to other nodes.

One node has the scores, by the placement of the snapshot's digest. The others send it the losses that are written to
them, and it draws the orders, so all mounts have the same. If it leaves, the scores begin again at another node, with
the next losses.
"""

import logging
import struct
import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from math import isfinite
from threading import Lock
from typing import Any

import numpy as np
import trio

from dieselfs.arrays import Nodes, among
from dieselfs.cluster.member import Member
from dieselfs.cluster.placement import Placement
from dieselfs.columns import U32
from dieselfs.errors import DieselfsError, InvalidInput, Unavailable
from dieselfs.importance.score_lines import LossBatch
from dieselfs.importance.scored_files import ORDERS_KEPT, FoundLosses, OrderKey, ScoredFiles
from dieselfs.limits import PEER_ANSWER_BYTES_MAX, PEER_SCORES_PATIENCE_S, PEER_SCORES_TIMEOUT_S
from dieselfs.shuffle.order import Layout
from dieselfs.shuffle.spec import SEED_MAX
from dieselfs.snapshot.reader import Snapshot
from dieselfs.telemetry.registry import Registry
from dieselfs_client.cluster.job_nodes import JobNodes

UNSENT_MAX = 1 << 20
"""Losses that wait for the node that has the scores, 8 bytes each; if there are more, the oldest do not count."""
SEND_RETRY_S = 1.0
ORDER_RETRY_S = 0.2

_SUM = struct.Struct("<d")
_log = logging.getLogger(__name__)


def _pause(wait_s: float) -> None:
    """Of a thread of trio: raises trio.Cancelled if nobody waits for it any more."""
    time.sleep(wait_s)  # in a worker thread: no loop waits for it
    trio.from_thread.check_cancelled()


class JobScores:
    """`take` and `run`: in one trio thread; the others block, and are thread-safe."""

    def __init__(
        self,
        snapshot: Snapshot,
        job: JobNodes,
        metrics: Registry,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = _pause,
    ) -> None:
        """`clock`: seconds that do not fall; `sleep` waits as many."""
        self.files = ScoredFiles(snapshot)
        """The scores, if this node has them, and the last orders."""
        self._snapshot, self._job = snapshot, job
        self._clock, self._sleep = clock, sleep
        self._layout = lru_cache(ORDERS_KEPT)(lambda folder: Layout.of(snapshot, folder))
        self._unsent: deque[FoundLosses] = deque()
        self._sending = Lock()
        self._wake = trio.Event()
        self.lost = metrics.counter("importance.lost", "Losses that did not reach the node with the scores.")

    def _owner(self) -> Member | None:
        """The node that has the scores; None for this process. Raises Unavailable before this node is in the job."""
        masters = self._job.masters()
        placement = Placement.of_names(masters)
        (place,) = placement.owners(np.frombuffer(self._snapshot.digest[:16], np.uint8)).tolist()
        return masters[placement.members[place].node]

    # -- losses --------------------------------------------------------------------------------------------

    def take(self, batch: LossBatch) -> None:
        """Count the losses of a batch, here or, soon, at the node that has the scores. Raises InvalidInput."""
        self._unsent.append(self.files.found(batch))
        while sum(len(each.nodes) for each in self._unsent) > UNSENT_MAX:
            self.lost.value += self._unsent.popleft().losses
        self._wake.set()

    async def run(self) -> None:
        """Send losses as they come, until cancelled."""
        has_failed = False
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            try:
                await trio.to_thread.run_sync(self.send, abandon_on_cancel=True)
                has_failed = False
            except DieselfsError as error:
                if not has_failed:
                    _log.warning("losses wait for the node that has the scores of the job: %s", error)
                has_failed = True
                self._wake.set()
                await trio.sleep(SEND_RETRY_S)

    def send(self) -> None:
        """Send all losses that were taken. Raises Unavailable and InvalidInput; then they wait."""
        with self._sending:
            count = len(self._unsent)
            if not count:
                return
            owner = self._owner()
            some = [self._unsent[number] for number in range(count)]
            nodes = np.concatenate([each.nodes for each in some])
            scores = np.concatenate([each.scores for each in some])
            losses, loss_sum = sum(each.losses for each in some), sum(each.loss_sum for each in some)
            accuracy = ([None] + [each.accuracy for each in some if each.accuracy is not None])[-1]
            if owner is None:
                self.files.add(FoundLosses(nodes, scores, losses, loss_sum, accuracy))
            else:
                bulk = [nodes.astype(U32).tobytes(), scores.astype(U32).tobytes()]
                length = sum(map(len, bulk))
                packed = _SUM.pack(loss_sum)
                asked: dict[str, object] = {"loss_sum": packed, "losses": losses, "bulk_length": length}
                if accuracy is not None:
                    asked["accuracy"] = _SUM.pack(accuracy)
                self._job.peers.ask_aside(owner, "put_scores", asked, PEER_SCORES_TIMEOUT_S, bulk)
            for each in some:
                if self._unsent and self._unsent[0] is each:  # else it was dropped meanwhile
                    self._unsent.popleft()

    # -- orders --------------------------------------------------------------------------------------------

    def order(self, key: OrderKey, files: Nodes) -> Nodes:
        """As `ScoredFiles.order`, the same on all mounts. While the node with the scores is replaced, or leaves, the
        request is repeated for PEER_SCORES_PATIENCE_S, or until the reader or the mount is gone. Raises Unavailable,
        too.
        """
        deadline_s = self._clock() + PEER_SCORES_PATIENCE_S
        while (known := self.files.known(key)) is None:
            try:
                return self._drawn(key, files)
            except Unavailable:
                if self._clock() + ORDER_RETRY_S > deadline_s:
                    raise
                self._sleep(ORDER_RETRY_S)
        return known

    def _drawn(self, key: OrderKey, files: Nodes) -> Nodes:
        """By the node that has the scores now."""
        self.send()
        owner = self._owner()
        if owner is None:
            return self.files.order(key, files)
        asked: dict[str, object] = {"folder": key.folder, "seed": str(key.seed), "epoch": str(key.epoch)}
        asked["has_scores"] = True
        found = self._job.peers.ask_aside(
            owner, "get_order", asked, PEER_SCORES_TIMEOUT_S, bytes_max=PEER_ANSWER_BYTES_MAX
        )
        order, scores = np.split(np.frombuffer(found[: len(found) // 4 * 4], U32), [len(files)])
        if len(found) % 4 or len(order) != len(files) or len(scores) not in (0, len(files)):
            raise Unavailable(f"node {owner.node}: an order of {len(found) // 4} of {len(files)} files")
        order = order.astype(files.dtype)
        if not among(order, files).all():
            raise Unavailable(f"node {owner.node}: an order of other files")
        return self.files.adopt(key, order, files, scores)

    # -- for other nodes -----------------------------------------------------------------------------------

    def add_of_peer(self, arguments: Any, bulk: bytearray) -> None:
        """Count what another node sends (`put_scores`). Raises InvalidInput."""
        packed, of_accuracy = arguments.loss_sum, arguments.accuracy or b""
        is_sound = len(packed) == _SUM.size and len(of_accuracy) in (0, _SUM.size)
        if len(bulk) % 8 or not is_sound or not 0 <= arguments.losses <= UNSENT_MAX:
            raise InvalidInput("malformed scores")
        (loss_sum, *accuracies) = (number for (number,) in _SUM.iter_unpack(packed + of_accuracy))
        if not all(map(isfinite, (loss_sum, *accuracies))):
            raise InvalidInput(f"malformed scores: the sum of losses is {loss_sum}, accuracies {accuracies}")
        nodes, scores = np.frombuffer(bulk, U32).reshape(2, -1)
        if int(nodes.max(initial=0)) >= len(self._snapshot):
            raise InvalidInput(f"the snapshot has no entry {nodes.max()}")
        self.files.add(FoundLosses(nodes, scores, arguments.losses, loss_sum, *accuracies))

    def order_for_peer(self, arguments: Any) -> bytes:
        """The order that another node asks for (`get_order`). Raises InvalidInput, NotFound."""
        numbers = [arguments.seed, arguments.epoch]
        if not all(text.isdecimal() and len(text) <= len(str(SEED_MAX)) for text in numbers):
            raise InvalidInput("malformed order: seed and epoch are decimal numbers")
        seed, epoch = map(int, numbers)
        if max(seed, epoch) > SEED_MAX:
            raise InvalidInput(f"seed and epoch are at most {SEED_MAX}")
        files = self._layout(arguments.folder).nodes()
        if 4 * len(files) > PEER_ANSWER_BYTES_MAX:
            raise InvalidInput(
                f"an order by importance of {len(files)} files on several nodes: "
                f"at most {PEER_ANSWER_BYTES_MAX // 4}, so read folders of it"
            )
        order = self.files.order(OrderKey(arguments.folder, seed, epoch), files).astype(U32).tobytes()
        if not arguments.has_scores or 2 * len(order) > PEER_ANSWER_BYTES_MAX:
            return order
        return order + self.files.scores_at(files).astype(U32).tobytes()
