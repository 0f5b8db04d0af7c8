"""The verbs for orders of epochs, `shuffle` and `which`, and the options of an order."""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import reduce, wraps
from typing import Any, TextIO

import click
import numpy as np

from dieselfs.arrays import Nodes, Numbers, Positions
from dieselfs.cluster.node_list import parse_node_list
from dieselfs.errors import InvalidInput
from dieselfs.names import Location, printable
from dieselfs.shuffle.assignment import LOCAL_GROUP_CHUNKS
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.groups import GROWN_CHUNKS
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
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec
from dieselfs_tools.cli import options
from dieselfs_tools.cli.output import name_fields, write_bytes
from dieselfs_tools.cli.session import Session

LINES_AT_ONCE = 10_000

_SKIP = re.compile(r"([0-9]{1,20}):([0-9]{1,20})(?:-([0-9]{1,20}))?")


@dataclass(frozen=True, slots=True)
class SkippedSteps:
    """Steps `first` to `last` of an epoch, which are omitted."""

    epoch: int
    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "SkippedSteps":
        """`EPOCH:FIRST-LAST`, or `EPOCH:STEP`. Raises InvalidInput."""
        match = _SKIP.fullmatch(text)
        if match is None:
            raise InvalidInput(f"{text!r}: write EPOCH:FIRST-LAST, as 2:12300-12400")
        epoch, first, last = match[1], match[2], match[3] or match[2]
        if int(last) < int(first):
            raise InvalidInput(f"{text!r}: the last step comes before the first")
        return cls(int(epoch), int(first), int(last))

    def positions(self, batch: int, total: int) -> range:
        """The positions of the whole order, of `total` files. Raises InvalidInput if there is no such step."""
        if self.first * batch >= total:
            raise InvalidInput(
                f"there is no step {self.first} to skip: the epoch has {-(-total // batch)} of {batch} files"
            )
        return range(self.first * batch, min((self.last + 1) * batch, total))


@dataclass(frozen=True, slots=True)
class OrderOptions:
    """The values of `order_options`. None: not given."""

    seed: int | None
    epoch: int | None
    group_chunks: int | None
    cursor: Cursor | None
    skips: Sequence[SkippedSteps]
    rank: int | None
    world: int | None
    batch: int | None
    nodes: tuple[str, ...] | None

    def check(self) -> None:
        """Raises InvalidInput if some options do not go together."""
        if (self.rank is None) != (self.world is None):
            raise InvalidInput("--rank and --world need each other: the reader, and the number of readers")
        if self.cursor is not None and (doubled := self._given()):
            options = ", ".join("--" + name.removesuffix("_chunks") for name in doubled)
            raise InvalidInput(f"the cursor already contains {options}; leave the option out")
        self.reader()

    def reader(self, start: int = 0, drop_last: bool = False) -> ReaderSpec:
        """Which part of the plan is meant. Raises InvalidInput."""
        world = 1 if self.world is None else self.world
        return ReaderSpec(
            self.rank or 0, world, self.batch, start, drop_last=drop_last, nodes=self.nodes or ()
        )

    def plan(self, session: Session, location: Location) -> tuple[Plan, int]:
        """The plan of a dataset, or of a folder in it, and the position of the cursor (0 without one)."""
        data = session.dataset(location.state)
        if self.cursor is not None:
            whole = data.plan_at(self.cursor, location.path)
            cursor = self.cursor.skipping(self._skipped(whole))
            return Plan.at(whole.snapshot, cursor, whole.layout), cursor.position
        whole = data.plan_of(PlanSpec(folder=location.path, **self._given()))
        return whole.with_epoch(whole.spec.epoch, self._skipped(whole)), 0

    @property
    def is_empty(self) -> bool:
        """No option was given."""
        return all(getattr(self, name) in (None, ()) for name in self.__slots__)

    def _given(self) -> dict[str, Any]:
        """The fields of a plan that options name."""
        group_chunks = self.group_chunks
        if self.nodes and group_chunks is None and self.cursor is None:
            group_chunks = LOCAL_GROUP_CHUNKS
        fields = {"seed": self.seed, "epoch": self.epoch, "group_chunks": group_chunks}
        return {field: value for field, value in fields.items() if value is not None}

    def _skipped(self, plan: Plan) -> list[range]:
        batch, total = self.batch or self.world or 1, len(plan.layout)
        return [skip.positions(batch, total) for skip in self.skips if skip.epoch == plan.spec.epoch]


