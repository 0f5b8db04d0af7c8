"""Time and processor seconds of some work, for each process. This module reads `/proc`."""

import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.harness.figures import Run

Processes = Mapping[str, Iterable[int]]
"""Process IDs by name; descendants count too."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def measure(work: Callable[[], object], processes: Processes | None = None) -> Run:
    """Do `work` once. `processes`: others that take part; `own`: this one and its children."""
    before = processor_s(processes or {})
    own_s, started_s = own_processor_s(), time.perf_counter()
    work()
    duration_s = time.perf_counter() - started_s
    return Run(duration_s, {"own": own_processor_s() - own_s, **spent_since(before, processes or {})})


@contextmanager
def beside() -> Iterator[dict[str, float]]:
    """What the machine does during the block: its load before and after, processor seconds that its host took, and the
    length of the block."""
    machine = {"load_before": os.getloadavg()[0]}
    before_s, started_s = _stolen_s(), time.perf_counter()
    yield machine
    machine["load_after"] = os.getloadavg()[0]
    machine["stolen_s"] = _stolen_s() - before_s
    machine["took_s"] = time.perf_counter() - started_s


def _stolen_s() -> float:
    """Of all processors, since the start of the machine."""
    return int(Path("/proc/stat").read_text().split(maxsplit=9)[8]) / _TICKS_PER_S


def processor_s(processes: Processes) -> dict[str, float]:
    """User and system time of processes and their living descendants, by name."""
    if not processes:
        return {}
    children, ticks = _processes()
    return {
        name: sum(ticks.get(each, 0) for process in family for each in _family(process, children))
        / _TICKS_PER_S
        for name, family in processes.items()
    }


def spent_since(before: Mapping[str, float], processes: Processes) -> dict[str, float]:
    return {name: now_s - before[name] for name, now_s in processor_s(processes).items()}


def family_of(process: int) -> list[int]:
    """A process and its living descendants."""
    children, ticks = _processes()
    return [each for each in _family(process, children) if each in ticks]


def _family(process: int, children: Mapping[int, list[int]]) -> list[int]:
    family = [process]
    for member in family:  # grows meanwhile
        family += children.get(member, [])
    return family


def _processes() -> tuple[dict[int, list[int]], dict[int, int]]:
    """Of all processes: children and spent ticks."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(folder.name))
            ticks[int(folder.name)] = int(fields[11]) + int(fields[12])
    return children, ticks


def own_processor_s() -> float:
    """Of this process and its ended children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
