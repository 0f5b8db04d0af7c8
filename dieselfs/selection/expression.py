"""An expression over the columns of a dataset, as `width >= 512 and lang = 'de'`, which DuckDB evaluates. No I/O.

DuckDB sees one table in memory, and neither files nor the network. Only an expression of values and columns is
evaluated: no query, and no function with another result each time.
"""

import json
from collections.abc import Callable, Iterator
from threading import Timer
from typing import Any

import numpy as np

from dieselfs.arrays import Numbers
from dieselfs.errors import InvalidInput
from dieselfs.names import COLUMNS_PATH, SCHEME
from dieselfs.selection.file_columns import PATH, FileColumns, name_fault
from dieselfs.snapshot.reader import Snapshot

EVALUATION_S_MAX = 60.0
MEMORY = "2GiB"
THREADS = 4
CHARACTERS_MAX = 10_000

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
    "SET enable_external_access = false",
    "SET python_enable_replacements = false",
    "SET lock_configuration = true",
)
_REFUSED = """
    SELECT function_name FROM duckdb_functions() GROUP BY ALL
    HAVING bool_or(stability = 'VOLATILE')
        OR (bool_or(function_type = 'scalar') AND NOT bool_or(stability = 'CONSISTENT'))
        OR (bool_or(function_type = 'aggregate') AND NOT bool_or(function_type IN ('scalar', 'macro')))
"""
"""Functions that give another result each time, or one of several rows."""


def select(snapshot: Snapshot, read: Callable[[bytes], bytes], expression: str) -> Numbers:
    """The files for which an expression is true, ascending: shape (n,). `read(path)`: the bytes of a file.

    A file without values has the value NULL in each column. Takes about 0.5 s for a million files. Raises InvalidInput
    for what is no such expression, or has an unknown column, or takes longer than EVALUATION_S_MAX; Damaged.
    """
    if snapshot.find(COLUMNS_PATH) < 0:
        raise InvalidInput(
            f"{SCHEME}{snapshot.dataset} has no columns: add a table with 'dlcmd columns add', then select by it"
        )
    with _Evaluation(expression) as evaluation:
        content = read(COLUMNS_PATH)
        columns = FileColumns.decode(content, evaluation.resolved(FileColumns.names_in(content)))
        is_chosen, of_others = evaluation.chosen(columns)
    return columns.files(snapshot, is_chosen, of_others)


class _Evaluation:
    """A database for one expression. Raises InvalidInput for what is no expression of values and columns."""

    def __init__(self, expression: str) -> None:
        try:
            import duckdb
        except ImportError as error:
            raise InvalidInput(
                f"selections need duckdb ({error}): in a checkout: pip install '.[columns]'"
            ) from None
        if len(expression) > CHARACTERS_MAX:
            raise InvalidInput(
                f"an expression of {len(expression):,} characters; the limit is {CHARACTERS_MAX:,}"
            )
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
            found = self._database.execute("SELECT json_serialize_sql(?)", [statement]).fetchone()
            return json.loads(found[0]) if found else {"error": True, "error_message": "unreadable"}

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
        refused = {name for (name,) in self._database.execute(_REFUSED).fetchall()}
        names = []
        for part in _parts(tree):
            kind = part["class"]
            if kind not in _PARTS:
                raise self._fail(
                    f"{kind.lower()} is not possible; write columns, values, operators and functions"
                )
            if kind == "FUNCTION" and (part["function_name"] in refused or part.get("schema")):
                raise self._fail(f"the function {part['function_name']!r} is not possible here")
            if kind == "COLUMN_REF":
                names.append(".".join(part["column_names"]))
        return names

    def resolved(self, known: list[str]) -> list[str]:
        """The names of the columns that are needed, but PATH. Raises InvalidInput for an unknown one."""
        by_lower = {name.lower(): name for name in [PATH, *known]}
        for name in self._names:
            if name.lower() not in by_lower:
                raise self._fail(name_fault(name, [PATH, *known]))
        needed = dict.fromkeys(by_lower[name.lower()] for name in self._names)
        return [name for name in needed if name != PATH]

    def chosen(self, columns: FileColumns) -> tuple[Any, bool]:
        """For which rows it is true: shape (rows,), and whether it is for a file without values."""
        has_path = any(name.lower() == PATH for name in self._names)
        self._database.register("files", columns.for_expression(has_path))
        timer = Timer(EVALUATION_S_MAX, self._database.interrupt)
        timer.daemon = True
        timer.start()
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
            if "interrupt" in str(error).lower():
                raise self._fail(f"it takes longer than {EVALUATION_S_MAX:.0f} s") from None
            raise self._fail((str(error).splitlines() or ["failed"])[0]) from None
        finally:
            timer.cancel()
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
