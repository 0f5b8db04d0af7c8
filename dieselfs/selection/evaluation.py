"""The process that decodes a table, or evaluates an expression over it: `python -m dieselfs.selection.evaluation`.
This module waits for standard input, and changes and ends its own process.

DuckDB sees one table in memory, and neither files nor the network. Only an expression of values and columns is
evaluated: no query, and no function with another result each time. Strings of an expression are no memory that DuckDB
bounds, and one function call is not interrupted: so the process has limits, and its parent ends it.

    request:  {"where": EXPRESSION} and a newline, then the table as Parquet
    reply:    {"rows": N, "has_others": BOOL} and a newline, then the rows as bits;
              or {"error": TEXT, "is_damaged": BOOL}

    request:  {"names": COLUMNS or null} and a newline, then the table as Parquet
    reply:    {"rows": N} and a newline, then the table as a stream of Arrow; or an error as above
"""

import json
import os
import sys
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dieselfs.errors import EXIT_OK, Damaged, InvalidInput
from dieselfs.process import sandbox
from dieselfs.selection.file_columns import PATH, FileColumns, name_fault

MEMORY = "2GiB"
THREADS = 4

_PARTS = frozenset(
    (
        "BETWEEN",
        "CASE",
        "CAST",
        "COLUMN_REF",
        "COMPARISON",
        "CONJUNCTION",
        "CONSTANT",
        "FUNCTION",
        "OPERATOR",
        "TYPE",
    )
)
_SETTINGS = (
    "SET TimeZone = 'UTC'",  # all nodes of a job select the same files
    "SET enable_external_access = false",
    "SET python_enable_replacements = false",
    "SET lock_configuration = true",
)
_REFUSED = """
    SELECT function_name FROM duckdb_functions() GROUP BY ALL
    HAVING function_name = 'age' OR bool_or(stability = 'VOLATILE')
        OR bool_or(macro_definition LIKE '%current_timestamp%')
        OR (bool_or(function_type = 'scalar') AND NOT bool_or(stability = 'CONSISTENT'))
        OR (bool_or(function_type = 'aggregate') AND NOT bool_or(function_type IN ('scalar', 'macro')))
"""
"""Functions that give another result each time, as `age` of one time does, or one of several rows."""


def evaluated(content: bytes, expression: str) -> tuple[npt.NDArray[np.bool_], bool]:
    """For which rows of a table an expression is true: shape (rows,), and whether it is for a file without values.
    Raises InvalidInput, Damaged.
    """
    with _Evaluation(expression) as evaluation:
        columns = FileColumns.decode_here(content, evaluation.resolved(FileColumns.names_in(content)))
        return evaluation.chosen(columns)


