"""The options that say which order is meant, and how the verbs print files of it."""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce, wraps
from typing import Any

import click

from dieselfs.errors import InvalidInput
from dieselfs.names import Location, printable
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.deal import Numbers
from dieselfs.shuffle.order import DEFAULT_GROUP_CHUNKS
from dieselfs.shuffle.plan import Plan
from dieselfs_tools import options
from dieselfs_tools.output import name_fields, write_bytes
from dieselfs_tools.session import Session

LINES_AT_ONCE = 10_000

_SKIP = re.compile(r"([0-9]{1,20}):([0-9]{1,20})(?:-([0-9]{1,20}))?")


@dataclass(frozen=True, slots=True)
class SkippedSteps:
    """Steps of one epoch, from `first` to `last`, that are left out."""

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
    """What the options of `order_options` say. None: not given."""

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
            raise InvalidInput("--rank and --world go together: which reader, of how many")
        given = {"--seed": self.seed, "--epoch": self.epoch, "--group": self.group_chunks}
        doubled = [name for name, value in given.items() if value is not None]
        if self.cursor is not None and doubled:
            raise InvalidInput(f"the cursor says already what {', '.join(doubled)} would")
        if self.batch is not None and self.batch < 1:
            raise InvalidInput(f"a batch of {self.batch} files cannot be")

    def plan(self, session: Session, location: Location) -> tuple[Plan, int]:
        """The plan of a dataset, or of a folder in it, and the position that the cursor stands at (else 0)."""
        data = session.dataset(location.state)
        if self.cursor is not None:
            whole = data.plan_at(self.cursor, location.path)
            cursor = self.cursor.skipping(self._skipped(whole))
            return Plan.at(whole.snapshot, cursor, whole.layout), cursor.position
        group_chunks = DEFAULT_GROUP_CHUNKS if self.group_chunks is None else self.group_chunks
        whole = data.plan(self.seed or 0, self.epoch or 0, group_chunks, folder=location.path)
        return whole.with_epoch(whole.epoch, self._skipped(whole)), 0

    def _skipped(self, plan: Plan) -> list[range]:
        batch, total = self.batch or self.world or 1, len(plan.layout)
        return [skip.positions(batch, total) for skip in self.skips if skip.epoch == plan.epoch]


def order_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The argument DATASET, as a Location, and the options that OrderOptions is made of, as one argument `order`."""

    @wraps(function)  # takes the options along that are there already
    def collected(session: Session, /, dataset: Location, **values: Any) -> Any:
        names = OrderOptions.__slots__
        order = OrderOptions(**{name: values.pop(name) for name in names})
        order.check()
        return function(session, dataset, order, **values)

    return reduce(lambda decorated, decorate: decorate(decorated), reversed(_DECORATORS), collected)


_DECORATORS = (
    click.argument("dataset", type=options.FOLDER, metavar="DATASET"),
    click.option("--seed", type=int, help="Another seed, another sequence of epochs.  [default: 0]"),
    click.option("--epoch", type=int, help="Which epoch.  [default: 0]"),
    click.option(
        "--group",
        "group_chunks",
        type=int,
        help=f"Chunks that are mixed with each other; 0 for all.  [default: {DEFAULT_GROUP_CHUNKS}]",
    ),
    click.option(
        "--cursor",
        type=options.Parsed("CURSOR", Cursor.parse),
        help="Seed, epoch, group, position and skips as a job has kept them.",
    ),
    click.option(
        "--skip",
        "skips",
        type=options.Parsed("EPOCH:FIRST-LAST", SkippedSteps.parse),
        multiple=True,
        help="Leave out these steps of --batch files, first and last included. May be repeated.",
    ),
    click.option("--rank", type=int, help="Only what this reader reads, counted from 0."),
    click.option("--world", type=int, help="How many readers there are."),
    click.option(
        "--batch",
        type=int,
        help="Files of one step, of all readers together.  [default: one for each reader]",
    ),
)


def print_files(session: Session, plan: Plan, positions: Numbers, is_null: bool = False) -> None:
    """Print the files at some positions: a line each, or ended by NUL bytes, or as JSON."""
    for first in range(0, len(positions), LINES_AT_ONCE):
        places = positions[first : first + LINES_AT_ONCE]
        names = plan.snapshot.path_many(plan.nodes_at(places))
        if session.output.is_json:
            for position, name in zip(places.tolist(), names, strict=True):
                session.output.record("entry", "", {"position": position, **name_fields(name)})
        elif is_null:
            write_bytes(b"".join(name + b"\0" for name in names))
        else:
            sys.stdout.write("".join(printable(name) + "\n" for name in names))


def plan_fields(location: Location, plan: Plan) -> dict[str, object]:
    """What a summary says of a plan."""
    return {
        "dataset": location.state,
        **(name_fields(location.path, "folder") if location.path else {}),
        "seed": plan.seed,
        "epoch": plan.epoch,
        "group_chunks": plan.group_chunks,
        "positions": len(plan),
        "skipped": len(plan.skips),
    }
