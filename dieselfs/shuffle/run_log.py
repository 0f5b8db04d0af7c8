"""The log of all ranks of an epoch in opportunistic order, and the positions of their draws. No I/O."""

import re
from dataclasses import dataclass

import numpy as np

from dieselfs.arrays import Numbers
from dieselfs.errors import InvalidInput
from dieselfs.shuffle.opportunistic import ServedLog, log_of
from dieselfs.shuffle.partition import Partition
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.spec import ReaderSpec

RUN_MARK = "opportunistic-run1 batch="
"""How each log begins."""
_HEAD = re.compile(RUN_MARK + r"([0-9]{1,10})\n")
_LOG_STARTS = re.compile(r"^(?=opportunistic1 )", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RunLog:
    """What repeats the order of an epoch. `batch`: the samples of a step, of all ranks together; `logs`: by rank."""

    batch: int
    logs: tuple[ServedLog, ...]

    def __str__(self) -> str:
        return f"{RUN_MARK}{self.batch}\n" + "".join(map(str, self.logs))

    @classmethod
    def parse(cls, text: str) -> "RunLog":
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
