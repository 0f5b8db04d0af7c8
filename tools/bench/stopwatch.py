"""Times a piece of work, and the processor seconds that it costs in each process. This module reads `/proc`."""

import os
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.figures import Run

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def measure(work: Callable[[], object], processes: Mapping[str, int] | None = None) -> Run:
    """Do `work` once. `processes`: others that take part, by a name; this one, with its children, is `own`."""
    others = processes or {}
    before = {name: processor_s(process) for name, process in others.items()}
    own_s, started_s = _own_processor_s(), time.perf_counter()
    work()
    duration_s = time.perf_counter() - started_s
    parts = {"own": _own_processor_s() - own_s}
    for name, process in others.items():
        parts[name] = processor_s(process) - before[name]
    return Run(duration_s, parts)


def processor_s(process: int) -> float:
    """Seconds that a process has spent on processors so far, in user and in kernel mode."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _own_processor_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
