"""The tables that SQLite makes are the ones that `docs/reference/metadata-keys.md` describes."""

import os
import re
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from dieselfs_server.metadata.sqlite.connections import BUSY_PAUSE_S, MEMORY, Connections, FairLock
from dieselfs_server.metadata.sqlite.schema import DATASET_TABLES

DOCUMENT = Path(__file__).parents[4] / "docs" / "reference" / "metadata-keys.md"


def documented_tables() -> dict[str, set[str]]:
    """Each table of the document with its columns: the key's, and the others."""
    tables = {}
    for line in DOCUMENT.read_text().partition("## SQLite")[2].splitlines():
        cells = line.split("|")
        name = re.fullmatch(r" `(\w+)` ", cells[1]) if len(cells) > 4 else None
        if name:
            tables[name[1]] = set(re.findall(r"`(\w+)`", cells[2] + cells[4]))
    return tables


def test_the_document_lists_every_table_and_column() -> None:
    with closing(Connections(MEMORY)) as connections, connections.reading() as connection:
        names = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            if not name.startswith("sqlite_")
        ]
        tables = {
            name: {column[1] for column in connection.execute(f"PRAGMA table_info({name})")} for name in names
        }
    assert documented_tables() == tables
    assert {name for name, columns in tables.items() if "dataset" in columns} == set(DATASET_TABLES)


def test_one_that_writes_finds_short_pauses_of_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks again every few ms, as often as needed, and no later each time."""
    path, pauses = tmp_path / "metadata.db", list[float]()
    with closing(Connections(str(path))) as connections, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")

        def pause(length_s: float) -> None:
            pauses.append(length_s)
            if len(pauses) == 50:
                other.rollback()

        monkeypatch.setattr(time, "sleep", pause)
        with connections.writing():
            assert pauses == [BUSY_PAUSE_S] * 50
    assert BUSY_PAUSE_S <= 0.005


def test_who_asks_for_the_lock_again_does_not_overtake() -> None:
    lock = FairLock()
    order: list[int] = []

    def take(number: int) -> None:
        with lock:
            order.append(number)

    with ThreadPoolExecutor(5) as threads, ExitStack() as held:
        held.enter_context(lock)
        for number in range(5):
            threads.submit(take, number)
            while len(lock._waiting) <= number:
                os.sched_yield()
        held.close()
        take(5)  # by the thread that had it
    assert order == [0, 1, 2, 3, 4, 5]
