"""docs/internals/concurrency.md agrees with the code: the classes and locks that it names exist."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.documents import REPOSITORY

PAGE = REPOSITORY / "docs" / "internals" / "concurrency.md"
ROOTS = {
    "": REPOSITORY,
    "dieselfs": REPOSITORY / "dieselfs",
    "server: ": REPOSITORY / "server" / "dieselfs_server",
    "client: ": REPOSITORY / "client" / "dieselfs_client",
}
_ROW = re.compile(
    r"\| (?P<objects>.*?`) ?(?:and its \w+ \w+ )?\(`(?P<place>[^`]+)`\) \|[^|]*\| (?P<guard>.*) \|"
)
_NAME = re.compile(r"`(_\w+|lock|lanes?)`")


class Row(NamedTuple):
    classes: list[str]
    modules: list[Path]
    locks: list[str]


def rows() -> Iterator[Row]:
    for line in PAGE.read_text("utf-8").splitlines():
        if found := _ROW.fullmatch(line):
            place = re.sub(r"^(server|client): ", "", found["place"])
            candidates = [root / place for root in ROOTS.values()]
            there = [path for path in candidates if path.exists()]
            modules = [
                module for path in there for module in (path.rglob("*.py") if path.is_dir() else [path])
            ]
            yield Row(re.findall(r"`(\w+)`", found["objects"]), modules, _NAME.findall(found["guard"]))


def test_the_classes_and_locks_of_the_page_exist() -> None:
    found = list(rows())
    assert len(found) > 30
    faults = []
    for row in found:
        source = "\n".join(module.read_text("utf-8") for module in row.modules)
        faults += [
            f"{row.classes}: no class {name} there" for name in row.classes if f"class {name}" not in source
        ]
        faults += [
            f"{row.classes}: no {lock} there" for lock in row.locks if not re.search(rf"\b{lock}\b", source)
        ]
    assert not faults, "\n" + "\n".join(faults)
