"""A sampler that draws what is in memory first, of all nodes of a job: DeepIO's opportunistic order. No own I/O.

Before an epoch each rank asks where the chunks are, and draws its part: what its node holds, then what other nodes
hold, then the rest. The ranks exchange the logs of their draws. So each knows the order of all, and an epoch that was
begun continues with any number of ranks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Unpack

from dieselfs.arrays import Numbers, Positions
from dieselfs.errors import InvalidInput
from dieselfs.samples.order import PlanOrder
from dieselfs.samples.ranks import Gather, gathering, shortened
from dieselfs.samples.sampler_state import SamplerOptions, SamplerState, entry_of, job_node
from dieselfs.shuffle.assignment import HomesOf
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.run_log import RunLog, ServedPlan
from dieselfs.shuffle.skips import NO_SKIPS
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec


@dataclass(eq=False)
class ServedOrder:
    """The order of one epoch, as a `SampleOrder`: the draws of the ranks of `run`, each at the positions of its rank.

    `whole`: the samples. `draw`: makes the run at the first use; all ranks do it at the same time.
    """

    whole: PlanOrder
    draw: Callable[[PlanOrder], RunLog]
    run: RunLog | None = None
    is_listed = True

    @property
    def spec(self) -> PlanSpec:
        return self.whole.spec

    def __len__(self) -> int:
        return len(self.whole)

    def indices(self, positions: Positions) -> Numbers:
        if self.run is None:
            self.run = self.draw(self.whole)
        return self.whole.samples(self._served.names_at(positions))

    @cached_property
    def _served(self) -> ServedPlan:
        assert self.run is not None
        return ServedPlan(self.whole.plan, self.run)

    def repeating(self, run: RunLog) -> "ServedOrder":
        """The same order as in another run. Raises InvalidInput if its log is of other samples or another epoch."""
        run.check(self.whole.plan)
        return ServedOrder(self.whole, self.draw, run)

    def with_spec(self, spec: PlanSpec) -> "ServedOrder":
        """Of another epoch or seed: it is drawn at its first use."""
        whole, before = self.whole.with_spec(spec), self.spec
        is_same = (whole.spec.seed, whole.spec.epoch) == (before.seed, before.epoch)
        return ServedOrder(whole, self.draw, self.run if is_same else None)

    def homes_of(self, nodes: Sequence[str]) -> HomesOf:
        return self.whole.homes_of(nodes)

    def cursor(self, position: int) -> Cursor:
        return self.whole.cursor(position)

    def check_cursor(self, cursor: Cursor) -> None:
        self.whole.check_cursor(cursor)

    def declare(self, reader: ReaderSpec) -> None:
        """The library loads ahead what is listed, and a mount what it has drawn."""


class OpportunisticState(SamplerState):
    """As `SamplerState`, in an order that follows the memory of the nodes. All ranks make it, and begin epochs, at the
    same time: they exchange the logs of their draws.

    `group_chunks`: from this many chunks at least, besides those in memory of the node, a rank draws each sample; 0:
    from all. `assignment`: the nodes of the ranks, if the job does not name them.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        gather: Gather | None = None,
        **options: Unpack[SamplerOptions],
    ) -> None:
        """`gather`: exchanges objects between ranks, by default with torch.distributed. Raises InvalidInput, also for
        samples that are not files of one dataset.
        """
        super().__init__(dataset, batch_size, **options)
        self._gather = gathering(gather, self.world)
        nodes = self._gather(job_node(self.dataset))
        self._rank_nodes = self.nodes or (() if None in nodes else shortened(nodes))
        self.nodes = ()  # steps are cut evenly: the order has each sample at a position of its rank
        self.order = self._served(self.order)

    def _served(self, order: Any) -> ServedOrder:
        if type(order) is not PlanOrder:  # those of tokens are of parts of files
            raise InvalidInput(
                "an opportunistic order has the files of one dataset: give no mixture, and no tokens"
            )
        return ServedOrder(order, self._draw)

    def _draw(self, whole: PlanOrder) -> RunLog:
        log = whole.drawn(ReaderSpec(self.rank, self.world, self.batch_size, nodes=self._rank_nodes))
        return RunLog(self.batch_size, tuple(self._gather(log)))

    @property
    def log(self) -> str:
        """What repeats the present epoch on any machine, in `repeat`: a line for each chunk. Empty before the first
        step.
        """
        return "" if self._order.run is None else str(self._order.run)

    @property
    def _order(self) -> ServedOrder:
        assert isinstance(self.order, ServedOrder)
        return self.order

    def repeat(self, log: str) -> None:
        """Go to the start of the epoch of a log, which is read in its order. Raises InvalidInput if it is no log, or of
        another dataset, generation or choice of samples.
        """
        run = RunLog.parse(log)
        of = run.logs[0]
        skips = self._skips.get(of.epoch, NO_SKIPS)
        spec = replace(self.order.spec, seed=of.seed, epoch=of.epoch, skips=skips)
        self.order = self._order.with_spec(spec).repeating(run)
        self.position, self._is_repeating = 0, False

    def state_dict(self) -> dict[str, str]:
        """The position and the log, about 12 bytes for each chunk; after the same step it is the same on all ranks."""
        return {"opportunistic": super().state_dict()["cursor"], "log": self.log}

    def load_state_dict(self, state: Mapping[str, str]) -> None:
        """Continue from a state, in its order, with the ranks and the batch size of this sampler. Raises as
        `SamplerState.load_state_dict`, and for another log than that of the state.
        """
        cursor, log = entry_of(state, "opportunistic"), entry_of(state, "log")
        run = RunLog.parse(log) if log else None
        super().load_state_dict({"cursor": cursor})
        if run is not None:
            self.order = self._order.repeating(run)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_run": self._order.run}

    def __setstate__(self, state: dict[str, Any]) -> None:
        run = state.pop("_run")
        super().__setstate__(state)
        self.order = self._served(self.order)
        self._order.run = run
