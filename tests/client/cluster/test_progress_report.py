"""A node tells its progress now and then: not with each renewal, and of the time since the last report."""

from dieselfs.cluster.node_progress import NodeProgress
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry
from dieselfs_client.cluster.progress_report import RENEWALS_PER_REPORT, REPORT_S, ProgressReport


def test_reports_are_rare_and_have_rates_since_the_last_one() -> None:
    now_s, metrics = 100.0, Registry()
    metrics.declare(catalogue.UPTIME_S, lambda: now_s)
    fetched = metrics.declare(catalogue.FETCHES_CHUNK_BYTES)
    fetched.value = 10**9  # before
    report = ProgressReport(metrics, lambda: now_s)
    assert report.due() == b""
    fetched.value += 4000
    for _ in range(RENEWALS_PER_REPORT):
        assert report.due() == b""  # no time has passed
    now_s += 2 * REPORT_S
    told = NodeProgress.of(report.due())
    assert told is not None
    assert (told.fetched_bytes, told.age_s, told.epoch) == (4000 / (2 * REPORT_S), now_s, -1)
    now_s += 2 * REPORT_S
    assert [report.due() == b"" for _ in range(RENEWALS_PER_REPORT)] == [True] * 4 + [False]
