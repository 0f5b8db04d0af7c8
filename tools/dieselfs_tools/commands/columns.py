"""The verbs of the columns of a dataset: `columns add`, `list`, `export` and `remove`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dieselfs.errors import InvalidInput
from dieselfs.names import COLUMNS_PATH, SCHEME, Location
from dieselfs.units import count
from dieselfs_tools.cli import options
from dieselfs_tools.cli.session import Session

if TYPE_CHECKING:
    from dieselfs import Dataset
    from dieselfs.selection.file_columns import FileColumns

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
    folder. Values of a column that exists are replaced; an empty value replaces none.
    """
    from dieselfs.selection.file_columns import read_table

    data = session.dataset(location.dataset)
    added = read_table(table, key, location.path, data.snapshot, is_partial)
    stored = _stored(data)
    joined = added if stored is None else stored.joined(added, data.snapshot)
    names, rows = added.names, added.table.num_rows
    fields = {"dataset": location.dataset, "columns": names, "files": rows}
    what = f"{count(len(names), 'column')} of {count(rows, 'file')}"
    if is_dry_run:
        return session.output.summary(f"would add {what}", {"dry_run": True, **fields})
    data.put(COLUMNS_PATH, joined.encode())
    generation = data.flush()
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
    rest = _found(data).without(names)
    fields = {"dataset": dataset, "columns": list(names)}
    if is_dry_run:
        return session.output.summary(
            f"would remove {count(len(names), 'column')}", {"dry_run": True, **fields}
        )
    if rest.names:
        data.put(COLUMNS_PATH, rest.encode())
    else:
        data.delete(COLUMNS_PATH)
    generation = data.flush()
    return session.output.summary(
        f"removed {count(len(names), 'column')}", {**fields, "generation": generation}
    )
