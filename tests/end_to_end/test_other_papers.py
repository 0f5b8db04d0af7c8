"""`bench other_papers --quick`: each table comes out of real runs and trainings on small data, of any speed."""

import shutil
from importlib.util import find_spec

import pytest

from bench.jobs.pool import NODES, QUICK_NODES
from bench.papers.other_numbers import OTHERS
from bench.papers.paper import benchmarks_of
from bench.papers.paper_numbers import Comparison, Experiment
from bench.papers.shade import CONVERGED
from lab.ceph import missing_ceph
from lab.network import why_not
from tests.support.paper_tables import TIMEOUT_S, printed_by, rows_of
from tests.support.redis import needs_redis

pytestmark = [
    pytest.mark.timeout(TIMEOUT_S + 30),
    pytest.mark.skipif(why_not() is not None, reason=f"the nodes of a job: {why_not()}"),
    pytest.mark.skipif(shutil.which("memcached") is None, reason="needs memcached"),
    needs_redis,
]
if missing := [name for name in ("torch", "sklearn", "lmdb", "pylibmc") if find_spec(name) is None]:
    pytest.skip(f"needs {', '.join(missing)}", allow_module_level=True)

HAS_CEPHFS = missing_ceph() is None and all(map(shutil.which, ("ceph-mds", "ceph-fuse")))
MANY_NODES = tuple(f"^{nodes} nodes" for nodes in NODES if nodes not in QUICK_NODES)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return printed_by("other_papers", tmp_path_factory.mktemp("papers"))


@pytest.mark.parametrize("experiment", OTHERS, ids=lambda each: each.where)
def test_each_table_has_a_measured_row_for_each_comparison(printed: str, experiment: Experiment) -> None:
    if not HAS_CEPHFS and "lmdbio_ceph" in benchmarks_of([experiment]):
        pytest.skip("needs CephFS")
    rows, differs = rows_of(printed, experiment)
    assert [*rows] == [each.what for each in experiment.comparisons]
    assert differs == f"*differs:* {experiment.differs}"
    for each in experiment.comparisons:
        if is_quick(each):
            assert rows[each.what] != "not measured", (each.what, differs)
            assert float(rows[each.what].replace(",", "")) > 0, each.what


def is_quick(comparison: Comparison) -> bool:
    """Whether a quick run measures it: it has few nodes, and too few epochs for importance sampling to converge."""
    return comparison.ours.value != CONVERGED and not comparison.ours.trial.startswith(MANY_NODES)
