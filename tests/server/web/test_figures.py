"""The figures of charts from reports of metrics."""

import pytest

from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import LATENCY_BOUNDS_S, Registry, Report
from dieselfs_server.web.figures import SERIES, SERVER_SERIES, local_sample, quantile, server_sample


def registry() -> Registry:
    metrics = Registry()
    metrics.gauge("uptime_s", "", lambda: 100)
    return metrics


def report(metrics: Registry) -> Report:
    return metrics.report({"component": "server"})


def test_rates_and_latencies_of_what_happened_between_two_reports() -> None:
    metrics = registry()
    took = metrics.histogram("rpc.answered_s", "", LATENCY_BOUNDS_S, method="stat")
    sent, asked = metrics.counter("payloads.sent_bytes", ""), metrics.counter("reading.requests", "")
    shared = metrics.counter("reading.shared_requests", "")
    took.observe(20.0)
    sent.value, asked.value = 500, 7
    before = report(metrics)
    for _ in range(99):
        took.observe(0.002)
    took.observe(0.2)
    sent.value, asked.value, shared.value = 2500, 11, 1
    sample = server_sample(before, report(metrics), 2.0)
    assert set(sample) == set(SERVER_SERIES) <= set(SERIES)
    assert sample["sent_bytes"] == 1000.0
    assert sample["answer_s"] == pytest.approx((99 * 0.002 + 0.2) / 100)
    assert sample["answer_p99_s"] == 0.003
    assert sample["shared_share"] == 0.25


def test_what_nobody_asked_for_is_not_known() -> None:
    same = report(registry())
    sample = server_sample(same, same, 2.0)
    assert (sample["answer_s"], sample["answer_p99_s"], sample["shared_share"]) == (None, None, None)
    assert sample["calls"] == 0


def test_a_quantile_over_labels() -> None:
    metrics = registry()
    for method, value in (("a", 0.01), ("b", 5.0)):
        metrics.histogram("rpc.answered_s", "", LATENCY_BOUNDS_S, method=method).observe(value)
    now = report(metrics)
    assert quantile(None, now, catalogue.RPC_ANSWERED_S, 0.5) == 0.01
    assert quantile(None, now, catalogue.RPC_ANSWERED_S, 1.0) == 10.0


def test_without_mounts_there_is_nothing_to_draw() -> None:
    assert set(local_sample([]).values()) == {None}
