"""The audit log on other machines: formats, and what happens while they are away."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.errors import InvalidInput
from dieselfs_server import audit_sending
from dieselfs_server.audit_sending import AuditSender, Target, otlp_body, parse_target, syslog_message
from dieselfs_server.dispatcher import AUDITED_CHUNK_BYTES
from tests.support.server import free_port, running_server

WAIT_S = 30.0
ENTRY = {"time": 1_800_000_000.25, "event": "grant", "user": "ann", "dataset": 'a"\n'}


def received(connection: socket.socket) -> Iterator[tuple[str, dict[str, Any]]]:
    """Header and entry of each message of syslog over TCP."""
    connection.settimeout(WAIT_S)
    with connection.makefile("rb") as stream:
        while digits := stream.read(1):
            while (digit := stream.read(1)) != b" ":
                digits += digit
            message = stream.read(int(digits)).decode()
            header, _, entry = message.partition(" - {")
            yield header, json.loads("{" + entry)


def test_a_message_of_syslog() -> None:
    header, _, body = syslog_message(ENTRY, "storage-1", 77).decode().partition(" - ")
    assert header == "<109>1 2027-01-15T08:00:00.250000Z storage-1 dieselfs 77 grant"
    assert json.loads(body) == ENTRY and "\n" not in body


def test_a_request_of_otlp() -> None:
    (resource,) = json.loads(otlp_body([ENTRY, ENTRY], "storage-1"))["resourceLogs"]
    assert {"key": "host.name", "value": {"stringValue": "storage-1"}} in resource["resource"]["attributes"]
    first, second = resource["scopeLogs"][0]["logRecords"]
    assert first == second and first["timeUnixNano"] == str(1_800_000_000_250_000_000)
    assert json.loads(first["body"]["stringValue"]) == ENTRY


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("syslog:///dev/log", Target("syslog", "", 0, "/dev/log")),
        ("syslog+tls://logs:6514", Target("syslog+tls", "logs", 6514, "/v1/logs")),
        ("otlp+https://[::1]:4318/a", Target("otlp+https", "::1", 4318, "/a")),
    ],
)
def test_targets(url: str, target: Target) -> None:
    assert parse_target(url) == target


@pytest.mark.parametrize(
    "url", ["", "syslog://", "syslog+tcp://a", "otlp+http://a:x", "ftp://a:1", "otlp+http://u:p@a:1"]
)
def test_targets_that_are_none(url: str) -> None:
    with pytest.raises(InvalidInput, match="audit_to"):
        parse_target(url)


def test_to_the_syslog_of_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(path))
        listening.settimeout(WAIT_S)
        sender = AuditSender(parse_target(f"syslog://{path}"))
        sender.send(ENTRY)
        assert listening.recv(4096).endswith(json.dumps(ENTRY).encode())
        sender.close()


@contextmanager
def collector(statuses: list[int], bodies: "Queue[bytes]") -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = statuses.pop(0) if statuses else 200
            if status == 200:
                bodies.put(body)
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_collector_that_fails_gets_the_same_entries_again() -> None:
    bodies: Queue[bytes] = Queue()
    with collector([503, 503], bodies) as port:
        sender = AuditSender(parse_target(f"otlp+http://127.0.0.1:{port}"), pause_s=0.01)
        sender.send(ENTRY)
        (resource,) = json.loads(bodies.get(timeout=WAIT_S))["resourceLogs"]
        (record,) = resource["scopeLogs"][0]["logRecords"]
        assert json.loads(record["body"]["stringValue"]) == ENTRY
        sender.close()


def test_while_the_target_is_away_entries_wait_and_the_rest_is_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit_sending, "ENTRIES_MAX", 5)
    port = free_port()
    sender = AuditSender(parse_target(f"syslog+tcp://127.0.0.1:{port}"), pause_s=0.01)
    for number in range(100):
        sender.send({**ENTRY, "number": number})
    with socket.create_server(("127.0.0.1", port)) as listening:
        listening.settimeout(WAIT_S)
        connection, _ = listening.accept()
        with connection:
            sent, dropped = 0, 0
            for _, entry in received(connection):
                if entry["event"] == "not_sent":
                    dropped += entry["entries"]
                else:
                    assert dropped or entry["number"] == sent
                    sent += 1
                if sent + dropped == 100:
                    break
    sender.close()
    assert dropped > 0 and sum("cannot be sent" in record.message for record in caplog.records) <= 1


def test_large_chunks_and_changes_reach_syslog(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(WAIT_S)
        target = f"syslog+tcp://127.0.0.1:{listening.getsockname()[1]}"
        with (
            running_server(tmp_path, ("--audit-to", target)) as server,
            closing(server.client()) as client,
        ):
            dataset = client.create_dataset("data")
            builder, chunk_id = ChunkBuilder(), ChunkIdSource().next()
            builder.add_file(b"large", os.urandom(AUDITED_CHUNK_BYTES), 0o644, 0)
            parts = builder.seal().encode(chunk_id, "data", dataset.dataset_id, 1)
            client.put_chunk("data", chunk_id, list(parts))
            connection, _ = listening.accept()
            with connection:
                entries = {}
                for _, entry in received(connection):
                    entries[entry["event"]] = entry
                    if entry["event"] == "put_chunk":
                        break
            assert entries["create_dataset"]["dataset"] == "data"
            large = entries["put_chunk"]
            assert large["dataset"] == "data" and large["bytes"] > AUDITED_CHUNK_BYTES
            assert large["outcome"] == "ok"
