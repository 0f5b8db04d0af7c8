"""The verbs of the columns of a dataset: `columns add`, `list`, `export` and `remove`. This module starts a thread."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

import click

from dieselfs.errors import DieselfsError, InvalidInput, Unavailable
from dieselfs.names import COLUMNS_PATH, SCHEME, Location
from dieselfs.process.repeating import repeated
from dieselfs.units import count, format_duration
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs import Dataset
    from dieselfs.selection.file_columns import FileColumns

CLAIM_S = 600
"""A command that changes columns excludes others for so long, if it is killed."""
RENEWAL_S = 150.0
CLAIM_WAIT_S = 60.0
"""It waits as long for others to end."""
_PAUSES_S = 0.05, 0.5
"""Between two tries. Two commands that see each other pause differently long, as the pauses are random."""
_CLAIM = "changes the columns on "

TABLE = click.argument("table", type=click.Path(path_type=Path), metavar="TABLE")


columns = options.verb_group(
    "columns",
    "Columns are values of files, as labels or sizes, from a table. --where selects files by them.",
    "dlcmd columns add dl://pets pets.parquet --key path",
    "dlcmd find dl://pets --where \"width >= 512 and lang = 'de'\"",
)


def _stored(data: "Dataset") -> "FileColumns | None":
    from dieselfs.selection.file_columns import FileColumns
    from dieselfs.selection.selected import content_at

    if not data.exists(COLUMNS_PATH):
        return None
    return FileColumns.decode(content_at(data.snapshot, data.client, COLUMNS_PATH))


def _now_s() -> float:
    """A claim ends while this machine sleeps, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class _Claim:
    """The claim of a command on the columns of `dataset`, until `end_s`, by `_now_s`.

    `put`: repeats it; `is_there`: whether the servers have it.
    """

    def __init__(
        self, dataset: str, put: Callable[[], None], is_there: Callable[[], bool], end_s: float
    ) -> None:
        self._dataset, self._put, self._is_there, self._end_s = dataset, put, is_there, end_s

    def renew(self) -> None:
        """Raises Unavailable if it has ended meanwhile, for another command may have begun; DieselfsError."""
        asked_s = _now_s()
        self._check(self._is_there())
        self._put()
        self._check()
        self._end_s = asked_s + CLAIM_S

    def _check(self, is_there: bool = True) -> None:
        if not is_there or _now_s() >= self._end_s:
            raise Unavailable(
                f"{SCHEME}{self._dataset}: the claim of this command is gone, or was not renewed for "
                f"{format_duration(CLAIM_S)}, so another one may have changed the columns; nothing was written: try "
                "again"
            )


@contextmanager
def _alone(data: "Dataset", is_dry_run: bool = False) -> Iterator[Callable[[], None]]:
    """No other command changes the columns of a dataset, whose newest generation is then read. Gives `_Claim.renew`, to
    be called before a change.

    The claim is a pin: each command first puts its own, and then looks for others, so of two at least one sees the
    other. Raises Unavailable.
    """
    from dieselfs.snapshot.pin import node_name

    if is_dry_run:
        yield lambda: None
        return
    client, header, token = data.client, data.snapshot.header, token_hex(4)
    own = data.name, f"{_CLAIM}{node_name()} ({token})", header.generation, header.updated_ns

    def is_there() -> bool:
        return any(token in each.holder for each in client.pins(data.name))

    deadline_s = time.monotonic() + CLAIM_WAIT_S
    try:
        while True:
            asked_s = _now_s()
            client.pin(*own, CLAIM_S)
            others = [
                each for each in client.pins(data.name) if _CLAIM in each.holder and token not in each.holder
            ]
            if not others:
                break
            client.pin(*own, 0)
            if time.monotonic() > deadline_s:
                left_s = max(others[0].expires_ns / 1e9 - time.time(), 0)
                raise Unavailable(
                    f"{SCHEME}{data.name}: {_named(others[0].holder)}; try again when it has ended, or in "
                    f"{format_duration(left_s)} if it was killed"
                )
            time.sleep(random.uniform(*_PAUSES_S))
        data.refresh()
        claim = _Claim(data.name, lambda: client.pin(*own, CLAIM_S), is_there, asked_s + CLAIM_S)
        with repeated(claim.renew, RENEWAL_S):
            yield claim.renew
    finally:
        with suppress(DieselfsError):  # else it expires
            client.pin(*own, 0)


def _named(holder: str) -> str:
    user, _, what = holder.partition("/")
    return f"another command, of {user}, {what}"


