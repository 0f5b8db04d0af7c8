"""Serves metrics over HTTP, for Prometheus. This module opens sockets, and starts a thread.

`GET /metrics` gives OpenMetrics or the older text format of Prometheus, as the request accepts. Each connection has a
thread, THREADS_MAX at most. A client has METRICS_HTTP_REQUEST_S to ask, and METRICS_HTTP_ANSWER_S to take the answer;
while all threads are taken, the one that has asked nothing for longest gives way. With a token, a request needs it.
"""

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from hmac import compare_digest
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.core import Metric

from dieselfs.errors import Unavailable, os_errors_as
from dieselfs.net.address import TcpAddress
from dieselfs.net.private_file import read_private_text
from dieselfs.telemetry.registry import Report

METRICS_HTTP_REQUEST_S = 1.0
"""A client whose request is not complete after this time is disconnected."""
METRICS_HTTP_ANSWER_S = 10.0
"""So is one that has not taken the answer after this time, however often it takes a byte."""
THREADS_MAX = 8
TOKEN_BYTES_MAX = 1024

_log = logging.getLogger(__name__)


class _Handler(WSGIRequestHandler):
    request_s = METRICS_HTTP_REQUEST_S

    def handle(self) -> None:
        self._ending = _ends_after(self.request_s, self.connection)
        try:
            super().handle()
        finally:
            self._ending.cancel()

    def parse_request(self) -> bool:
        """Called with the first line; reads the others."""
        is_right = super().parse_request()
        self._ending.cancel()
        self._ending = _ends_after(METRICS_HTTP_ANSWER_S, self.connection)
        server = self.server
        assert isinstance(server, _Server)
        server.note_request(self.connection)
        if is_right and not server.is_allowed(self.headers.get("authorization", "")):
            self.send_error(401, "the token is missing or wrong")
            return False
        return is_right

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        self.close_connection = True
        super().send_error(code, message, explain)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("%s: " + format, self.address_string(), *args)

    def address_string(self) -> str:
        return str(self.client_address[0])


def _ends_after(seconds: float, connection: socket.socket) -> threading.Timer:
    ending = threading.Timer(seconds, _disconnect, (connection,))
    ending.daemon = True
    ending.start()
    return ending


def _disconnect(connection: socket.socket) -> None:
    with suppress(OSError):  # it has ended
        connection.shutdown(socket.SHUT_RDWR)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    token = ""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._lock = threading.Lock()  # guards the two below
        self._open = 0
        self._silent: dict[socket.socket, None] = {}  # connections without a request, the oldest first
        super().__init__(*arguments, **options)

    def is_allowed(self, authorization: str) -> bool:
        return not self.token or compare_digest(authorization.encode(), f"Bearer {self.token}".encode())

    def note_request(self, connection: socket.socket) -> None:
        with self._lock:
            self._silent.pop(connection, None)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            oldest = next(iter(self._silent), None)
            is_full = self._open >= THREADS_MAX
            if not is_full or oldest is not None:
                self._open += 1
                self._silent[request] = None
            if is_full and oldest is not None:
                del self._silent[oldest]
        if is_full and oldest is None:  # all are being answered
            self.shutdown_request(request)
            return
        if is_full and oldest is not None:
            _disconnect(oldest)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open -= 1
                self._silent.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("%s: a request for metrics failed", client_address[0], exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


def read_token(path: str) -> str:
    """The token in a private file. Raises InvalidInput."""
    return read_private_text(path, TOKEN_BYTES_MAX, "metrics token", "ascii")


def without_users(report: Report) -> Report:
    """The report without what names users: families by user, and quotas of users."""
    families = []
    for family in report.families:
        if "user" in family["labels"]:
            continue
        if "account" in family["labels"]:
            place = family["labels"].index("account")
            kept = [sample for sample in family["samples"] if sample[0][place].startswith("dl://")]
            family = {**family, "samples": kept}
        families.append(family)
    return replace(report, families=families)


@contextmanager
def serving(address: TcpAddress, reports: Callable[[], Iterable[Report]], token: str = "") -> Iterator[str]:
    """Answer requests in threads until the end of the block. Raises Unavailable if the address cannot be used.

    `reports` is called in these threads. Yields the URL; port 0 takes a free port.
    """
    app = make_wsgi_app(registry_of(reports))
    with os_errors_as(Unavailable, f"cannot serve metrics at {address}"):
        kind = _Server6 if ":" in address.host else _Server
        server = make_server(address.host, address.port, app, kind, _Handler)
        server.token = token
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
