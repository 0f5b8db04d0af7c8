"""Readers on the nodes of a job, which verify every byte and record their rate."""

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from lab.job import JobNode
from lab.namespace import END_TIMEOUT_S, wait_for
from lab.reader import Moment

PATIENCE_S = 60.0
"""Longer than the longest read."""


@dataclass(frozen=True)
class Verdict:
    """Files read, the duration of the longest read, and all errors."""

    reads: int
    worst_s: float
    failures: tuple[str, ...]


@dataclass(frozen=True)
class Reader:
    """A process on a node; `record` as in `lab.reader`."""

    node: JobNode
    process: "Popen[bytes]"
    record: Path

    def moments(self) -> list[Moment]:
        """Its record so far, in order."""
        text = self.record.read_text() if self.record.exists() else ""
        return [Moment(**json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")]


@dataclass(frozen=True)
class Readers:
    """Those of one `load`."""

    readers: Sequence[Reader]

    def moments(self, nodes: Iterable[JobNode], since_s: float = 0.0) -> list[Moment]:
        """The moments of the readers of some nodes that ended after a time of the monotonic clock."""
        chosen = set(nodes)
        moments = (each for reader in self.readers if reader.node in chosen for each in reader.moments())
        return [moment for moment in moments if moment.ended_s >= since_s]

    def kill(self) -> None:
        for reader in self.readers:
            reader.process.kill()

    def verdict(self, nodes: Iterable[JobNode], since_s: float = 0.0) -> Verdict:
        return verdict_of(self.moments(nodes, since_s))

    def wait_for_reads(self, nodes: Sequence[JobNode], reads: int) -> Verdict:
        """Until each reader of these nodes has begun and ended `reads` reads from now on; raises after PATIENCE_S."""
        since_s = time.monotonic()
        for reader in self.readers:
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
    """Readers on each of the nodes until the end of the block, all of which have begun; `files_per_s`: 0 is unlimited.

    Readers of a stopped host must be resumed before the end of the block.
    """
    readers: list[Reader] = []
    stop = nodes[0].host.folder / f"stop-{time.monotonic_ns()}"
    for node in nodes:
        for number in range(readers_each):
            record = stop.with_name(f"{stop.name}-{node.name}-{number}")
            numbers = [str(seed * 1000 + len(readers)), str(files_per_s)]
            process = node.host.start(
                [sys.executable, "-m", "lab.reader", node.place, record, stop, *numbers]
            )
            readers.append(Reader(node, process, record))
    loaded = Readers(readers)
    try:
        loaded.wait_for_reads(nodes, 1)
        yield loaded
    finally:
        stop.touch()
        for reader in readers:
            reader.process.wait(END_TIMEOUT_S + PATIENCE_S)


def verdict_of(moments: Iterable[Moment]) -> Verdict:
    seen = list(moments)
    failures = (failure for moment in seen for failure in moment.failures)
    longest_s = max((moment.worst_s for moment in seen), default=0.0)
    return Verdict(sum(moment.reads for moment in seen), longest_s, tuple(failures))
