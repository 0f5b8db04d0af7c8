"""Sends the audit log to other machines: to syslog (RFC 5424), or to an OpenTelemetry collector (OTLP over HTTP, JSON).

    syslog:///dev/log   syslog+udp://HOST:PORT   syslog+tcp://HOST:PORT   syslog+tls://HOST:PORT
    otlp+http://HOST:PORT[/PATH]   otlp+https://HOST:PORT[/PATH]

The file of the audit log has all entries; what is sent is a copy. A thread sends it, so no call waits. While the target
is away, ENTRIES_MAX entries wait, and further ones are counted and dropped; the next one that is sent says how many.
TCP and UDP confirm nothing, so an entry that was on its way at a failure may be lost there, or arrive twice.
"""

import http.client
import json
import logging
import os
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from queue import Empty, Full, Queue
from typing import Any
from urllib.parse import urlsplit

from dieselfs.errors import InvalidInput

ENTRIES_MAX = 10_000
"""Entries that wait for the target."""
BATCH_MAX = 100
"""Entries in one request of OTLP."""
TIMEOUT_S = 5.0
PAUSE_S = 5.0
"""Between two tries while the target is away."""
CLOSE_S = 2.0
"""At the end of the server, entries that wait are sent for this time."""
SYSLOG_PRIORITY = 13 * 8 + 5
"""Facility "log audit", severity "notice"."""
OTLP_PATH = "/v1/logs"

_SYSLOG = ("syslog", "syslog+udp", "syslog+tcp", "syslog+tls")
_OTLP = ("otlp+http", "otlp+https")

Entry = Mapping[str, Any]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """`place`: of a Unix socket its path, of OTLP the path of the URL."""

    scheme: str
    host: str
    port: int
    place: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}" if self.host else f"{self.scheme}://{self.place}"


def parse_target(url: str) -> Target:
    """Raises InvalidInput."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 0
    except ValueError:
        host, port = "", 0
    is_local = parts.scheme == "syslog" and not host and parts.path.startswith("/")
    if parts.scheme not in (*_SYSLOG, *_OTLP) or not (is_local or (host and port)) or parts.username:
        known = (
            "syslog:///dev/log, syslog+udp://, syslog+tcp://, syslog+tls://, otlp+http:// or otlp+https://"
        )
        raise InvalidInput(f"audit_to {url!r}: use {known}, with HOST:PORT")
    place = parts.path if is_local or parts.path.strip("/") else OTLP_PATH
    return Target("syslog+udp" if host and parts.scheme == "syslog" else parts.scheme, host, port, place)


def syslog_message(entry: Entry, host: str, process: int) -> bytes:
    """A message of RFC 5424: the entry as JSON, its event as MSGID."""
    time = datetime.fromtimestamp(entry["time"], UTC).isoformat(timespec="microseconds")
    time = time.replace("+00:00", "Z")
    header = (
        f"<{SYSLOG_PRIORITY}>1 {time} {host[:255] or '-'} dieselfs {process} {str(entry['event'])[:32]} - "
    )
    return (header + json.dumps(entry)).encode()


def otlp_body(entries: Sequence[Entry], host: str) -> bytes:
    """An `ExportLogsServiceRequest` as JSON."""
    records = [
        {
            "timeUnixNano": str(round(entry["time"] * 10**6) * 1000),
            "severityNumber": 9,
            "severityText": "INFO",
            "body": {"stringValue": json.dumps(entry)},
            "attributes": [
                {"key": f"dieselfs.{name}", "value": {"stringValue": str(value)}}
                for name, value in entry.items()
                if name != "time" and value is not None
            ],
        }
        for entry in entries
    ]
    about = [("service.name", "dieselfs-server"), ("host.name", host)]
    resource = {"attributes": [{"key": name, "value": {"stringValue": value}} for name, value in about]}
    scoped = [{"scope": {"name": "dieselfs.audit"}, "logRecords": records}]
    return json.dumps({"resourceLogs": [{"resource": resource, "scopeLogs": scoped}]}).encode()


class AuditSender:
    """`send` may be called from any thread."""

    def __init__(self, target: Target, pause_s: float = PAUSE_S) -> None:
        self._target = target
        self._pause_s = pause_s
        self._waiting: Queue[Entry] = Queue(ENTRIES_MAX)
        self._dropped_lock = threading.Lock()  # guards `_dropped`
        self._dropped = 0
        self._closing = threading.Event()
        self._host = socket.gethostname()
        self._socket: socket.socket | None = None  # of the thread
        self._is_away = False
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def send(self, entry: Entry) -> None:
        try:
            self._waiting.put_nowait(entry)
        except Full:
            with self._dropped_lock:
                self._dropped += 1

    def close(self) -> None:
        """Sends what waits, for CLOSE_S at most."""
        self._closing.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        batch: list[Entry] = []
        while batch or not (self._closing.is_set() and self._waiting.empty()):
            if not batch:
                batch = self._next()
            try:
                if batch:
                    self._deliver(batch)
            except (OSError, http.client.HTTPException, ValueError) as error:
                if not self._is_away:
                    log.warning("the audit log cannot be sent to %s: %s; entries wait", self._target, error)
                self._is_away = True
                self._disconnect()
                if self._closing.wait(self._pause_s):
                    break
                continue
            if batch and self._is_away:
                log.info("the audit log is sent to %s again", self._target)
                self._is_away = False
            batch = []
        self._disconnect()

    def _next(self) -> list[Entry]:
        """Entries to send, with the number of those that were dropped; none after a while."""
        batch: list[Entry] = []
        with suppress(Empty):
            batch.append(self._waiting.get(timeout=0.2))
            while len(batch) < BATCH_MAX:
                batch.append(self._waiting.get_nowait())
        with self._dropped_lock:
            dropped, self._dropped = self._dropped, 0
        if dropped and batch:
            batch.append({"time": batch[-1]["time"], "event": "not_sent", "user": "", "entries": dropped})
        return batch

    def _deliver(self, batch: list[Entry]) -> None:
        """Send, and remove from the batch what is sent. Raises OSError, HTTPException."""
        if self._target.scheme in _OTLP:
            self._post(otlp_body(batch, self._host))
            return
        while batch:
            message = syslog_message(batch[0], self._host, os.getpid())
            if self._target.scheme in ("syslog+tcp", "syslog+tls"):
                message = b"%d %s" % (len(message), message)  # octet counting of RFC 6587
            self._connected().sendall(message)
            del batch[0]

    def _post(self, body: bytes) -> None:
        target = self._target
        kind = http.client.HTTPSConnection if target.scheme == "otlp+https" else http.client.HTTPConnection
        connection = kind(target.host, target.port, timeout=TIMEOUT_S)
        try:
            connection.request("POST", target.place, body, {"Content-Type": "application/json"})
            status = connection.getresponse().status
        finally:
            connection.close()
        if not 200 <= status < 300:
            raise OSError(f"HTTP status {status}")

    def _connected(self) -> socket.socket:
        if self._socket is not None:
            return self._socket
        target = self._target
        if not target.host:
            opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                opened.connect(target.place)
            except OSError:
                opened.close()
                raise
        elif target.scheme == "syslog+udp":
            family, *_, address = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_DGRAM)[0]
            opened = socket.socket(family, socket.SOCK_DGRAM)
            opened.connect(address)
        else:
            opened = socket.create_connection((target.host, target.port), TIMEOUT_S)
            if target.scheme == "syslog+tls":
                opened = ssl.create_default_context().wrap_socket(opened, server_hostname=target.host)
        opened.settimeout(TIMEOUT_S)
        self._socket = opened
        return opened

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