def order_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The argument DATASET, as a Location, and the fields of OrderOptions as options, in one argument `order`."""

    @wraps(function)  # keeps the options that the function has already
    def collected(session: Session, /, dataset: Location, **values: Any) -> Any:
        order = OrderOptions(**{name: values.pop(name) for name in OrderOptions.__slots__})
        order.check()
        return function(session, dataset, order, **values)

    return reduce(lambda decorated, decorate: decorate(decorated), reversed(_DECORATORS), collected)


_DECORATORS = (
    click.argument("dataset", type=options.FOLDER, metavar="DATASET"),
    click.option("--seed", type=int, help="Seed of the sequence of epochs.  [default: 0]"),
    click.option("--epoch", type=int, help="Number of the epoch.  [default: 0]"),
    click.option(
        "--group",
        "group_chunks",
        type=int,
        help=f"Chunks that are mixed with each other; 0 for all.  [default: few at the start, then {GROWN_CHUNKS}]",
    ),
    click.option(
        "--cursor",
        type=options.Parsed("CURSOR", Cursor.parse),
        help="Seed, epoch, group, position and skips, as saved by a job.",
    ),
    click.option(
        "--skip",
        "skips",
        type=options.Parsed("EPOCH:FIRST-LAST", SkippedSteps.parse),
        multiple=True,
        help="Omit these steps of --batch files, first to last. May be repeated.",
    ),
    click.option("--rank", type=int, help="Print only the files of this reader, counted from 0."),
    click.option("--world", type=int, help="Number of readers."),
    click.option(
        "--batch", type=int, help="Files of one step, of all readers together.  [default: one per reader]"
    ),
    click.option(
        "--nodes",
        type=options.Parsed("NODES", parse_node_list),
        help="Nodes of the readers, as node[01-08]: each reads what its node owns in the cache of the job.",
    ),
)


def print_files(
    session: Session,
    plan: Plan,
    positions: Positions,
    is_null: bool = False,
    nodes_at: Callable[[Positions], Numbers | Nodes] | None = None,
) -> None:
    """Print the files at some positions: a line each, or ended by NUL bytes, or as JSON. `nodes_at`: the files at
    positions, if they are not those of the plan.
    """
    nodes_at = nodes_at or plan.nodes_at
    for first in range(0, len(positions), LINES_AT_ONCE):
        places = positions[first : first + LINES_AT_ONCE]
        names = plan.snapshot.path_many(nodes_at(places))
        if session.output.is_json:
            for position, name in zip(places.tolist(), names, strict=True):
                session.output.record("entry", "", {"position": position, **name_fields(name)})
        elif is_null:
            write_bytes(b"".join(name + b"\0" for name in names))
        else:
            sys.stdout.write("".join(printable(name) + "\n" for name in names))


def plan_fields(location: Location, plan: Plan) -> dict[str, object]:
    """The fields of a summary that describe a plan."""
    return {
        "dataset": location.state,
        **(name_fields(location.path, "folder") if location.path else {}),
        "seed": plan.spec.seed,
        "epoch": plan.spec.epoch,
        **({} if plan.spec.group_chunks is None else {"group_chunks": plan.spec.group_chunks}),
        "positions": len(plan),
        "skipped": len(plan.skips),
    }


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
@options.where
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
    del fields["skipped"]  # an opportunistic order has none
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


def groups_text(group_chunks: int | None) -> str:
    """How the groups of a plan are cut, for people."""
    if group_chunks is None:
        return f"groups that grow to about {GROWN_CHUNKS} chunks"
    return f"groups of {group_chunks} chunks" if group_chunks else "one group of all chunks"


def _show_quality(session: Session, dataset: Location, plan: Plan) -> int:
    found, output, group_chunks = measure(plan), session.output, plan.spec.group_chunks
    groups = groups_text(group_chunks)
    lines = (
        f"order           {len(plan)} files, {plan.group_count} groups, {groups}",
        *_lines_of_order(found),
        f"memory          {output.size(found.group_bytes_max)} for the largest group, "
        f"{output.size(round(found.group_bytes_mean))} on average; a mount keeps two groups in memory",
    )
    fields = {**plan_fields(dataset, plan), "groups": plan.group_count, **asdict(found)}
    return output.summary("\n".join(lines), fields)


_POSITIONS = re.compile(r"([0-9]{1,20})(?:-([0-9]{1,20}))?")


def parsed_positions(text: str) -> range:
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
    type=options.Parsed("FIRST[-LAST]", parsed_positions),
    help="Print the files at these positions, counted from 0; skipped files do not count.",
)
@options.where
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
        share = share_with(plan, order, step)
        asked, start = share.positions_of(step), step * share.batch
    elif positions.stop > len(plan):
        raise InvalidInput(
            f"there is no position {positions.stop - 1}: the epoch has {len(plan)}, counted from 0"
        )
    else:
        asked, start = [*positions], positions.start
    print_files(session, plan, np.array(asked, np.int64))
    fields = {**plan_fields(dataset, plan), "files": len(asked), "cursor": str(plan.cursor(start))}
    return session.output.summary("", fields)


def share_with(plan: Plan, order: OrderOptions, step: int) -> Share:
    """The share of the reader that the options name. Raises InvalidInput if the epoch has no such step."""
    share = Share(plan, order.reader())
    if step not in share.steps:
        raise InvalidInput(
            f"there is no step {step}: the epoch has {len(share.steps)} of {share.batch} files, counted from 0"
        )
    return share
