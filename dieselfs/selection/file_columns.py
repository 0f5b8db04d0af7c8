"""Columns of scalars for the files of a dataset: one table, kept in the dataset as a Parquet file. This module opens
files.

The table has one row per file that has values, with its path. It is stored at COLUMNS_PATH as any file is, so it is
encrypted, copied, tagged and rebuilt as they are. It belongs to the folder that listings, orders and mounts leave out.

Each selection imports this in a new process, so what only a few methods need is imported there.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from io import BytesIO
from json import dumps
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.columns import I64
from dieselfs.errors import Damaged, InvalidInput, NotFound
from dieselfs.names import COLUMNS_PATH, SCHEME, printable
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.subtree import files_below

try:
    import pyarrow as pa
    from pyarrow import parquet
except ImportError as error:
    raise InvalidInput(
        f"columns of files need pyarrow and duckdb ({error}): in a checkout: pip install '.[columns]'"
    ) from None

PATH = "path"
"""The column with the path of the file."""
KINDS = (".parquet", ".csv", ".jsonl")
RANGE_VALUES_MIN = 256
"""From this number of different values on, a column of numbers is stratified by ranges."""
_ROWS_AT_ONCE = 16_384
_SHOWN = 3
"""Faulty rows that an error names."""


def name_fault(name: str, known: Sequence[str]) -> str:
    """That a column is unknown, with similar ones."""
    near = get_close_matches(name, known, 3, 0.5)
    if near:
        return f"there is no column {name!r}: did you mean {' or '.join(near)}?"
    return f"there is no column {name!r}: there are {', '.join(known)}"


class FileColumns:
    """The table of a dataset. `table`: its first column is PATH, as bytes; rows have different paths."""

    def __init__(self, table: Any) -> None:
        self.table = table

    @classmethod
    def decode(cls, content: bytes, names: Sequence[str] | None = None) -> "FileColumns":
        """`names`: the columns to read, beside PATH; None: all. They are decoded in a process with limits.

        Raises Damaged, and InvalidInput for an unknown name, and for more than the limits.
        """
        from dieselfs.selection.limited import limited

        _, stream = limited({"names": names}, content, f"the table {printable(COLUMNS_PATH)}")
        try:
            table = pa.ipc.open_stream(stream).read_all()
            table.validate(full=True)
            return cls(table)
        except (pa.ArrowException, OSError) as error:
            raise Damaged(f"{printable(COLUMNS_PATH)}: {_first_line(error)}") from None

    @classmethod
    def decode_here(cls, content: bytes, names: Sequence[str] | None = None) -> "FileColumns":
        """As `decode`, in a process with limits, and for what one has decoded before. Raises MemoryError, too."""
        there = cls.names_in(content)
        for name in names or ():
            if name not in there:
                raise InvalidInput(name_fault(name, there))
        try:
            wanted = None if names is None else [PATH, *names]
            # Not parquet.read_table, which imports what reads folders of files.
            table = parquet.ParquetFile(pa.BufferReader(content)).read(columns=wanted)
            return cls((table if wanted is None else table.select(wanted)).combine_chunks())
        except MemoryError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise Damaged(f"{printable(COLUMNS_PATH)}: {_first_line(error)}") from None

    def encode(self) -> bytes:
        out = BytesIO()
        parquet.write_table(self.table, out, compression="zstd")
        return out.getvalue()

    @property
    def names(self) -> list[str]:
        """The columns, without PATH."""
        return list(self.table.column_names[1:])

    @staticmethod
    def names_in(content: bytes) -> list[str]:
        """The columns of an encoded table, without PATH. Raises Damaged."""
        try:
            schema = parquet.read_schema(pa.BufferReader(content))
        except (pa.ArrowException, OSError) as error:
            raise Damaged(f"{printable(COLUMNS_PATH)}: {_first_line(error)}") from None
        if schema.names[:1] != [PATH] or schema.types[0] != pa.large_binary():
            raise Damaged(f"{printable(COLUMNS_PATH)}: its first column is not {PATH!r}, as bytes")
        return list(schema.names[1:])

    def for_expression(self, has_path: bool) -> Any:
        """The table with paths as text, or without them, and a last row without values. Raises InvalidInput."""
        table = self.table.drop_columns([PATH])
        if has_path or not table.num_columns:
            try:
                table = table.append_column(PATH, self.table.column(PATH).cast(pa.large_string()))
            except pa.ArrowInvalid:
                raise InvalidInput("some paths are not UTF-8, so an expression cannot use 'path'") from None
        empty = {field.name: pa.nulls(1, field.type) for field in table.schema}
        return pa.concat_tables([table, pa.table(empty, schema=table.schema)])

    def nodes(self, snapshot: Snapshot) -> Numbers:
        """The file of each row in a snapshot, -1 for none: shape (rows,). About 0.5 s for a million."""
        return nodes_of(snapshot, _only(self.table, PATH))

    def files(self, snapshot: Snapshot, is_chosen: npt.NDArray[np.bool_], has_others: bool) -> Numbers:
        """The files of the chosen rows, and with `has_others` those without a row: shape (n,), ascending.

        `is_chosen`: shape (rows,).
        """
        files, paths = files_below(snapshot), _only(self.table, PATH)
        known = _paths_of(snapshot, files)
        if known.equals(paths):
            same: Numbers = files[is_chosen]
            return same
        import pyarrow.compute as pc

        named = paths.filter(pa.array(is_chosen != has_others))
        is_named = pc.is_in(known, value_set=named).to_numpy(zero_copy_only=False)
        others: Numbers = files[is_named != has_others]
        return others

    def joined(self, added: "FileColumns", snapshot: Snapshot) -> "FileColumns":
        """With the values of `added`, which replace those here. An empty value replaces none. Rows of files that the
        snapshot does not have are left out. Raises InvalidInput for a column with values of another type.
        """
        import pyarrow.compute as pc

        for name in set(self.names) & set(added.names):
            here, there = self.table.schema.field(name).type, added.table.schema.field(name).type
            if here != there:
                raise InvalidInput(
                    f"column {name!r} has values of type {here}, the table has {there}: "
                    "convert them, or remove the column first"
                )
        fresh, old = added.nodes(snapshot), self.nodes(snapshot)
        nodes = np.union1d(fresh[fresh >= 0], old[old >= 0])
        tables = (added.table, _rows_of(nodes, fresh)), (self.table, _rows_of(nodes, old))
        columns = {PATH: _paths(snapshot).take(pa.array(nodes))}
        for name in dict.fromkeys([*self.names, *added.names]):
            parts = [_only(table, name).take(rows) for table, rows in tables if name in table.column_names]
            columns[name] = pc.coalesce(*parts)
        _check_names(list(columns)[1:])
        return FileColumns(pa.table(columns))

    def without(self, names: Sequence[str]) -> "FileColumns":
        """Raises InvalidInput for an unknown name."""
        for name in names:
            if name not in self.names:
                raise InvalidInput(name_fault(name, self.names))
        return FileColumns(self.table.drop_columns(list(names)))

    def strata(self, name: str) -> dict[bytes, object]:
        """A stratum for each path: the value of a column, or its range in a column with RANGE_VALUES_MIN numbers."""
        from dieselfs.shuffle.strata import ranges_of

        values = _only(self.table, name)
        is_number = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
        if is_number and len(values.unique()) >= RANGE_VALUES_MIN:
            values = pa.array(ranges_of(values.fill_null(0).to_numpy(zero_copy_only=False)))
        return dict(zip(_only(self.table, PATH).to_pylist(), values.to_pylist(), strict=True))

    def with_text(self) -> Any:
        """The table with paths as text; as bytes if some are not UTF-8."""
        try:
            return self.table.set_column(0, PATH, self.table.column(PATH).cast(pa.large_string()))
        except pa.ArrowInvalid:
            return self.table

    def export(self, path: Path) -> None:
        """Write a file of a kind of KINDS; replaces it. Raises InvalidInput."""
        kind, table = _kind(path), self.with_text()
        if table is self.table and kind != ".parquet":
            raise InvalidInput("some paths are not UTF-8: export to a .parquet file")
        try:
            if kind == ".parquet":
                parquet.write_table(table, path)
            elif kind == ".csv":
                from pyarrow import csv

                csv.write_csv(table, path)
            else:
                with open(path, "w", encoding="utf-8") as file:
                    for batch in table.to_batches(_ROWS_AT_ONCE):
                        rows = (dumps(row, ensure_ascii=False, default=str) for row in batch.to_pylist())
                        file.write("\n".join(rows) + "\n")
        except OSError as error:
            raise InvalidInput(f"{path}: {error.strerror or error}") from None


def read_table(path: Path, key: str, folder: bytes, snapshot: Snapshot, is_partial: bool) -> FileColumns:
    """The columns of a file of a kind of KINDS. `key`: the column with the paths, relative to `folder`.
    `is_partial`: leave out rows of files that do not exist.

    Raises NotFound without such a file, and InvalidInput, which names the first faulty rows.
    """
    from pyarrow import csv, json

    kind = _kind(path)
    try:
        if kind == ".parquet":
            table = parquet.read_table(path)
        else:
            table = (csv.read_csv if kind == ".csv" else json.read_json)(path)
    except FileNotFoundError as error:
        raise NotFound(f"{path}: {error.strerror}") from None
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(f"{path}: {_first_line(error)}") from None
    if key not in table.column_names:
        raise InvalidInput(f"{path}: {name_fault(key, table.column_names)}")
    columns = {PATH: _keys(table, key, folder, path)}
    for name in table.column_names:
        if name != key:
            columns[name] = _scalars(table.column(name), name, path)
    _check_names(list(columns)[1:])
    if len(columns) == 1:
        raise InvalidInput(f"{path}: there is no column beside the key {key!r}")
    return FileColumns(_existing(pa.table(columns), snapshot, path, is_partial))


def nodes_of(snapshot: Snapshot, paths: Any) -> Numbers:
    """The files with these paths, -1 for none: shape (n,). `paths`: an array of bytes."""
    files = files_below(snapshot)
    known = _paths_of(snapshot, files)
    if known.equals(paths):
        return files
    import pyarrow.compute as pc

    found = pc.fill_null(pc.index_in(paths, value_set=known), -1).to_numpy(zero_copy_only=False)
    nodes: Numbers = np.append(files, -1)[found]
    return nodes


def _paths_of(snapshot: Snapshot, nodes: Numbers) -> Any:
    """The paths of nodes, ascending; without a copy if they follow each other, as files of one depth do."""
    known, count = _paths(snapshot), len(nodes)
    if count and nodes[-1] - nodes[0] == count - 1:
        return known.slice(int(nodes[0]), count)
    return known.take(pa.array(nodes))


def _paths(snapshot: Snapshot) -> Any:
    """The paths of all nodes, without a copy of them."""
    ends = np.append(np.int64(0), snapshot.column("path_ends").view(I64))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(snapshot.column("paths"))]
    return pa.Array.from_buffers(pa.large_binary(), len(snapshot), buffers)


def _only(table: Any, name: str) -> Any:
    """A column as one array."""
    return _whole(table.column(name))


def _whole(column: Any) -> Any:
    """As one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def _rows_of(nodes: Numbers, of_rows: Numbers) -> Any:
    """The row of each node, null for none. `of_rows`: the node of each row."""
    import pyarrow.compute as pc

    return pc.index_in(pa.array(nodes), value_set=pa.array(of_rows))


