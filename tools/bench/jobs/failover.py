"""The rate of the other nodes, and of another job, while a node of a job is lost under load.

Two jobs are mounted on the same four hosts (two in a quick run). Readers read random files at a fixed rate and verify
each byte. A node of one job is killed or stopped at a random moment; then it returns. No read of the others may fail.
This module starts and kills processes, and mounts.
"""

import os
import random
import signal
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.harness.figures import Run, RunFailed, Scale, Side, Trial
from bench.harness.stopwatch import family_of
from dieselfs_client.supervision.status import supervision_of
from lab.cluster import Cluster, running_cluster
from lab.job import Job, JobNode, store
from lab.load import Readers, load, verdict_of
from lab.network import Network
from lab.reader import BIN_S, Moment

NODES, QUICK_NODES = 4, 2
FILES, FILE_BYTES, FILES_PER_CHUNK = 1536, 16_384, 8
MEMORY = "24MiB"
"""Of each node: the size of the dataset, mostly for owned chunks, so most reads send a request to another node."""
READERS_EACH = 2
FILES_PER_S = 20.0
"""Of each reader: below the limit, so a lost node leaves no processor time that speeds up the others."""
WAYS = {"killed": signal.SIGKILL, "silent": signal.SIGSTOP}
MOMENT_MAX_S = 0.5
"""Upper limit of the random delay of a loss."""
SEED = 1


