"""Samples for everybody who watches."""

import json
from collections.abc import Iterator

import pytest

from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import LATENCY_BOUNDS_S, Registry, Report
from dieselfs_server.web.live import (
    MINUTES_MAX,
    SAMPLE_S,
    SAMPLES_MAX,
    SERIES,
    SERVER_SERIES,
    Charts,
    Live,
    local_sample,
    quantile,
    server_sample,
)
from tests.support.still_time import run_in_still_time, time_flies


def server() -> Registry:
    metrics = Registry()
    metrics.gauge("uptime_s", "", lambda: 1000)
    return metrics


def test_each_sample_reaches_all_and_daemons_are_asked_only_for_them() -> None:
    metrics = server()
    sent = metrics.counter("payloads.sent_bytes", "")
    asked: list[int] = []

    def mounts() -> Iterator[tuple[int, Report]]:
        asked.append(1)
        mount = server()
        mount.counter("fetches.chunk_bytes", "").value = 1000 * len(asked)
        yield 7, mount.report({"component": "mount", "dataset": "pets"})

    async def main() -> None:
        import trio

        live = Live(lambda: metrics.report({"component": "server"}), mounts)
        with time_flies():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(live.run)
                await live.next()
                sent.value += 600
                first = json.loads(await live.next())
                assert first["sample"]["sent_bytes"] == 600 / SAMPLE_S
                assert (first["local"], asked) == ([], [])
                live.watchers = 1
                await live.next()
                third = json.loads(await live.next())
                assert third["local"][0]["about"]["dataset"] == "pets"
                assert third["sample"]["mount_bytes"] == 1000 / SAMPLE_S
                nursery.cancel_scope.cancel()
        assert len(live.charts.columns(600)["time"]) == 3

    run_in_still_time(main)


def test_a_metric_that_cannot_be_read_ends_nothing() -> None:
    metrics = server()
    metrics.gauge("rpc.connections", "", lambda: 1 / len(values))
    values: list[int] = []

    async def main() -> None:
        import trio

        live = Live(lambda: metrics.report({"component": "server"}), lambda: ())
        with time_flies():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(live.run)
                assert await live.next() == b"{}"
                values.append(1)
                await live.next()
                assert json.loads(await live.next())["sample"]["connections"] == 1
                nursery.cancel_scope.cancel()

    run_in_still_time(main)


def test_the_newest_samples_of_a_span() -> None:
    charts = Charts(["a", "b"])
    for number in range(SAMPLES_MAX + 10):
        charts.add(1000.0 + 2 * number, {"a": float(number)})
    columns = charts.columns(10)
    newest = SAMPLES_MAX + 9
    assert columns == {
        "time": [1000.0 + 2 * number for number in range(newest - 4, newest + 1)],
        "a": [float(number) for number in range(newest - 4, newest + 1)],
        "b": [None] * 5,
    }
    assert len(charts.columns(1800)["time"]) == SAMPLES_MAX


def test_a_long_span_has_means_of_minutes() -> None:
    charts = Charts(["a"])
    for second in range(0, 180, 2):
        charts.add(60_000.0 + second, {"a": None if second < 60 else float(second // 60)})
    assert charts.columns(86_400) == {"time": [60_000, 60_060, 60_120], "a": [None, 1.0, 2.0]}


def test_a_day_is_all_that_is_kept() -> None:
    charts = Charts(["a"])
    for minute in range(MINUTES_MAX + 100):
        charts.add(60.0 * minute, {"a": 1.0})
    assert len(charts.columns(10**9)["time"]) <= MINUTES_MAX + 1


def test_nothing_is_an_empty_chart() -> None:
    assert Charts(["a"]).columns(60) == {"time": [], "a": []}


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
    assert sample["answer_p99_s"] == pytest.approx(0.003)
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
    assert quantile(None, now, catalogue.RPC_ANSWERED_S, 0.75) == pytest.approx((3.0 + 10.0) / 2)
    assert quantile(None, now, catalogue.RPC_ANSWERED_S, 1.0) == 10.0


def test_without_mounts_there_is_nothing_to_draw() -> None:
    assert set(local_sample([]).values()) == {None}
