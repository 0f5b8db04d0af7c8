"""Metrics over HTTP, as Prometheus asks for them."""

import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as parse_older

from dieselfs.errors import InvalidInput, Unavailable
from dieselfs.net.address import TcpAddress
from dieselfs.telemetry import http
from dieselfs.telemetry.http import (
    THREADS_MAX,
    prometheus_text,
    read_token,
    registry_of,
    serving,
    without_users,
)
from dieselfs.telemetry.registry import Registry, Report

LOCAL = TcpAddress("127.0.0.1", 0)


def port_of(url: str) -> int:
    return urlsplit(url).port or 0


def test_each_request_gets_the_present_values_in_the_format_it_accepts() -> None:
    metrics = Registry()
    hits = metrics.counter("node_cache.hits", "Hits.")
    with serving(LOCAL, lambda: [metrics.report({})]) as url:
        for number in (1, 2):
            hits.value = number
            with urlopen(url, timeout=10) as answer:
                assert f"dieselfs_node_cache_hits_total {number}.0\n" in answer.read().decode()
        asked = Request(url, headers={"Accept": "application/openmetrics-text"})
        with urlopen(asked, timeout=10) as answer:
            assert "application/openmetrics-text" in answer.headers["Content-Type"]
            assert answer.read().endswith(b"# EOF\n")


def test_clients_that_say_nothing_give_way_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http._Handler, "request_s", 60.0)
    with serving(LOCAL, list) as url, ExitStack() as stack:
        for _ in range(3 * THREADS_MAX):
            stack.enter_context(socket.create_connection(("127.0.0.1", port_of(url))))
        for _ in range(2):
            with urlopen(url, timeout=30) as answer:
                assert answer.status == 200


def test_with_a_token_a_request_needs_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    file.chmod(0o600)
    with serving(LOCAL, list, read_token(str(file))) as url:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            with pytest.raises(HTTPError, match="401") as refused:
                urlopen(Request(url, headers=headers), timeout=10)
            refused.value.close()
        with urlopen(Request(url, headers={"Authorization": "Bearer secret"}), timeout=10) as answer:
            assert answer.status == 200
    for wrong in (b"\n", b"\xff", b"x" * 2000):
        file.write_bytes(wrong)
        with pytest.raises(InvalidInput, match="metrics token"):
            read_token(str(file))
    file.chmod(0o644)
    with pytest.raises(InvalidInput, match="token"):
        read_token(str(file))


def test_what_names_users_is_left_out() -> None:
    metrics = Registry()
    metrics.counter("users.sent_bytes", "Sent.", user="ann").value = 1
    metrics.counter("reads.failed", "Failed.", operation="get").value = 2
    for account in ("ann", "dl://data"):
        metrics.gauge("quota.used_share", "Full.", lambda: 0.5, account=account, limit="bytes")
    text = prometheus_text([without_users(metrics.report({}))])
    assert "ann" not in text and 'account="dl://data"' in text and "dieselfs_reads_failed" in text


def test_a_client_that_sends_single_bytes_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http._Handler, "request_s", 0.5)
    with serving(LOCAL, list) as url, socket.create_connection(("127.0.0.1", port_of(url))) as slow:
        slow.settimeout(0.05)
        for _ in range(600):
            try:
                slow.sendall(b"G")
                assert not slow.recv(1)
                break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            raise AssertionError("it was answered, or is connected")
        with urlopen(url, timeout=30) as answer:
            assert answer.status == 200


def test_an_address_that_is_taken_is_refused() -> None:
    with (
        serving(LOCAL, list) as url,
        pytest.raises(Unavailable, match="cannot serve metrics at"),
        serving(TcpAddress("127.0.0.1", port_of(url)), list),
    ):
        raise AssertionError


def test_ipv6() -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with serving(TcpAddress("::1", 0), list) as url, urlopen(url, timeout=10) as answer:
        assert answer.status == 200


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
