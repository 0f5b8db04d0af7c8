"""The verbs that watch a training: `top`, `why` and `report`."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dieselfs.errors import DieselfsError, InvalidInput
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import Output, replace_file
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs.shuffle.quality import ShuffleQuality
    from dieselfs.telemetry.activity import Activity, ServerActivity
    from dieselfs.telemetry.series import Recorded
    from dieselfs_tools.observe.epoch_report import EpochReport
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
        # Other nodes of a job follow, with the process here that asked them.
        here.setdefault(each.process, each)
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


WHY_S = 5.0
SINCE_MAX = 1.5
"""With `--since-start`: a server that has run for longer than this many times the mount says nothing about it."""


@options.verb("why", "dlcmd why /mnt/imagenet", "dlcmd why /mnt/imagenet --for 30s --json")
@click.argument("mountpoint", type=options.MOUNTPOINT)
@click.option(
    "--for", "duration_s", type=options.DURATION, default=WHY_S, help="Watch it for this time. [5s]"
)
@click.option("--since-start", is_flag=True, help="Take everything since the daemon was started.")
def why(session: Session, mountpoint: str, duration_s: float, since_start: bool) -> int:
    """Say in one paragraph what limits the training that reads a mount now, and the one thing to change."""
    from dieselfs.telemetry.activity import Activity, ServerActivity
    from dieselfs.telemetry.diagnosis import diagnosis
    from dieselfs_client.daemon import control
    from dieselfs_tools.observe.watching import MountServers, not_found, server_of, watched

    if duration_s <= 0:
        raise InvalidInput("--for needs a time, for example 5s")
    place = os.path.realpath(mountpoint)
    servers = MountServers(server_of(place), session.settings())
    views = watched(duration_s, servers.with_published)
    for since in (True, False):
        seen = next(views)
        mounts = [
            each for each in seen if isinstance(each, Activity) and each.about.get("mountpoint") == place
        ]
        if not mounts:
            raise not_found(place, "why")
        if since and since_start:
            break
        if since:
            session.output.aside(f"watching {place} for {duration_s:g} s ...")
    serving = control.daemon_at(place)  # that of an earlier mount may live on, for files that are still open
    mount = next((each for each in mounts if each.process == serving), mounts[0])
    here = [each for each in seen if isinstance(each, ServerActivity)]
    asked = [each for each in here if "address" in each.about]
    unknown = servers.unknown
    if since_start and any(each.seconds > SINCE_MAX * mount.seconds for each in asked or here):
        asked, here, unknown = [], [], "the server has run for longer than the mount: leave out --since-start"
    found = diagnosis(mount, asked or here, unknown)
    memory_advice = control.memory_advice_of(place)
    text = "\n".join(filter(None, (found.text, found.advice, memory_advice)))
    fields = {**asdict(found), "memory_advice": memory_advice, "activity": asdict(mount)}
    session.output.record("diagnosis", text, fields)
    return session.output.summary("", {"limit": found.limit})


@options.verb(
    "report",
    "dlcmd report /mnt/imagenet -o report.html",
    "dlcmd report /mnt/imagenet --epoch 3 --json",
)
@click.argument("subject", metavar="FOLDER|JOB")
@click.option("-o", "--out", metavar="FILE", help="Write the page to this file; atomic.")
@click.option("--epoch", type=click.IntRange(min=0), help="The number of the epoch.  [default: the latest]")
def report(session: Session, subject: str, out: str | None, epoch: int | None) -> int:
    """Show an epoch on one page: throughput, stalls, hits, order and ranks, for a mount or for a job.

    Works while the epoch is read, and as long as the mount is there: daemons keep the last hour. The page needs no
    other file, and no network. With --json, the same as numbers.
    """
    from dieselfs_tools.observe.epoch_report import epoch_report
    from dieselfs_tools.observe.report_page import fields, page

    if out is None and not session.output.is_json:
        raise InvalidInput("name the file of the page: -o report.html, or take the numbers with --json")
    name, nodes, process = _histories(subject)
    found = epoch_report(nodes, epoch)
    if others := _others(nodes, process, found):
        nodes |= others
        found = epoch_report(nodes, epoch)
    quality = _quality(nodes, found.plan["order"]) if found.plan else None
    if out is not None:
        replace_file(Path(out), page(name, found, quality))
    if session.output.is_json:
        session.output.record("epoch", "", {"subject": name, **fields(found, quality)})
    return session.output.summary("" if out is None else f"{out}: {name}", {"daemons": len(nodes)})


def _histories(subject: str) -> "tuple[str, dict[str, Recorded], int | None]":
    """The name of a mount or a job, the history of each of its daemons on this machine, and of a job the process of one
    of them, which knows the other nodes. Raises NotFound.
    """
    from dieselfs.telemetry.socket import histories
    from dieselfs_client.daemon import control
    from dieselfs_client.mount.points.mount_table import mount_at
    from dieselfs_tools.observe.watching import not_found

    place = os.path.realpath(subject)
    known = [*histories()]
    here = {process: recorded for process, recorded in known if recorded.about.get("mountpoint") == place}
    if here:
        serving = control.daemon_at(place)  # as in `why`
        return place, {place: here[serving if serving in here else min(here)]}, None
    members = [(process, recorded) for process, recorded in known if recorded.about.get("job") == subject]
    if members:
        return f"job {subject}", {_name(recorded): recorded for _, recorded in members}, members[0][0]
    raise not_found(place if mount_at(place) else subject, "report -o report.html")


def _others(nodes: "dict[str, Recorded]", process: int | None, found: "EpochReport") -> "dict[str, Recorded]":
    """The histories of the other nodes of a job in the time of an epoch."""
    from dieselfs.telemetry.socket import histories_of_nodes

    if process is None:
        return {}
    others = histories_of_nodes(process, (found.began_s, found.began_s + found.seconds)).values()
    named = {_name(recorded): recorded for recorded in others if recorded.times_s}
    return {name: recorded for name, recorded in named.items() if name not in nodes}


def _name(recorded: "Recorded") -> str:
    about = recorded.about
    place = about.get("mountpoint") or f"cache of {about.get('dataset', '')}"
    return f"{about['node']}: {place}" if "node" in about else place


def _quality(nodes: "dict[str, Recorded]", order: str) -> "ShuffleQuality | None":
    """The quality of an order; None if its snapshot is not at hand, or if it is no plan of the snapshot."""
    from dieselfs.shuffle.order import Layout
    from dieselfs.shuffle.plan import Plan
    from dieselfs.shuffle.quality import measure
    from dieselfs.shuffle.share_name import ShareName
    from dieselfs.snapshot.reader import Snapshot
    from dieselfs_client.daemon import control

    for recorded in nodes.values():
        if not recorded.about.get("mountpoint"):
            continue
        path = control.snapshot_of(recorded.about.get("mountpoint", ""))
        if path is None:
            continue
        try:
            snapshot = Snapshot.open(*path)

            def plan_of(spec: Any, snapshot: Snapshot = snapshot) -> Plan:
                return Plan(snapshot, spec, Layout.of(snapshot, spec.folder))

            return measure(ShareName.parse(order.encode()).share(plan_of).plan)
        except DieselfsError:
            continue
    return None
