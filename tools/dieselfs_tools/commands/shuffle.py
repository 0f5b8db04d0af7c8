"""`dlcmd shuffle`: the order of an epoch, or the part of one reader; the order that a log has; and their quality."""

from dataclasses import asdict
from typing import TextIO

import click
import numpy as np

from dieselfs.errors import InvalidInput
from dieselfs.names import Location
from dieselfs.shuffle.opportunistic import ServedLog
from dieselfs.shuffle.plan import Plan, Share
from dieselfs.shuffle.quality import (
    FULL_SHUFFLE_DISTANCE,
    ServedQuality,
    ShuffleQuality,
    measure,
    measure_served,
    served_nodes,
)
from dieselfs.shuffle.spec import PlanSpec
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.plans import OrderOptions, order_options, plan_fields, print_files


@options.verb(
    "shuffle",
    "dlcmd shuffle dl://imagenet --seed 1 --epoch 0 > epoch-0.txt",
    "dlcmd shuffle dl://imagenet/train --seed 1 --rank 7 --world 64 --batch 1024   # the files of one reader",
    "dlcmd shuffle dl://imagenet --group 500 --quality      # how random groups of 500 chunks are",
    "dlcmd shuffle dl://imagenet --served rank-0.log --quality   # how random a run in opportunistic order was",
)
@order_options
@click.option(
    "--start",
    type=int,
    help="Start at this position; skipped files do not count.  [default: 0, or the cursor's]",
)
@options.flag("--drop-last", text="Omit a short last step.")
@click.option(
    "--served",
    type=click.File(encoding="ascii", errors="replace"),
    metavar="FILE",
    help="Take the order from this log of an opportunistic run.",
)
@options.flag("--quality", "is_quality", text="Print how random the order is, and the memory it needs.")
@options.flag("-0", "--null", "is_null", text="Print raw paths, each with a NUL byte at its end.")
def shuffle(
    session: Session,
    dataset: Location,
    order: OrderOptions,
    start: int | None,
    drop_last: bool,
    served: TextIO | None,
    is_quality: bool,
    is_null: bool,
) -> int:
    """Print the files of a dataset, or of a folder in it, in the order of an epoch: chunk by chunk in groups, the
    same on every machine.
    """
    if is_null and (session.output.is_json or is_quality):
        raise InvalidInput("--null does not go with --json or --quality")
    if order.cursor is not None and start is not None:
        raise InvalidInput("the cursor already contains --start; leave the option out")
    if served is not None:
        if start is not None or drop_last or not order.is_empty:
            raise InvalidInput(
                "--served has the order and the reader; leave the other options of the order out"
            )
        return _served(session, dataset, ServedLog.parse(served.read()), is_quality, is_null)
    plan, position = order.plan(session, dataset)
    if is_quality:
        return _show_quality(session, dataset, plan)
    share = Share(plan, order.reader(position if start is None else start, drop_last))
    print_files(session, plan, share.positions(), is_null)
    fields = {
        **plan_fields(dataset, plan),
        "files": len(share),
        "rank": share.rank,
        "world": share.world,
        "batch": share.batch,
        "start": share.start,
        "cursor": str(plan.cursor(share.start)),
    }
    return session.output.summary("", fields)


def _served(session: Session, dataset: Location, log: ServedLog, is_quality: bool, is_null: bool) -> int:
    spec, output = PlanSpec(log.seed, log.epoch, folder=dataset.path), session.output
    plan = session.dataset(dataset.state).plan_of(spec)
    fields: dict[str, object] = {
        **plan_fields(dataset, plan),
        "rank": log.rank,
        "world": log.world,
        "chunks": len(log.arrivals),
    }
    del fields["group_chunks"], fields["skipped"]  # an opportunistic order has none
    if not is_quality:
        nodes = served_nodes(plan, log)
        print_files(session, plan, np.arange(len(nodes)), is_null, lambda positions: nodes[positions])
        return output.summary("", {**fields, "files": len(nodes)})
    found = measure_served(plan, log)
    lines = (
        f"order           {found.files} files of rank {log.rank} of {log.world}, {len(log.arrivals)} chunks",
        *_lines_of_order(found),
        f"memory          {output.size(found.buffered_bytes_max)} at most, of files that waited to be drawn",
    )
    return output.summary("\n".join(lines), fields | asdict(found))


def _lines_of_order(found: ShuffleQuality | ServedQuality) -> tuple[str, ...]:
    return (
        f"entropy ratio   {found.entropy_ratio:.1%}, of a full shuffle's 100 %",
        f"mean distance   {found.mean_distance:.1%} of all positions, of a full shuffle's {FULL_SHUFFLE_DISTANCE:.1%}",
        f"folder repeats  {found.folder_repeats:.1%} of files follow one of their folder, in a full shuffle "
        f"{found.folder_repeats_expected:.1%}",
    )


def _show_quality(session: Session, dataset: Location, plan: Plan) -> int:
    found, output, group_chunks = measure(plan), session.output, plan.spec.group_chunks
    groups = f"groups of {group_chunks} chunks" if group_chunks else "one group of all chunks"
    lines = (
        f"order           {len(plan)} files, {plan.group_count} groups, {groups}",
        *_lines_of_order(found),
        f"memory          {output.size(found.group_bytes_max)} for the largest group, "
        f"{output.size(round(found.group_bytes_mean))} on average; a mount keeps two groups in memory",
    )
    fields = {**plan_fields(dataset, plan), "groups": plan.group_count, **asdict(found)}
    return output.summary("\n".join(lines), fields)
