"""What the others notice when a node of their job is lost under load, and what another job on the same hosts does.

Readers read files at random at a pace, verify each byte, and count in tenths of a second. A node is killed, or stops
and says nothing more, at a moment that the seed says; then it is brought back. Nobody else may have a read fail.
"""

import random
import signal
import time
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path

from bench.failover_dip import AFTER_S, BACK_SHARE, BEFORE_S, dip, rates_around
from bench.failover_jobs import FILES_PER_S, NODES, READERS_EACH, ReadJob, two_jobs
from bench.figures import Aim, Quantity, Run, RunFailed, Side, Trial
from bench.scale import Scale
from lab.job import JobNode
from lab.load import verdict_of
from lab.network import Unsuitable
from lab.reader import BIN_S, Moment

BACK_AIM = Aim(Quantity.DURATION_S, 5.0)
SEED = 1
WAYS = {"killed": signal.SIGKILL, "silent": signal.SIGSTOP}
CALM = "nobody is lost"
MOMENT_MAX_S = 0.5
"""Up to so much later than it could be, a node is lost."""


def failover(folder: Path, scale: Scale) -> Generator[Trial]:
    """Half of the kills of each way; and before, half as often as each, the same without a loss."""
    title = f"Until {BACK_SHARE:.0%} of the rate, {NODES} nodes with {READERS_EACH} readers of {FILES_PER_S:g} files/s"
    rounds = max(scale.kills // len(WAYS), 1)
    try:
        with two_jobs() as jobs:
            losses = _Losses(*jobs)
            calm = [Side(CALM, partial(losses.watch, None), 1, "")]
            yield Trial(title, calm, rounds=max(rounds // 2, 1))
            sides = [
                Side(name, partial(losses.watch, how), 1, "", aim=BACK_AIM) for name, how in WAYS.items()
            ]
            yield Trial(title, sides, rounds)
    except Unsuitable as error:
        yield Trial(title, [], rounds=0, left_out=dict.fromkeys(WAYS, str(error)))


class _Losses:
    """One loss after the other; each is another node, at another moment."""

    def __init__(self, losing: ReadJob, keeping: ReadJob) -> None:
        self._losing = losing
        self._keeping = keeping
        self._chance = random.Random(SEED)

    def watch(self, how: signal.Signals | None) -> Run:
        """Lose a node in this way, or none. Raises RunFailed if a read of the others failed, or was wrong."""
        lost = self._chance.choice(self._losing.nodes)
        others = [node for node in self._losing.nodes if node is not lost]
        time.sleep(BEFORE_S + self._chance.uniform(0, MOMENT_MAX_S))
        lost_s = time.monotonic()
        if how is not None:
            self._losing.lose(lost, how)
        time.sleep(AFTER_S + 2 * BIN_S)  # what is under way then is written down a little later
        own = self._moments(self._losing, others, lost_s)
        other = self._moments(self._keeping, self._keeping.nodes, lost_s)
        if how is not None:
            self._losing.bring_back(lost)
        return _run(own, other, lost_s)

    def _moments(self, job: ReadJob, nodes: Sequence[JobNode], lost_s: float) -> list[Moment]:
        return job.moments(nodes, lost_s - BEFORE_S)


def _run(own: Sequence[Moment], other: Sequence[Moment], lost_s: float) -> Run:
    seen = verdict_of([*own, *other])
    if seen.failures:
        raise RunFailed(f"{len(seen.failures)} of {seen.reads:,} reads failed: {seen.failures[0]}")
    series = {"its job": rates_around(own, lost_s), "another job": rates_around(other, lost_s)}
    dips = {name: dip(rates) for name, rates in series.items()}
    return Run(
        dips["its job"].back_s,
        seen={
            "lowest": dips["its job"].lowest,
            "slowest read s": verdict_of(own).worst_s,
            "another job": dips["another job"].after,
            "its lowest": dips["another job"].lowest,
            "its slowest read s": verdict_of(other).worst_s,
        },
        series={name: rates.tolist() for name, rates in series.items()},
    )
