"""`bench other_papers --quick`: each table comes out of real runs and trainings on small data, of any speed."""

import pytest

from bench.papers.other_numbers import OTHERS
from bench.papers.paper_numbers import Experiment
from bench.papers.shade import CONVERGED
from tests.support.paper_tables import TIMEOUT_S, printed_by, rows_of

pytestmark = pytest.mark.timeout(TIMEOUT_S + 30)
for module in ("torch", "sklearn", "lmdb"):
    pytest.importorskip(module)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return printed_by("other_papers", tmp_path_factory.mktemp("papers"))


@pytest.mark.parametrize("experiment", OTHERS, ids=lambda each: each.where)
def test_each_table_has_a_measured_row_for_each_comparison(printed: str, experiment: Experiment) -> None:
    """Times to converge are missing, as in the few epochs of a quick run importance sampling does not converge."""
    rows, differs = rows_of(printed, experiment)
    assert [*rows] == [each.what for each in experiment.comparisons]
    assert differs == f"*differs:* {experiment.differs}"
    for each in experiment.comparisons:
        if each.ours.value != CONVERGED:
            assert rows[each.what] != "not measured", (each.what, differs)
            assert float(rows[each.what].replace(",", "")) > 0, each.what
