"""`dlcmd which`: the files of one step, or at one position, of an epoch."""

import re

import click
import numpy as np

from dieselfs.errors import InvalidInput
from dieselfs.names import Location
from dieselfs.shuffle.plan import Plan, Share
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session
from dieselfs_tools.transfers.plans import OrderOptions, order_options, plan_fields, print_files

_POSITIONS = re.compile(r"([0-9]{1,20})(?:-([0-9]{1,20}))?")


def _positions(text: str) -> range:
    match = _POSITIONS.fullmatch(text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise InvalidInput(f"{text!r}: write a position, or the first and the last, as 4096-5119")
    return range(int(match[1]), int(match[2] or match[1]) + 1)


@options.verb(
    "which",
    "dlcmd which dl://imagenet@v3 --seed 1 --epoch 2 --step 12345 --batch 1024",
    "dlcmd which dl://imagenet@v3 --seed 1 --epoch 2 --step 12345 --batch 1024 --rank 7 --world 64",
    "dlcmd which dl://imagenet@v3 --seed 1 --epoch 2 --position 4096-5119",
)
@order_options
@click.option(
    "--step", type=int, help="Print the files of this step, counted from 0; skipped steps do not count."
)
@click.option(
    "--position",
    "positions",
    type=options.Parsed("FIRST[-LAST]", _positions),
    help="Print the files at these positions, counted from 0; skipped files do not count.",
)
def which(
    session: Session, dataset: Location, order: OrderOptions, step: int | None, positions: range | None
) -> int:
    """Print the files that all readers, or one, read in a step of an epoch; or the files at positions.

    The answer follows from the snapshot, the seed and the epoch; it needs no log.
    """
    if (step is None) == (positions is None):
        raise InvalidInput("--step or --position is missing")
    if step is not None and order.batch is None:
        raise InvalidInput("--step needs --batch: how many files all readers together read in one step")
    if positions is not None and order.rank is not None:
        raise InvalidInput(
            "--position cannot be used with --rank, because one rank reads a position: use --step"
        )
    plan, _ = order.plan(session, dataset)
    if positions is None:
        assert step is not None
        positions = _positions_of(plan, order, step)
    elif positions.stop > len(plan):
        raise InvalidInput(
            f"there is no position {positions.stop - 1}: the epoch has {len(plan)}, counted from 0"
        )
    print_files(session, plan, np.array(positions, np.int64))
    fields = {
        **plan_fields(dataset, plan),
        "files": len(positions),
        "cursor": str(plan.cursor(positions.start)),
    }
    return session.output.summary("", fields)


def _positions_of(plan: Plan, order: OrderOptions, step: int) -> range:
    share = Share(plan, order.reader())
    if step not in share.steps:
        raise InvalidInput(
            f"there is no step {step}: the epoch has {len(share.steps)} of {share.batch} files, counted from 0"
        )
    return share.positions_of(step)
