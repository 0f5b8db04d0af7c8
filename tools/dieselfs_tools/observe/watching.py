"""Watches the daemons of this node: reads their metrics again and again. This module reads sockets, and waits."""

import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from dieselfs.errors import NotFound
from dieselfs.telemetry.activity import Activity, ServerActivity, activity
from dieselfs.telemetry.registry import Report
from dieselfs.telemetry.socket import of_nodes, published

Seen = list[Activity | ServerActivity]


def not_found(place: str, command: str) -> NotFound:
    """The error that no daemon tells what it does for a mount, or a job, which `command` asked for."""
    from dieselfs_client.mount.points.mount_table import mount_at

    mount = mount_at(place)
    if mount is not None and mount.is_dieselfs and os.geteuid() != 0:
        return NotFound(
            f"{place}: the daemon of this mount is another user's, or does not answer; run as that user, or as root: "
            f"sudo dlcmd {command} {shlex.quote(place)}"
        )
    return NotFound(
        f"{place}: no daemon on this machine that you may ask has a mount there or a job of that name, or it does not "
        "answer; see 'dlcmd mounts'"
    )


def with_nodes(
    read: Callable[[], Iterator[tuple[int, Report]]] = published,
    ask: Callable[[int], Mapping[str, Report]] = of_nodes,
) -> Iterator[tuple[int, Report]]:
    """Those of this machine, and of the other nodes of its jobs; their process is the one here that asked them."""
    here = [*read()]
    yield from here
    known = {(report.about.get("job"), report.about.get("node")) for _, report in here}
    asked: set[str] = set()
    for process, report in here:
        job = report.about.get("job")
        if job is not None and job not in asked:
            asked.add(job)
            for node, other in ask(process).items():
                if (job, node) not in known:
                    yield process, replace(other, about={**other.about, "node": node})


def watched(
    interval_s: float,
    read: Callable[[], Iterator[tuple[int, Report]]] = published,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
) -> Iterator[Seen]:
    """What the daemons do: first since their start, then in each interval."""
    before: dict[tuple[int, str, str], tuple[float, Report]] = {}
    while True:
        seen: Seen = []
        now: dict[tuple[int, str, str], tuple[float, Report]] = {}
        for process, report in read():
            key = process, report.about.get("node", ""), report.about.get("address", "")
            now[key] = (clock(), report)
            since_s, earlier = before.get(key, (0.0, None))
            seen.append(activity(process, earlier, report, now[key][0] - since_s))
        before = now
        yield seen
        wait(interval_s)
