"""Serves metrics over HTTP, for Prometheus. This module opens sockets, and starts a thread.

`GET /metrics` gives OpenMetrics or the older text format of Prometheus, as the request accepts. One thread
answers the requests in turn, each within METRICS_HTTP_REQUEST_S. So slow clients take one thread at most.
"""

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.core import Metric

from dieselfs.errors import Unavailable
from dieselfs.net.address import TcpAddress
from dieselfs.telemetry.registry import Report

METRICS_HTTP_TIMEOUT_S = 5.0
"""A client that neither asks nor reads for this time is disconnected."""
METRICS_HTTP_REQUEST_S = 10.0
"""So is one whose request takes longer, however often it sends or takes a byte."""

_log = logging.getLogger(__name__)


class _Handler(WSGIRequestHandler):
    timeout = METRICS_HTTP_TIMEOUT_S
    request_s = METRICS_HTTP_REQUEST_S

    def handle(self) -> None:
        ending = threading.Timer(self.request_s, self._disconnect)
        ending.daemon = True
        ending.start()
        try:
            super().handle()
        finally:
            ending.cancel()

    def _disconnect(self) -> None:
        with suppress(OSError):  # it has ended
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("%s: " + format, self.address_string(), *args)

    def address_string(self) -> str:
        return str(self.client_address[0])


class _Server6(WSGIServer):
    address_family = socket.AF_INET6


@contextmanager
def serving(address: TcpAddress, reports: Callable[[], Iterable[Report]]) -> Iterator[str]:
    """Answer requests in a thread until the end of the block. Raises Unavailable if the address cannot be used.

    `reports` is called in that thread. Yields the URL; port 0 takes a free port.
    """
    app = make_wsgi_app(registry_of(reports))
    try:
        kind = _Server6 if ":" in address.host else WSGIServer
        server = make_server(address.host, address.port, app, kind, _Handler)
    except OSError as error:
        raise Unavailable(f"cannot serve metrics at {address}: {error.strerror or error}") from None
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    with server:
        thread.start()
        try:
            host = f"[{address.host}]" if ":" in address.host else address.host
            yield f"http://{host}:{server.server_port}/metrics"
        finally:
            server.shutdown()
            thread.join()


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
