"""The experiments of LMDBIO, SHADE, DeepIO and the paper on asynchronous I/O beside their numbers, as in `paper`."""

from collections.abc import Generator
from pathlib import Path

from bench.harness.figures import Scale, Table
from bench.papers.other_numbers import OTHERS
from bench.papers.paper import tables_of


def other_papers(folder: Path, scale: Scale) -> Generator[Table]:
    return tables_of(OTHERS, folder, scale)
