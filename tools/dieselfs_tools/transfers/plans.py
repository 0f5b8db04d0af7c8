"""The options of an order, and the output of its files."""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce, wraps
from typing import Any

import click

from dieselfs.arrays import Nodes, Numbers, Positions
from dieselfs.errors import InvalidInput
from dieselfs.names import Location, printable
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.spec import DEFAULT_GROUP_CHUNKS, PlanSpec, ReaderSpec
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
        return ReaderSpec(self.rank or 0, world, self.batch, start, drop_last=drop_last)

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
        fields = {"seed": self.seed, "epoch": self.epoch, "group_chunks": self.group_chunks}
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
        help=f"Chunks that are mixed with each other; 0 for all.  [default: {DEFAULT_GROUP_CHUNKS}]",
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
        "group_chunks": plan.spec.group_chunks,
        "positions": len(plan),
        "skipped": len(plan.skips),
    }
