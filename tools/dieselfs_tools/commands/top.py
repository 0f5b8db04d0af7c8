"""`dlcmd top`: what the mounts, cache daemons and servers of this node do."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import islice
from typing import TYPE_CHECKING

import click

from dieselfs.errors import InvalidInput
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs.telemetry.activity import Activity, ServerActivity
    from dieselfs_tools.observe.watching import Seen

TOP_INTERVAL_S = 2.0
FILE_COLUMNS = 160
"""The width of the tables in a file or a pipe."""


@options.verb("top", "dlcmd top", "dlcmd top --once --json")
@click.option(
    "--interval", type=options.DURATION, default=TOP_INTERVAL_S, help="Time between two views. [2s]"
)
@options.flag("--nodes", "has_nodes", text="Also the other nodes of the jobs of this machine.")
@click.option("--once", is_flag=True, help="Watch for one interval, print it, and end.")
def top(session: Session, interval: float, has_nodes: bool, once: bool) -> int:
    """Watch your mounts, cache daemons and servers on this machine: rates, waits, memory and plans.

    For root, those of all users. The first view is of the time since their start. Ctrl-C ends it.
    """
    from dieselfs.telemetry.socket import published
    from dieselfs_tools.observe.watching import watched, with_nodes

    read = with_nodes if has_nodes else published
    if interval <= 0:
        raise InvalidInput("--interval needs a time, for example 2s")
    if once:
        seen = next(islice(watched(interval, read), 1, None))
        _print(session.output, seen)
        return session.output.summary("", {"processes": len(seen)})
    with suppress(KeyboardInterrupt):  # how it ends
        if session.output.is_json:
            for seen in watched(interval, read):
                _print(session.output, seen)
        else:
            _watch(watched(interval, read))
    return session.output.summary("", {})


def _unmounted(seen: "Seen") -> list[bool]:
    """For each daemon, whether it only serves open files of an earlier mount of its path, until these are closed.

    Known of those on this machine, in the mount namespace of this process.
    """
    from dieselfs_client.daemon import control

    here: dict[int, Activity | ServerActivity] = {}
    for each in seen:
        here.setdefault(
            each.process, each
        )  # other nodes of a job follow, with the process here that asked them
    places = {
        process: each.about.get("mountpoint", "") for process, each in here.items() if _shares_mounts(process)
    }
    several = {place for place, count in Counter(places.values()).items() if place and count > 1}
    serving = {place: control.daemon_at(place) for place in several}
    return [
        here[each.process] is each and serving.get(places.get(each.process, "")) not in (None, each.process)
        for each in seen
    ]


def _shares_mounts(process: int) -> bool:
    from dieselfs_client.supervision.status import shares_mounts

    with suppress(OSError):  # it has ended
        return shares_mounts(f"/proc/{process}")
    return False


def _shown(seen: "Seen") -> "Seen":
    """With a mark for people on the mount point of each daemon that is `_unmounted`."""
    return [
        replace(each, about={**each.about, "mountpoint": f"{each.about['mountpoint']} (unmounted)"})
        if is_unmounted
        else each
        for each, is_unmounted in zip(seen, _unmounted(seen), strict=True)
    ]


def _watch(views: "Iterator[Seen]") -> None:
    from rich.live import Live

    from dieselfs_tools.observe.activity_tables import tables

    with Live(auto_refresh=False, screen=True) as live:
        for seen in views:
            live.update(tables(_shown(seen)), refresh=True)


def _print(output: Output, seen: "Seen") -> None:
    if output.is_json:
        for each, is_unmounted in zip(seen, _unmounted(seen), strict=True):
            shown = asdict(each)
            process, about = shown.pop("process"), shown.pop("about")
            fields = {"process": process, "about": about, "is_unmounted": is_unmounted, "activity": shown}
            output.record("activity", "", fields)
        return
    from rich.console import Console

    from dieselfs_tools.observe.activity_tables import tables

    Console(width=None if sys.stdout.isatty() else FILE_COLUMNS).print(tables(_shown(seen)))