def _store(data: "Dataset", content: bytes | None, renew: Callable[[], None]) -> int:
    """Replace the columns, None for no more of them; returns the generation. `renew`: of `_alone`."""
    renew()
    if content is None:
        data.delete(COLUMNS_PATH)
    else:
        data.put(COLUMNS_PATH, content)  # a large one takes a while
        renew()
    return data.flush()


def _found(data: "Dataset") -> "FileColumns":
    stored = _stored(data)
    if stored is None:
        raise InvalidInput(f"{SCHEME}{data.name} has no columns: add a table with 'dlcmd columns add'")
    return stored


@options.verb(
    "add",
    "dlcmd columns add dl://pets pets.parquet --key path",
    "dlcmd columns add dl://pets/train labels.csv --key file    # paths relative to the folder train",
    group=columns,
)
@click.argument("location", type=options.CHANGEABLE, metavar="dl://DATASET[/FOLDER]")
@TABLE
@click.option("--key", required=True, metavar="COLUMN", help="The column with the paths of the files.")
@options.flag("--partial", "is_partial", text="Leave out rows of files that do not exist.")
@options.dry_run
def add(
    session: Session, location: Location, table: Path, key: str, is_partial: bool, is_dry_run: bool
) -> int:
    """Add the columns of a table to the files of a dataset; it makes a new generation.

    TABLE is a file .parquet, .csv or .jsonl (one object per line) with one row per file. Paths are relative to the
    folder. Values of a column that exists are replaced; an empty value replaces none. Of two commands at once, each
    adds its columns: the second waits for the first.
    """
    from dieselfs.selection.file_columns import read_table

    data = session.dataset(location.dataset)
    with _alone(data, is_dry_run) as renew:
        added = read_table(table, key, location.path, data.snapshot, is_partial)
        stored = _stored(data)
        joined = added if stored is None else stored.joined(added, data.snapshot)
        names, rows = added.names, added.table.num_rows
        fields = {"dataset": location.dataset, "columns": names, "files": rows}
        what = f"{count(len(names), 'column')} of {count(rows, 'file')}"
        if is_dry_run:
            return session.output.summary(f"would add {what}", {"dry_run": True, **fields})
        generation = _store(data, joined.encode(), renew)
    return session.output.summary(f"added {what}", {**fields, "generation": generation})


@options.verb("list", "dlcmd columns list dl://pets", "dlcmd columns list --json dl://pets@v1", group=columns)
@click.argument("dataset", type=options.STATE, metavar="dl://DATASET[@TAG]")
def list_columns(session: Session, dataset: str) -> int:
    """List the columns: name, type, and number of files with a value."""
    table = _found(session.dataset(dataset)).table
    for name in table.column_names[1:]:
        values = table.column(name)
        files = len(values) - values.null_count
        text = f"{name:24} {values.type!s:12} {count(files, 'file')}"
        session.output.record("column", text, {"name": name, "value_type": str(values.type), "files": files})
    return session.output.summary("", {"columns": table.column_names[1:], "files": table.num_rows})


@options.verb(
    "export",
    "dlcmd columns export dl://pets pets.parquet",
    "dlcmd columns export dl://pets@v1 pets.csv",
    group=columns,
)
@click.argument("dataset", type=options.STATE, metavar="dl://DATASET[@TAG]")
@TABLE
def export(session: Session, dataset: str, table: Path) -> int:
    """Write the columns to TABLE, a file .parquet, .csv or .jsonl, with the paths in the column `path`."""
    found = _found(session.dataset(dataset))
    found.export(table)
    fields = {"target": str(table), "columns": len(found.names), "files": found.table.num_rows}
    return session.output.summary(f"{count(found.table.num_rows, 'row')} in {table}", fields)


@options.verb(
    "remove",
    "dlcmd columns remove dl://pets caption",
    "dlcmd columns remove -n dl://pets width lang",
    group=columns,
)
@click.argument("dataset", type=options.DATASET, metavar="dl://DATASET")
@click.argument("names", nargs=-1, required=True, metavar="COLUMN...")
@options.dry_run
def remove(session: Session, dataset: str, names: Sequence[str], is_dry_run: bool) -> int:
    """Remove columns; earlier generations and tags keep them."""
    data = session.dataset(dataset)
    fields = {"dataset": dataset, "columns": list(names)}
    with _alone(data, is_dry_run) as renew:
        rest = _found(data).without(names)
        if is_dry_run:
            return session.output.summary(
                f"would remove {count(len(names), 'column')}", {"dry_run": True, **fields}
            )
        generation = _store(data, rest.encode() if rest.names else None, renew)
    return session.output.summary(
        f"removed {count(len(names), 'column')}", {**fields, "generation": generation}
    )