def _kind(path: Path) -> str:
    if path.suffix.lower() not in KINDS:
        raise InvalidInput(f"{path}: the name of a table ends in {', '.join(KINDS)}")
    return path.suffix.lower()


def _keys(table: Any, key: str, folder: bytes, path: Path) -> Any:
    """The paths in the dataset of the key column, all different."""
    import pyarrow.compute as pc

    column = table.column(key)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise InvalidInput(f"{path}: the key {key!r} has values of type {kind}; paths are text")
    if column.null_count:
        raise InvalidInput(f"{path}: {column.null_count} rows have no {key!r}")
    names = pc.utf8_trim(column.cast(pa.large_string()), "/").cast(pa.large_binary())
    if folder:
        head, slash = (pa.scalar(part, pa.large_binary()) for part in (folder, b"/"))
        names = pc.binary_join_element_wise(head, names, slash)
    names = _whole(names)
    counts = pc.value_counts(names)
    several = counts.filter(pc.greater(counts.field(1), 1)).field(0)
    if len(several):
        raise InvalidInput(f"{path}: more than one row has the key {_some(several)}")
    return names


def _scalars(column: Any, name: str, path: Path) -> Any:
    """Raises InvalidInput unless a column has scalars of one type."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_null(kind):
        raise InvalidInput(f"{path}: column {name!r} has no value")
    if pa.types.is_nested(kind):
        raise InvalidInput(
            f"{path}: column {name!r} has values of type {kind}; a value is one number, text or date"
        )
    if pa.types.is_string_view(kind):
        kind = pa.string()
    return _whole(column.cast(kind))


def _existing(table: Any, snapshot: Snapshot, path: Path, is_partial: bool) -> Any:
    """The rows of files that exist, in the order of their nodes; other rows are an error unless `is_partial`."""
    nodes = nodes_of(snapshot, _only(table, PATH))
    missing = _only(table, PATH).filter(pa.array(nodes < 0))
    if len(missing) and not is_partial:
        raise InvalidInput(
            f"{path}: {len(missing):,} of {table.num_rows:,} paths are not files of {SCHEME}{snapshot.dataset}: "
            f"{_some(missing)}; leave them out with --partial"
        )
    # In the order of the snapshot, so that a table of all files is found to be that by one comparison.
    return table.take(pa.array(np.argsort(nodes, kind="stable")[np.count_nonzero(nodes < 0) :]))


def _check_names(names: Sequence[str]) -> None:
    """Raises InvalidInput for names that an expression cannot tell apart."""
    seen = {PATH: PATH}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name or not name or name == PATH:
            raise InvalidInput(
                f"a column cannot be called {name!r}: expressions take it for {other!r}; rename it"
            )


def _some(paths: Any) -> str:
    shown = ", ".join(printable(each) for each in paths[:_SHOWN].to_pylist())
    return shown + (", ..." if len(paths) > _SHOWN else "")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
