"""The opportunistic orders of a mount, drawn when they are first requested, from what nodes hold then. No own I/O.

An order has a place for each rank, but only the ranks of this node are drawn here: those of others read their part on
their own mount. The parts of ranks follow from the names of the nodes alone.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import accumulate
from threading import Lock
from typing import NamedTuple

import numpy as np

from dieselfs.arrays import Numbers
from dieselfs.errors import InvalidInput
from dieselfs.importance.scored_files import ORDERS_KEPT
from dieselfs.shuffle.groups import GROWN_CHUNKS
from dieselfs.shuffle.listed import ListedPlan
from dieselfs.shuffle.opportunistic import Parts, ServedLog, log_ahead, log_of, served
from dieselfs.shuffle.order import Layout
from dieselfs.shuffle.plan import Plan, Share
from dieselfs.shuffle.run_log import RunLog
from dieselfs.shuffle.share_name import ShareName
from dieselfs.shuffle.spec import DEFAULT_POLICY, PlanSpec, ReaderSpec
from dieselfs.snapshot.reader import Snapshot

_log = logging.getLogger(__name__)


class KeptOrder(NamedTuple):
    """`name`: of its first reader, without start and worker; `text`: its log. For the next daemon."""

    name: str
    text: str


class _Drawn(NamedTuple):
    of: ReaderSpec  # world, batch and nodes
    plan: ListedPlan
    kept: KeptOrder


class DrawnOrders:
    """Thread-safe. An order stays as it is from its first request on, also for the next daemon."""

    def __init__(
        self,
        snapshot: Snapshot,
        layout: Callable[[bytes], Layout],
        distances: Callable[[], Numbers],
        node: str | None = None,
        left: Iterable[KeptOrder] = (),
    ) -> None:
        """`layout`: of a folder. `distances`: of the chunks now, see `cluster.holdings`; it may wait. `node`: the name
        of this one in its job. `left`: what the previous daemon has kept.
        """
        self._snapshot, self._layout, self._distances, self._node = snapshot, layout, distances, node
        self._lock = Lock()  # guards all below
        self._drawn: OrderedDict[PlanSpec, _Drawn] = OrderedDict()
        self._left = {ShareName.parse(one.name.encode()).plan: one for one in left}

    def share(self, asked: ShareName) -> Share:
        """Raises InvalidInput for skips, and for other ranks, steps or nodes than those of the first request."""
        return Share(self._of(asked).plan, asked.reader)

    def log(self, asked: ShareName) -> str:
        """What repeats the parts of the ranks of this node, as `RunLog`. Raises as `share`."""
        return self._of(asked).kept.text

    def _of(self, asked: ShareName) -> _Drawn:
        spec, reader = asked.plan, asked.reader
        if spec.skips.end:
            raise InvalidInput("an opportunistic order has no skips: leave out skip=")
        of = ReaderSpec(0, reader.world, reader.batch or reader.world, nodes=reader.nodes)
        with self._lock:
            found = self._drawn.get(spec)
            if found is None:
                found = self._drawn[spec] = self._draw(spec, of)
                while len(self._drawn) > ORDERS_KEPT:
                    self._drawn.popitem(last=False)
        if found.of != of:
            raise InvalidInput(
                f"the order of seed {spec.seed} and epoch {spec.epoch} was drawn for other ranks: give world="
                f"{found.of.world},batch={found.of.batch} and the nodes of its first request, or another seed"
            )
        return found

    def kept(self, bytes_max: int) -> list[KeptOrder]:
        """For the next daemon: the newest, with at most `bytes_max` of text."""
        with self._lock:
            orders = [*self._left.values(), *(one.kept for one in self._drawn.values())][::-1]
        sizes = accumulate(len(one.name) + len(one.text) for one in orders)
        return [one for one, size in zip(orders, sizes, strict=True) if size <= bytes_max]

    def _draw(self, spec: PlanSpec, of: ReaderSpec) -> _Drawn:
        plan = Plan(self._snapshot, replace(spec, policy=DEFAULT_POLICY), self._layout(spec.folder))
        left = self._left.pop(spec, None)
        run = None if left is None else self._left_by(left, plan)
        if left is not None and run is not None:
            of = ShareName.parse(left.name.encode()).reader
        else:
            run = RunLog(of.batch or 1, self._logs(plan, of))
        names = [_files_of(plan, log) for log in run.logs]
        nodes = np.concatenate(names)[run.places(len(plan))]
        kept = KeptOrder(str(ShareName(spec, of)), str(run))
        return _Drawn(of, ListedPlan(self._snapshot, nodes.astype(np.int64), spec=spec), kept)

    def _left_by(self, left: KeptOrder, plan: Plan) -> RunLog | None:
        try:
            run = RunLog.parse(left.text)
            run.check(plan)
            return run
        except InvalidInput as error:
            _log.warning("an order of the previous daemon is drawn again: %s", error)
            return None

    def _logs(self, plan: Plan, of: ReaderSpec) -> tuple[ServedLog, ...]:
        distances, group = self._distances(), plan.spec.group_chunks
        mixed_chunks = GROWN_CHUNKS if group is None else group
        logs = []
        for rank in range(of.world):
            reader = ReaderSpec(rank, of.world, nodes=of.nodes)
            is_own = not of.nodes or of.nodes[rank * len(of.nodes) // of.world] == self._node
            logs.append(
                log_ahead(plan, reader, distances, mixed_chunks)
                if is_own
                else log_of(plan.cursor(0).snapshot, plan.spec, reader, ())
            )
        return tuple(logs)


def _files_of(plan: Plan, log: ServedLog) -> Numbers:
    """The files of a rank: as it draws them, or in any order if it is of another node. Shape (n,)."""
    parts = Parts.of(plan, ReaderSpec(log.rank, log.world, nodes=log.nodes))
    if log.arrivals:
        return served(parts, log).nodes
    return np.concatenate([np.empty(0, np.int64), *parts.nodes.values()])
