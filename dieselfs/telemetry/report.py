"""The metrics of processes as text, in OpenMetrics or the older format of Prometheus, with `prometheus-client`. No I/O.

The older one is for files: `promtool` and the textfile collector of node_exporter read no other.
"""

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from dieselfs.telemetry.registry import Report


class Collector:
    """Gives a registry of prometheus-client the metrics that `reports` returns at each request."""

    def __init__(self, reports: Callable[[], Iterable[Report]]) -> None:
        self._reports = reports

    def collect(self) -> Iterable[Metric]:
        """A family that processes of another version declare as another kind is left out for them."""
        found: dict[str, Metric] = {}
        for report in self._reports():
            for family in report.families:
                name = (
                    family["name"].removesuffix("_total") if family["kind"] == "counter" else family["name"]
                )
                metric = found.setdefault(name, Metric(name, family["help"], family["kind"], family["unit"]))
                if metric.type != family["kind"]:
                    continue
                for values, value in family["samples"]:
                    labels = {**report.about, **dict(zip(family["labels"], values, strict=True))}
                    _add(metric, labels, value)
        return found.values()


def _add(metric: Metric, labels: dict[str, str], value: Any) -> None:
    if metric.type != "histogram":
        suffix = "_total" if metric.type == "counter" else ""
        metric.add_sample(metric.name + suffix, labels, value)
        return
    for bound, count in (*value["le"].items(), ("+Inf", value["count"])):
        metric.add_sample(metric.name + "_bucket", {**labels, "le": bound}, count)
    metric.add_sample(metric.name + "_count", labels, value["count"])
    metric.add_sample(metric.name + "_sum", labels, value["sum"])


def registry_of(reports: Callable[[], Iterable[Report]]) -> CollectorRegistry:
    """A registry of prometheus-client that has what `reports` returns at each request."""
    registry = CollectorRegistry()
    registry.register(Collector(reports))
    return registry


def prometheus_text(reports: Iterable[Report]) -> str:
    """The older format."""
    found = tuple(reports)
    return generate_latest(registry_of(lambda: found)).decode()
