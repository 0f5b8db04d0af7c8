"""What is done with a mounted tree, and measured: reading, listing, training. This module starts processes."""

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from bench.harness.figures import Run
from bench.harness.forms import SourceTree
from bench.harness.readers import Work, planned_reader, read_together, shares_of
from bench.harness.stopwatch import Processes, measure, processor_s, spent_since
from bench.mounts.listing import WALKS
from bench.papers.paper_training import trained
from bench.rivals.rival import Mounted

READERS = 4
GROUP_CHUNKS = 4
WALKED = ("ls -R", "ls -lR")

FileReader = Callable[[Path, Sequence[str], int], Work]
"""Of a folder, the paths in it, and their length."""

Workload = Callable[[Mounted, Processes], Run]
"""`Processes`: those of the mount and its servers, whose processor time is part of the run."""

_epochs = count()


def reading(reader: FileReader, paths: Sequence[str], file_bytes: int) -> Workload:
    """All paths once, by READERS processes."""

    def read(place: Mounted, processes: Processes) -> Run:
        works = [partial(reader, place.folder, each, file_bytes) for each in shares_of(paths, READERS)]
        return read_together(works, len(paths), processes)

    return read


def reading_a_plan(tree: SourceTree) -> Workload:
    """All files of a dataset in the chunk-wise order of another epoch each time."""

    def read(place: Mounted, processes: Processes) -> Run:
        plan = f"seed=1,epoch={next(_epochs)},group={GROUP_CHUNKS},world={READERS}"
        works = [
            partial(planned_reader, place.folder, f"{plan},rank={rank}", tree.file_bytes)
            for rank in range(READERS)
        ]
        return read_together(works, tree.files, processes)

    return read


def listing(walk: str, files: int) -> Workload:
    def walked(place: Mounted, processes: Processes) -> Run:
        command = ["sh", "-c", WALKS[walk], "sh", str(place.folder), str(files)]
        run = partial(subprocess.run, command, env={**os.environ, "LC_ALL": "C"}, check=True)
        return measure(run, processes)

    return walked


def training(images: int, into: Path) -> Workload:
    """Of `paper_training`, from the mount; `into`: a folder for its notes."""

    def train(place: Mounted, processes: Processes) -> Run:
        before_s = processor_s(processes)
        run = trained(str(place.folder), images, into)
        return replace(run, parts=spent_since(before_s, processes))

    return train
