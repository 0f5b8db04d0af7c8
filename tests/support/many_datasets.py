"""Thousands of empty datasets in the metadata of a server, in one transaction."""

import sqlite3
from contextlib import closing
from pathlib import Path


def add_datasets(metadata: Path, count: int) -> None:
    """Add `set-00000` and so on, each larger than the one before."""
    rows = [
        (
            number.to_bytes(16, "big"),
            f"set-{number:05}",
            1,
            1_700_000_000 * 10**9 + number,
            3 * number,
            1000 * number,
        )
        for number in range(count)
    ]
    with closing(sqlite3.connect(metadata, timeout=30)) as database, database:
        database.executemany(
            "INSERT INTO dataset (dataset_id, name, generation, updated_ns, files, total_bytes) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            rows,
        )
