"""One file more in a dataset of 100 million files: what it costs the server, and each client.

In the working folder are the base and one result, of 14 GB each. Without memory for both as page cache, this measures
the disk. A share of 0.1 is 10 million files.
"""

from collections.abc import Generator
from pathlib import Path

from bench.harness.figures import Scale, Trial
from bench.harness.many_entries import entry_tables
from bench.storage.snapshot import one_more
from dieselfs.snapshot.builder import SnapshotBuilder
from dieselfs.snapshot.reader import Snapshot

_TIMES = 78.125
"""The entries of other benchmarks: 100 million."""


def one_file_more(folder: Path, scale: Scale) -> Generator[Trial]:
    entries = round(_TIMES * scale.entries)
    builder = SnapshotBuilder(str(folder))
    for table in entry_tables("many", entries):
        builder.add(table)
    with open(folder / "many.snapshot", "w+b") as file:
        builder.write(file)
    del builder  # and what it has spilled
    server, client, *_ = one_more(Snapshot.open(folder / "many.snapshot"), folder)
    yield Trial(f"One file more in {entries:,} files", [server, client], scale.rounds)
