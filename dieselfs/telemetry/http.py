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

from prometheus_client import make_wsgi_app

from dieselfs.errors import Unavailable
from dieselfs.net.address import TcpAddress
from dieselfs.telemetry.registry import Report
from dieselfs.telemetry.report import registry_of

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
