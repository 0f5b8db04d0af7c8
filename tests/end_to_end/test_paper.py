"""`bench paper --quick`: each table and figure of the paper comes out of real runs on small data, of any speed."""

import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.papers.paper_numbers import EXPERIMENTS, Experiment
from lab.network import why_not
from tests.support.paper_tables import TIMEOUT_S, printed_by, rows_of
from tests.support.redis import needs_redis

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
def printed(place: Path) -> str:
    """What the command prints; it draws into `place`."""
    return printed_by("paper", place, ["--figure", str(place / "paper.svg")])


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda each: each.where.partition(",")[0])
def test_each_table_has_a_measured_row_for_each_comparison(printed: str, experiment: Experiment) -> None:
    rows, differs = rows_of(printed, experiment)
    assert [*rows] == [each.what for each in experiment.comparisons]
    assert differs == f"*differs:* {experiment.differs}"
    for what, here in rows.items():
        assert here != "not measured", (what, differs)
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
