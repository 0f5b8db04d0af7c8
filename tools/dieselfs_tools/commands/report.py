"""`dlcmd report`: an epoch of a mount or of a job on one page."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dieselfs.errors import DieselfsError, InvalidInput
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import replace_file
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs.shuffle.quality import ShuffleQuality
    from dieselfs.telemetry.series import Recorded
    from dieselfs_tools.observe.epoch_report import EpochReport


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
