"""`bench paper --quick`: each table and figure of the paper comes out of real runs on small data, of any speed."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.papers.paper_numbers import EXPERIMENTS, Experiment
from dieselfs_client.mount.points.mount_table import dieselfs_mounts
from lab.network import why_not
from tests.support.redis import needs_redis

TIMEOUT_S = 900.0
"""A minute or two on an idle machine."""
SHARE = "0.1"
"""Of the data: what is measured takes less time then than what is started for it."""
BENCH = """\
import runpy
from tests.support import warm
warm.use()
runpy.run_module("bench", run_name="__main__", alter_sys=True)
"""
"""`python -m bench`, whose daemons are forks. They take less time to start, and are otherwise the same."""
SVG = "{http://www.w3.org/2000/svg}"

pytestmark = [
    pytest.mark.timeout(TIMEOUT_S + 30),
    pytest.mark.skipif(why_not() is not None, reason=f"the nodes of a job: {why_not()}"),
    pytest.mark.skipif(shutil.which("memcached") is None, reason="needs memcached"),
    needs_redis,
]
pytest.importorskip("pylibmc", reason="needs pylibmc, which has wheels up to Python 3.11")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("paper")


@pytest.fixture(scope="module")
def printed(place: Path) -> Iterator[str]:
    """What the command prints; it draws into `place`."""
    command = [sys.executable, "-c", BENCH, "paper", "--quick", "--share", SHARE]
    command += ["--folder", str(place), "--figure", str(place / "paper.svg")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            output, errors = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.terminate()  # after a timeout it still removes its mounts and networks
    assert process.returncode == 0, errors
    yield output
    left = [record.mountpoint for record in dieselfs_mounts() if str(place) in record.mountpoint]
    assert not left, "mounts are left"


def rows_of(printed: str, experiment: Experiment) -> list[list[str]]:
    """The cells of its table, without the head."""
    blocks = [block.splitlines() for block in printed.split("\n\n")]
    head = f"| {experiment.where}: {experiment.title} | paper | here | rounds | here : paper | processor s | shape |"
    (lines,) = [block for block in blocks if block[0] == head]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda each: each.where.partition(",")[0])
def test_each_table_has_a_measured_row_for_each_comparison(printed: str, experiment: Experiment) -> None:
    *rows, last = rows_of(printed, experiment)
    assert [row[0] for row in rows] == [each.what for each in experiment.comparisons]
    assert last[0] == f"*differs:* {experiment.differs}"
    for what, _, here, *_ in rows:
        assert here != "not measured", (what, last)
        assert float(here.replace(",", "")) > 0, what


def test_the_plot_is_well_formed_and_names_everything(printed: str, place: Path) -> None:
    root = ElementTree.parse(place / "paper.svg").getroot()
    assert root.tag == f"{SVG}svg"
    assert root.get("viewBox")
    texts = ["".join(each.itertext()) for each in root.iter(f"{SVG}text")]
    for experiment in EXPERIMENTS:
        assert f"{experiment.where}: {experiment.title}" in texts
        assert not {each.what for each in experiment.comparisons} - set(texts)
    assert printed
