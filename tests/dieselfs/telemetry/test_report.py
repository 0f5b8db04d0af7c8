"""Metrics as text are read back with the parser of prometheus-client."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as parse_older

from dieselfs.telemetry.registry import Registry, Report
from dieselfs.telemetry.report import prometheus_text, registry_of

ABOUT = {"component": "mount", "mountpoint": '/mnt/"x"\\\n'}


def samples(reports: list[Report]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = generate_latest(registry_of(lambda: reports)).decode()
    assert text.endswith("# EOF\n")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def registry() -> Registry:
    metrics = Registry()
    metrics.counter("fetches.chunk_bytes", "Bytes.").value = 7
    metrics.counter("reads.failed", "Failed.", operation="get").value = 2
    metrics.gauge("hit_rate.actual", "Share.", lambda: None)
    metrics.gauge("uptime_s", "Age.", lambda: 1.5)
    metrics.histogram("reads.waited_s", "Waits.", (0.1, 1.0)).observe(0.5)
    metrics.info("plans", "Plans.", lambda: [{"epoch": 1}])
    return metrics


def test_each_kind_of_metric_is_read_back_with_the_labels_of_its_process() -> None:
    found = samples([registry().report(ABOUT)])
    labels = tuple(ABOUT.items())
    assert found == {
        ("dieselfs_fetches_chunk_bytes_total", labels): 7,
        ("dieselfs_reads_failed_total", (*labels, ("operation", "get"))): 2,
        ("dieselfs_uptime_seconds", labels): 1.5,
        ("dieselfs_reads_waited_seconds_bucket", (labels[0], ("le", "0.1"), labels[1])): 0,
        ("dieselfs_reads_waited_seconds_bucket", (labels[0], ("le", "1.0"), labels[1])): 1,
        ("dieselfs_reads_waited_seconds_bucket", (labels[0], ("le", "+Inf"), labels[1])): 1,
        ("dieselfs_reads_waited_seconds_count", labels): 1,
        ("dieselfs_reads_waited_seconds_sum", labels): 0.5,
    }


def test_the_older_format_has_the_same_values() -> None:
    text = prometheus_text([registry().report(ABOUT)])
    found = {s.name: s.value for family in parse_older(text) for s in family.samples if s.name[-1] != "t"}
    assert found["dieselfs_fetches_chunk_bytes_total"] == 7
    assert found["dieselfs_reads_waited_seconds_sum"] == 0.5


@given(st.lists(st.integers(0, 10**9), min_size=2, max_size=5))
def test_processes_share_a_family_and_differ_in_labels(numbers: list[int]) -> None:
    reports = []
    for process, number in enumerate(numbers):
        metrics = Registry()
        metrics.counter("rpc.requests", "Calls.").value = number
        reports.append(metrics.report({"component": str(process)}))
    found = samples(reports)
    assert [*found.values()] == numbers


@pytest.mark.parametrize("other", ["gauge", "counter"])
def test_a_process_of_another_version_hides_no_other(other: str) -> None:
    one, two = Registry(), Registry()
    one.gauge("job.nodes", "Nodes.").value = 1
    getattr(two, other)("job.nodes", "Nodes.").value = 2
    found: dict[Any, float] = samples([one.report({"c": "1"}), two.report({"c": "2"})])
    assert found[("dieselfs_job_nodes", (("c", "1"),))] == 1
