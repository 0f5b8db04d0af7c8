"""The log of all ranks of an epoch in opportunistic order, and the positions of their draws. No I/O."""

import re
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Nodes, Numbers, Positions, distinct
from dieselfs.errors import InvalidInput
from dieselfs.shuffle.opportunistic import Parts, ServedLog, log_of, served
from dieselfs.shuffle.order import nodes_of
from dieselfs.shuffle.partition import Partition
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.spec import ReaderSpec
from dieselfs.snapshot.reader import Snapshot

RUN_MARK = "opportunistic-run1 batch="
"""How each log begins."""
_HEAD = re.compile(RUN_MARK + r"([0-9]{1,10})\n")
_LOG = re.compile(
    RUN_MARK.encode() + rb"[0-9]{1,10}\n(?:opportunistic1 [!-~ ]+\n(?:[0-9]{1,15} [0-9]{1,15}\n)*)+"
)
_LOG_STARTS = re.compile(r"^(?=opportunistic1 )", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RunLog:
    """What repeats the order of an epoch. `batch`: the samples of a step, of all ranks together; `logs`: by rank."""

    batch: int
    logs: tuple[ServedLog, ...]

    def __str__(self) -> str:
        return f"{RUN_MARK}{self.batch}\n" + "".join(map(str, self.logs))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises InvalidInput for any other text, or one that was truncated or changed."""
        head = _HEAD.match(text) if isinstance(text, str) else None
        if head is None:
            raise InvalidInput(
                f"not a log of a sampler in opportunistic order: it begins with {str(text)[:60]!r}"
            )
        _, *logs = _LOG_STARTS.split(text[head.end() :])
        found = cls(int(head[1]), tuple(map(ServedLog.parse, logs)))
        if not logs or str(found) != text:
            raise InvalidInput("the log of a sampler in opportunistic order was truncated or changed")
        return found

    def check(self, plan: Plan) -> None:
        """Raises InvalidInput if a log is of other files or another epoch than a chunk-wise plan."""
        for rank, log in enumerate(self.logs):
            reader = ReaderSpec(rank, len(self.logs), nodes=log.nodes)
            log.check(log_of(plan.cursor(0).snapshot, plan.spec, reader, ()))

    def places(self, total: int) -> Numbers:
        """The place of each of `total` positions in the draws of all ranks, one after the other: shape (total,)."""
        world = len(self.logs)
        readers = [ReaderSpec(rank, world, self.batch) for rank in range(world)]
        places = np.empty(total, np.int64)
        places[np.concatenate([Partition(total, reader).positions() for reader in readers])] = np.arange(
            total
        )
        return places

    @property
    def epoch(self) -> tuple[str, int, int]:
        """The snapshot, as in a cursor, the seed and the epoch."""
        return self.logs[0].snapshot, self.logs[0].seed, self.logs[0].epoch

    @property
    def digest(self) -> bytes:
        return sha256(str(self).encode()).digest()

    @classmethod
    def first_in(cls, content: bytes) -> Self:
        """The log at the start of any content. Raises InvalidInput."""
        if b"\\n" in content[: len(RUN_MARK) + 16]:  # in JSON
            content = content.replace(b"\\n", b"\n")
        found = _LOG.match(content)
        return cls.parse((content[:80] if found is None else found[0]).decode("ascii", "replace"))


@dataclass(eq=False)
class ServedPlan:
    """The files of a plan in the order of a run: the draws of its ranks, each at the positions of its rank."""

    plan: Plan
    run: RunLog
    _drawn: dict[int, npt.NDArray[Any]] = field(default_factory=dict)  # names, by rank

    @classmethod
    def of(cls, plan: Plan, run: RunLog) -> Self:
        """Raises InvalidInput if the log is of other files or another epoch."""
        run.check(plan)
        return cls(plan, run)

    @property
    def snapshot(self) -> Snapshot:
        return self.plan.snapshot

    def nodes(self, first: int, end: int) -> Nodes:
        """As `Plan.nodes`. Raises as `names_at`."""
        return nodes_of(self.names_at(np.arange(first, end)))

    def names_at(self, positions: Positions) -> npt.NDArray[Any]:
        """As `Plan.names_at`. Raises InvalidInput if a log has fewer files than its rank."""
        places = self._places[self.plan.skips.whole(positions)]
        world, total = len(self.run.logs), len(self.plan.layout)
        firsts = np.arange(world) * total // world
        ranks = np.searchsorted(firsts, places, side="right") - 1
        names = np.empty(len(places), np.uint64)
        for rank in distinct(ranks).tolist():
            is_own = ranks == rank
            names[is_own] = self._names_of(rank)[places[is_own] - firsts[rank]]
        return names

    @cached_property
    def _places(self) -> Numbers:
        return self.run.places(len(self.plan.layout))

    def _names_of(self, rank: int) -> npt.NDArray[Any]:
        found = self._drawn.get(rank)
        if found is None:
            log = self.run.logs[rank]
            parts = Parts.of(self.plan, ReaderSpec(rank, log.world, nodes=log.nodes))
            found = self._drawn[rank] = served(parts, log).nodes
            if len(found) < len(parts):
                raise InvalidInput(f"the log of rank {rank} has {len(found)} of its {len(parts)} samples")
        return found
