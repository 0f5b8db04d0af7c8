"""Readers on the nodes of a job, who verify every byte and keep a record of how fast it goes.

with load(job.nodes, readers_each=2) as readers:
    job.nodes[3].host.kill()
    readers.wait_for_reads(job.nodes[:3], 100)
readers.verdict(job.nodes[:3])
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from lab.job import JobNode
from lab.namespace import END_TIMEOUT_S, wait_for
from lab.reader import BIN_S, Moment

PATIENCE_S = 60.0
"""Longer than any read may take."""


@dataclass(frozen=True)
class Verdict:
    """What readers saw: files that were read, the longest time that one took, and all that was not as it must be."""

    reads: int
    worst_s: float
    failures: tuple[str, ...]


@dataclass(frozen=True)
class Reader:
    """One that runs, or ran, on a node; `record` and `stop` as in `lab.reader`."""

    node: JobNode
    process: "Popen[bytes]"
    record: Path
    stop: Path

    def moments(self) -> list[Moment]:
        """What it has written down so far, in order."""
        text = self.record.read_text() if self.record.exists() else ""
        return [Moment(**json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")]


class Readers:
    """Those of one `load`."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers = readers

    def moments(self, nodes: Iterable[JobNode], since_s: float = 0.0) -> list[Moment]:
        """What those of some nodes wrote down, of what ended after a time of the monotonic clock; reader by reader."""
        chosen = set(nodes)
        return [
            moment
            for reader in self._readers
            if reader.node in chosen
            for moment in reader.moments()
            if moment.ended_s >= since_s
        ]

    def kill(self) -> None:
        """As with the host that they run on."""
        for reader in self._readers:
            reader.process.kill()

    def verdict(self, nodes: Iterable[JobNode], since_s: float = 0.0) -> Verdict:
        return verdict_of(self.moments(nodes, since_s))

    def wait_for_reads(self, nodes: Sequence[JobNode], reads: int) -> Verdict:
        """Until each reader of these nodes has begun and ended so many reads from now on; what they saw meanwhile.

        Raises AssertionError when that takes longer than PATIENCE_S.
        """
        since_s = time.monotonic()
        for reader in self._readers:
            if reader.node in nodes:

                def has_read(reader: Reader = reader) -> bool:
                    assert reader.process.poll() is None, f"{reader.node.name}: {reader.node.host.log()}"
                    later = [moment for moment in reader.moments() if moment.began_s >= since_s]
                    return sum(moment.reads for moment in later) >= reads

                wait_for(has_read, f"{reader.node.name} has read {reads} files", PATIENCE_S)
        return self.verdict(nodes, since_s)


@contextmanager
def load(
    nodes: Sequence[JobNode], readers_each: int = 1, seed: int = 0, files_per_s: float = 0.0
) -> Iterator[Readers]:
    """So many readers on each of the nodes until the end of the block; all of them have begun to read, at this pace if
    there is one.

    Readers whose host was killed in the block are gone, and those of one that was stopped and is still must be resumed.
    """
    readers: list[Reader] = []
    stop = nodes[0].host.folder / f"stop-{time.monotonic_ns()}"
    for node in nodes:
        for number in range(readers_each):
            record = stop.with_name(f"{stop.name}-{node.name}-{number}")
            own_seed = seed * 1000 + len(readers)
            places: list[str | Path] = [node.place, record, stop]
            numbers = [str(own_seed), str(files_per_s)]
            process = node.host.start([sys.executable, "-m", "lab.reader", *places, *numbers])
            readers.append(Reader(node, process, record, stop))
    loaded = Readers(readers)
    try:
        loaded.wait_for_reads(nodes, 1)
        yield loaded
    finally:
        stop.touch()
        for reader in readers:
            reader.process.wait(END_TIMEOUT_S + PATIENCE_S)


def verdict_of(moments: Iterable[Moment]) -> Verdict:
    reads, worst_s, failures = 0, 0.0, []
    for moment in moments:
        reads += moment.reads
        worst_s = max(worst_s, moment.worst_s)
        failures += moment.failures
    return Verdict(reads, worst_s, tuple(failures))


def rates(moments: Iterable[Moment], bin_s: float = BIN_S) -> list[tuple[float, float]]:
    """Files a second, over time: when each bin begins, from the first to the last, and the rate in it.

    What a reader wrote down counts when it did: while it waited for a long read, it had nothing.
    """
    counts: Counter[int] = Counter()
    for moment in moments:
        counts[int(moment.ended_s / bin_s)] += moment.reads
    if not counts:
        return []
    return [(number * bin_s, counts[number] / bin_s) for number in range(min(counts), max(counts) + 1)]