class _Evaluation:
    """A database for one expression. Raises InvalidInput for what is no expression of values and columns."""

    def __init__(self, expression: str) -> None:
        import duckdb

        self._expression, self._error = expression, duckdb.Error
        self._database = duckdb.connect(
            ":memory:",
            config={
                "memory_limit": MEMORY,
                "threads": THREADS,
                "temp_directory": "",
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            },
        )
        for setting in _SETTINGS:
            self._database.execute(setting)
        self._names = self._columns_of(self._parsed())

    def __enter__(self) -> "_Evaluation":
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def _fail(self, reason: str) -> InvalidInput:
        return InvalidInput(f"the expression {self._expression!r}: {reason}")

    def _parsed(self) -> Any:
        """The tree of the expression, as DuckDB reads it."""

        def tree(text: str) -> Any:
            # On its own lines: a comment at the end of the text hides nothing of what follows.
            statement = f"SELECT (\n{text}\n)"
            # All rows: a result that is not at its end keeps the database busy.
            found = self._database.execute("SELECT json_serialize_sql(?)", [statement]).fetchall()
            return json.loads(found[0][0])

        try:
            found, plain = tree(self._expression), tree("true")
        except RecursionError:
            raise self._fail("it is nested too deeply") from None
        except self._error as error:  # it is no UTF-8
            raise self._fail(str(error).splitlines()[0]) from None
        if found["error"]:
            raise self._fail(found["error_message"].splitlines()[0])
        (statement, *others), (expected,) = found["statements"], plain["statements"]
        node = statement["node"]
        chosen = node.get("select_list", [])
        if others or len(chosen) != 1 or {**node, "select_list": 0} != {**expected["node"], "select_list": 0}:
            raise self._fail("it is no single expression")
        return chosen[0]

    def _columns_of(self, tree: Any) -> list[str]:
        """The columns that are named. Raises InvalidInput for parts that are not allowed."""
        names = []
        for part in _parts(tree):
            kind = part["class"]
            if kind not in _PARTS:
                raise self._fail(
                    f"{kind.lower()} is not possible; write columns, values, operators and functions"
                )
            if kind == "FUNCTION" and (part["function_name"] in self._refused or part.get("schema")):
                raise self._fail(f"the function {part['function_name']!r} is not possible here")
            if kind == "COLUMN_REF":
                names.append(".".join(part["column_names"]))
        return names

    @cached_property
    def _refused(self) -> set[str]:
        return {name for (name,) in self._database.execute(_REFUSED).fetchall()}

    def resolved(self, known: list[str]) -> list[str]:
        """The names of the columns that are needed, but PATH. Raises InvalidInput for an unknown one."""
        by_lower = {name.lower(): name for name in [PATH, *known]}
        for name in self._names:
            if name.lower() not in by_lower:
                raise self._fail(name_fault(name, [PATH, *known]))
        needed = dict.fromkeys(by_lower[name.lower()] for name in self._names)
        return [name for name in needed if name != PATH]

    def chosen(self, columns: FileColumns) -> tuple[npt.NDArray[np.bool_], bool]:
        """For which rows it is true: shape (rows,), and whether it is for a file without values."""
        has_path = any(name.lower() == PATH for name in self._names)
        self._database.register("files", columns.for_expression(has_path))
        try:
            described = self._database.execute(
                f"DESCRIBE SELECT (\n{self._expression}\n) FROM files"
            ).fetchone()
            kind = described[1] if described else ""
            if kind != "BOOLEAN":
                raise self._fail(f"its value is {kind}, not true or false")
            query = f"SELECT coalesce((\n{self._expression}\n), false) AS chosen FROM files"
            found = np.asarray(self._database.execute(query).fetchnumpy()["chosen"], np.bool_)
        except self._error as error:
            raise self._fail((str(error).splitlines() or ["failed"])[0]) from None
        if len(found) != columns.table.num_rows + 1:
            raise self._fail("it has several values for a file")
        return found[:-1], bool(found[-1]) and not has_path


def _parts(tree: Any) -> Iterator[dict[str, Any]]:
    """All parts of a tree that have a class."""
    stack = [tree]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            if "class" in part:
                yield part
            stack += part.values()
        elif isinstance(part, list):
            stack += part


def main() -> None:
    sandbox.limit_resources()
    sandbox.leave_network()
    sandbox.gain_no_privileges()
    sandbox.refuse_calls()
    request, out = sys.stdin.buffer, sys.stdout.buffer
    asked = json.loads(request.readline())
    try:
        if "where" not in asked:
            _send(FileColumns.decode_here(request.read(), asked["names"]).table)
            return
        is_chosen, has_others = evaluated(request.read(), asked["where"])
    except (InvalidInput, Damaged) as error:
        out.write(
            json.dumps({"error": str(error), "is_damaged": isinstance(error, Damaged)}).encode() + b"\n"
        )
    else:
        out.write(json.dumps({"rows": len(is_chosen), "has_others": has_others}).encode() + b"\n")
        out.write(np.packbits(is_chosen).tobytes())
    out.flush()


def _send(table: Any) -> None:
    import pyarrow as pa

    out = sys.stdout.buffer
    out.write(json.dumps({"rows": table.num_rows}).encode() + b"\n")
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    out.flush()


if __name__ == "__main__":
    main()
    os._exit(EXIT_OK)  # an orderly exit destroys threads of Arrow that still begin, which aborts the process
