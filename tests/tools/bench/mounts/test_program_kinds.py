"""Each program reads back all that it wrote. The large packages are left to the benchmark."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from bench.mounts.program_kinds import PROGRAMS, Program

LARGE = {"torch", "datasets", "tensorflow", "pandas", "webdataset"}
UNITS = 3


@pytest.mark.parametrize(
    "program", [each for each in PROGRAMS if not LARGE & {*each.packages}], ids=lambda each: each.folder
)
def test_a_program_reads_what_it_wrote(program: Program, tmp_path: Path) -> None:
    for package in program.packages:
        if find_spec(package) is None:
            pytest.skip(f"needs {package}")
    items = program.write(tmp_path, UNITS)
    assert items >= UNITS
    assert program.read(tmp_path, UNITS) == items


def test_programs_have_folders_of_their_own() -> None:
    assert len({program.folder for program in PROGRAMS}) == len(PROGRAMS)