def failover(folder: Path, scale: Scale) -> Generator[Trial]:
    """Half of the kills in each way, after half as many runs without a loss. Raises Unsuitable."""
    nodes = QUICK_NODES if scale.is_quick else NODES
    title = f"Until {BACK_SHARE:.0%} of the rate, {nodes} nodes with {READERS_EACH} readers of {FILES_PER_S:g} files/s"
    rounds, chance = max(scale.kills // len(WAYS), 1), random.Random(SEED)
    with ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(stack.enter_context(Network())))
        losing = stack.enter_context(_read_job(cluster, "losing", nodes, 0))
        keeping = stack.enter_context(_read_job(cluster, "keeping", nodes, 1000))
        watch = partial(_watch, losing, keeping, chance)
        yield Trial(title, [Side("no node is lost", partial(watch, None), 1, "")], max(rounds // 2, 1))
        yield Trial(title, [Side(name, partial(watch, how), 1, "") for name, how in WAYS.items()], rounds)


def _watch(losing: "_ReadJob", keeping: "_ReadJob", chance: random.Random, how: signal.Signals | None) -> Run:
    """Lose a node in this way, or none. Raises RunFailed if a read of the others failed or was wrong."""
    lost = chance.choice(losing.nodes)
    time.sleep(BEFORE_S + chance.uniform(0, MOMENT_MAX_S))
    lost_s = time.monotonic()
    if how is not None:
        losing.lose(lost, how)
    time.sleep(AFTER_S + 2 * BIN_S)  # a read in flight is recorded at its end
    own = losing.moments([node for node in losing.nodes if node is not lost], lost_s - BEFORE_S)
    other = keeping.moments(keeping.nodes, lost_s - BEFORE_S)
    if how is not None:
        losing.bring_back(lost)
    verdict = verdict_of([*own, *other])
    if verdict.failures:
        raise RunFailed(f"{len(verdict.failures)} of {verdict.reads:,} reads failed: {verdict.failures[0]}")
    rates = {"its job": rates_around(own, lost_s), "another job": rates_around(other, lost_s)}
    own_dip, other_dip = map(dip, rates.values())
    seen = {
        "lowest": own_dip.lowest,
        "slowest read s": verdict_of(own).worst_s,
        "another job": other_dip.after,
        "its lowest": other_dip.lowest,
        "its slowest read s": verdict_of(other).worst_s,
    }
    return Run(own_dip.back_s, seen=seen, series={name: each.tolist() for name, each in rates.items()})


class _ReadJob:
    """A job with readers on all nodes that are not lost."""

    def __init__(self, job: Job, seed: int) -> None:
        self.nodes = job.nodes
        self._job = job
        self._seed = seed
        self._loads: dict[JobNode, tuple[Readers, ExitStack]] = {}
        self._lost: list[int] = []

    def begin(self, node: JobNode) -> None:
        """Start readers on this node; returns when all have read."""
        self._seed += 1
        stack = ExitStack()
        self._loads[node] = stack.enter_context(load([node], READERS_EACH, self._seed, FILES_PER_S)), stack

    def end(self, node: JobNode) -> None:
        if node in self._loads:
            self._loads.pop(node)[1].close()

    def lose(self, node: JobNode, how: signal.Signals) -> None:
        """Kill or stop all processes of the job on a node, readers first."""
        supervision = supervision_of(str(node.place))
        if supervision is None:
            raise RunFailed(f"{node.name} is not mounted")
        self._loads[node][0].kill()
        self._lost = family_of(supervision.supervisor)
        self._signal(signal.SIGSTOP)  # so that none replaces another
        self._signal(how)

    def bring_back(self, node: JobNode) -> None:
        self._signal(signal.SIGKILL)
        self.end(node)
        self._job.mount(node)
        self.begin(node)

    def moments(self, nodes: Sequence[JobNode], since_s: float) -> list[Moment]:
        return [moment for node in nodes for moment in self._loads[node][0].moments([node], since_s)]

    def _signal(self, how: signal.Signals) -> None:
        for process in self._lost:
            with suppress(ProcessLookupError):
                os.kill(process, how)


@contextmanager
def _read_job(cluster: Cluster, name: str, nodes: int, seed: int) -> Iterator[_ReadJob]:
    """Mounted on all hosts, complete, with readers. Raises Unsuitable."""
    there = {host.name: host for host in cluster.net.hosts}
    names = [f"node-{number}" for number in range(nodes)]
    hosts = [there.get(each) or cluster.net.host(each) for each in names]
    stored = store(cluster, hosts[0], name, FILES, FILE_BYTES, FILES_PER_CHUNK)
    with Job(name, cluster, stored.name, hosts, memory=MEMORY) as job:
        job.mount()
        job.wait_until_complete()
        read_job = _ReadJob(job, seed)
        with ExitStack() as stack:
            for node in job.nodes:
                stack.callback(read_job.end, node)
                read_job.begin(node)
            yield read_job


# -- how far a rate falls, and when it recovers: no I/O ---------------------------------------------------

BEFORE_S, AFTER_S = 1.5, 6.0
"""The window around the loss."""
BACK_SHARE = 0.9
SMOOTHED_BINS = 10
"""Rates are means over a second: a tenth has too few files."""

Rates = npt.NDArray[np.float64]
"""Files a second in each tenth of a second, from BEFORE_S before the loss to AFTER_S after it."""


@dataclass(frozen=True, slots=True)
class Dip:
    """Relative to the mean rate before the loss: `lowest`: the minimum after it; `after`: the mean after it; `back_s`:
    from the loss to the last rate below BACK_SHARE, or a tenth.
    """

    lowest: float
    after: float
    back_s: float


def rates_around(moments: Iterable[Moment], lost_s: float) -> Rates:
    """The sum over all readers. `lost_s`: time of the loss, by the clock of the moments."""
    edges = lost_s + np.linspace(-BEFORE_S, AFTER_S, round((BEFORE_S + AFTER_S) / BIN_S) + 1)
    rates = np.zeros(len(edges) - 1)
    for moment in moments:
        # Reads count in the last tenth of a moment: one long read may precede them.
        began_s = max(moment.began_s, moment.ended_s - BIN_S)
        inside_s = np.clip(edges, began_s, moment.ended_s)
        rates += np.diff(inside_s) / (moment.ended_s - began_s) * moment.reads
    return rates / BIN_S


def dip(rates: Rates) -> Dip:
    """Raises RunFailed if nothing was read before the loss."""
    lost = round(BEFORE_S / BIN_S)
    before = float(rates[:lost].mean())
    if not before:
        raise RunFailed("nothing was read before the loss")
    after = smoothed(rates)[lost:] / before
    low = np.flatnonzero(after < BACK_SHARE)
    back_s = float(low[-1] + 1) * BIN_S if len(low) else BIN_S
    return Dip(float(after.min()), float(rates[lost:].mean()) / before, back_s)


def smoothed(rates: Rates) -> Rates:
    """Each tenth as the mean of the second around it, shorter at the ends."""
    kernel = np.ones(SMOOTHED_BINS)
    return np.convolve(rates, kernel, "same") / np.convolve(np.ones_like(rates), kernel, "same")


def shares(rates: Sequence[float]) -> Rates:
    """Rates divided by the mean before the loss."""
    given = np.array(rates)
    before: float = given[: round(BEFORE_S / BIN_S)].mean()
    return given / before
