"""Times a piece of work, and the processor seconds that it costs in each process. This module reads `/proc`."""

import os
import resource
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from bench.figures import Run

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def measure(work: Callable[[], object], processes: Mapping[str, int] | None = None) -> Run:
    """Do `work` once. `processes`: others that take part, by a name, with their descendants; this one, with
    its children, is `own`.
    """
    others = processes or {}
    before = {name: family_processor_s(process) for name, process in others.items()}
    own_s, started_s = own_processor_s(), time.perf_counter()
    work()
    duration_s = time.perf_counter() - started_s
    parts = {"own": own_processor_s() - own_s}
    for name, process in others.items():
        parts[name] = family_processor_s(process) - before[name]
    return Run(duration_s, parts)


def family_processor_s(process: int) -> float:
    """Seconds that a process and its descendants, as far as they live, have spent on processors so far, in user and
    in kernel mode.
    """
    return sum(_family_ticks(process).values()) / _TICKS_PER_S


def family_of(process: int) -> list[int]:
    """A process and its descendants, as far as they live."""
    return list(_family_ticks(process))


def _family_ticks(process: int) -> dict[int, int]:
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(folder.name))
            ticks[int(folder.name)] = int(fields[11]) + int(fields[12])
    family = {}
    ahead = [process]
    while ahead:
        member = ahead.pop()
        ahead += children.get(member, [])
        if member in ticks:
            family[member] = ticks[member]
    return family


def own_processor_s() -> float:
    """Processor seconds of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
