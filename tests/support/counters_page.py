"""The page `docs/reference/counters.md`, made from the declarations of metrics in the code.

Run `python -m tests.support.counters_page` after a metric was added or changed.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Family
from tests.support.documents import DOCUMENTS

PAGE = DOCUMENTS / "reference/counters.md"
_ROOT = DOCUMENTS.parent
_KINDS = frozenset({"counter", "gauge", "histogram", "info"})
_OF_CATALOGUE = frozenset({"declare", "declare_histogram"})
_HEAD = """# Counters

The metrics of dieselfs, counted since the start of the process. A mount shows its metrics in `.dieselfs/stats`, a
program those of the library with `data.statistics()`, a server with `dlcmd server status --json`. In JSON, names nest
at the dots, and a label is one more level. An info is text, a list or an object. `dlcmd metrics` prints the names in
OpenMetrics ([monitoring](../guide/monitoring.md)).

This page is made from the code: `python -m tests.support.counters_page`.

| name | type | unit | labels | name in OpenMetrics | what |
| --- | --- | --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class Declaration:
    family: Family
    place: str


def declarations() -> Iterator[Declaration]:
    """Every declaration in the product. Raises unless names and help are literals, and labels keywords."""
    for folder in ("dieselfs", "server", "client", "tools/dieselfs_tools"):
        for path in sorted((_ROOT / folder).rglob("*.py")):
            if path == _ROOT / "dieselfs/telemetry/registry.py":
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and _is_metric(node):
                    yield Declaration(_family(node), f"{path.relative_to(_ROOT)}:{node.lineno}")


def _is_metric(call: ast.Call) -> bool:
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr in _KINDS | _OF_CATALOGUE
        and ast.unparse(function.value).rpartition(".")[2] == "metrics"
    )


def _family(call: ast.Call) -> Family:
    assert isinstance(call.func, ast.Attribute)
    labels = [keyword.arg for keyword in call.keywords if keyword.arg]
    if call.func.attr in _OF_CATALOGUE:
        family: Family = getattr(catalogue, ast.unparse(call.args[0]).removeprefix("catalogue."))
        assert family.labels == tuple(labels), family.name
        return family
    name, text = map(ast.literal_eval, call.args[:2])
    return Family(call.func.attr, name, text, tuple(labels))


def _exported(family: Family) -> str:
    return "" if family.kind == "info" else f"`{family.exported_name}`"


def page() -> str:
    families = {each.family for each in declarations()}
    rows = [
        f"| `{family.name}` | {family.kind} | {family.unit} | {', '.join(family.labels)} | {_exported(family)} "
        f"| {family.help} |\n"
        for family in sorted(families, key=lambda family: family.name)
    ]
    return _HEAD + "".join(rows)


if __name__ == "__main__":
    Path(PAGE).write_text(page(), encoding="utf-8")
