"""Selecting files of a large dataset by their columns, beside a program that filters the table and looks paths up."""

from collections.abc import Generator
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from bench.harness.figures import Scale, Side, Trial
from bench.harness.forms import running_home, store_entries
from bench.harness.stopwatch import measure
from dieselfs.names import COLUMNS_PATH
from dieselfs.selection import expression
from dieselfs.selection.file_columns import PATH, FileColumns
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.subtree import files_below, subtree_snapshot

WHERE = "width >= 512 and lang = 'de'"
_SEED = 1


def selection(folder: Path, scale: Scale) -> Generator[Trial]:
    with running_home(folder / "home") as home:
        store_entries(home, scale.entries)
        with home.dataset() as dataset:
            content = columns_of(dataset.snapshot).encode()
            dataset.put(COLUMNS_PATH, content)
            dataset.flush()
            snapshot = dataset.snapshot
            chosen = expression.select(snapshot, lambda _: content, WHERE)
            count = scale.entries
            sides = [
                Side("a program", lambda: measure(lambda: by_program(snapshot, content)), count, "files"),
                Side(
                    "select",
                    lambda: measure(lambda: expression.select(snapshot, lambda _: content, WHERE)),
                    count,
                    "files",
                ),
            ]
            yield Trial(f"{WHERE}, of {count:,} files", sides, scale.rounds, "a program")
            made = Side(
                "made", lambda: measure(lambda: subtree_snapshot(snapshot, b"", chosen)), len(chosen), "files"
            )
            yield Trial(f"Snapshot of the {len(chosen):,} selected files", [made], scale.rounds)


def columns_of(snapshot: Snapshot) -> FileColumns:
    """Values of all files, the same each time."""
    paths, numbers = snapshot.path_many(files_below(snapshot)), np.random.default_rng(_SEED)
    return FileColumns(
        pa.table(
            {
                PATH: pa.array(paths, pa.large_binary()),
                "width": numbers.integers(64, 2048, len(paths)),
                "lang": numbers.choice(["de", "en", "fr", "ja"], len(paths)),
            }
        )
    )


def by_program(snapshot: Snapshot, content: bytes) -> list[int]:
    """As a program does without selections: a filter by pyarrow, then one lookup for each path."""
    table = parquet.read_table(BytesIO(content))
    is_chosen = pc.and_(pc.greater_equal(table["width"], 512), pc.equal(table["lang"], "de"))
    return [*map(snapshot.find, table[PATH].filter(is_chosen).to_pylist())]
