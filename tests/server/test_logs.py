"""Logs: events as text and JSON, who did what in the audit log, and the request ID of a call on both sides."""

import errno
import io
import json
import logging
import os
import re
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from dieselfs.errors import AccessDenied
from dieselfs.telemetry.budget import WINDOW_S
from dieselfs_server.logs import (
    FAILURES_MAX,
    FAILURES_PER_USER_MAX,
    TEXT_CHARACTERS_MAX,
    AuditLog,
    JsonFormatter,
    RecentFailures,
    RecentLog,
    TextFormatter,
    event,
)
from lab.namespace import wait_for
from tests.support.server import RunningServer, running_server
from tests.support.small_disk import small_disk


def lines_of(formatter: logging.Formatter) -> tuple[logging.Logger, io.StringIO]:
    log, stream = logging.Logger("test"), io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    log.addHandler(handler)
    return log, stream


def test_an_event_is_one_line_of_text() -> None:
    log, stream = lines_of(TextFormatter("%(levelname)s %(message)s"))
    event(log, logging.INFO, "call", method="stat", user="eve\nINFO forged", path="", ms=3)
    assert stream.getvalue() == 'INFO call method=stat user="eve\\nINFO forged" path="" ms=3\n'


def test_an_event_is_one_object_of_json() -> None:
    log, stream = lines_of(JsonFormatter())
    event(log, logging.WARNING, "call", method="stat", user="eve\n")
    try:
        raise ValueError("x")
    except ValueError:
        log.exception("failed %d", 7)
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["level"], first["message"], first["user"]) == ("warning", "call", "eve\n")
    assert second["message"] == "failed 7" and "ValueError: x" in second["traceback"]


def test_the_audit_log_is_private_rotated_and_continued(tmp_path: Path) -> None:
    path = tmp_path / "new" / "audit.log"
    for number in range(40):
        with closing(AuditLog(path, bytes_max=1000, files_max=2)) as audit:
            audit.write("grant", "admin\n", "10.0.0.7", has_changed=True, dataset=f"d{number}")
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == ["audit.log", "audit.log.1", "audit.log.2"]
    assert all(file.stat().st_mode & 0o777 == 0o600 and file.stat().st_size <= 1000 for file in files)
    last = json.loads(path.read_text().splitlines()[-1])
    assert (last["event"], last["user"], last["address"], last["dataset"]) == (
        "grant",
        "admin\n",
        "10.0.0.7",
        "d39",
    )


def test_nobody_can_push_out_what_was_done(tmp_path: Path) -> None:
    path, now_s = tmp_path / "audit.log", 0.0
    with closing(AuditLog(path, bytes_max=100_000, files_max=1, clock=lambda: now_s)) as audit:
        audit.write("drop_dataset", "eve", "10.0.0.7", has_changed=True, outcome="ok", dataset="seen")
        for _ in range(2000):
            audit.write("refused", "", "10.0.0.8", reason="\u20ac" * 10_000)
            audit.write("grant", "eve", "10.0.0.7", outcome="AccessDenied", of="x" * 10_000)
        now_s = WINDOW_S
        audit.write("login", "ann", "10.0.0.9")
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert entries[0]["event"] == "drop_dataset" and entries[-1]["user"] == "ann"
    omitted = entries[-2]
    counts = Counter(entry["event"] for entry in entries)
    assert omitted["event"] == "omitted"
    assert [omitted[what] + counts[what] for what in ("refused", "grant")] == [2000, 2000]


def test_changes_are_never_omitted(tmp_path: Path) -> None:
    with closing(AuditLog(tmp_path / "audit.log")) as audit:
        for number in range(200):
            audit.write("grant", "eve", "10.0.0.7", has_changed=True, outcome="ok", dataset=f"d{number}")
    assert len((tmp_path / "audit.log").read_text().splitlines()) == 200


def test_an_audit_log_without_room_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with small_disk(tmp_path / "small", "64k") as disk, closing(AuditLog(disk / "audit.log")) as audit:
        for _ in range(1000):
            audit.write("grant", "admin", "10.0.0.7", has_changed=True, outcome="ok", of="x" * 200)
    (line,) = (record.getMessage() for record in caplog.records)
    assert "the audit log" in line and line.endswith(os.strerror(errno.ENOSPC))


def audit_of(server: RunningServer) -> list[dict[str, object]]:
    return [json.loads(line) for line in (server.folder / "state" / "audit.log").read_text().splitlines()]


def test_who_did_what_is_in_the_audit_log_also_after_a_restart(tmp_path: Path) -> None:
    with running_server(tmp_path / "server") as server:
        key = server.user("eve", seen="write")
        with closing(server.client(key)) as eve:
            eve.create_dataset("seen")
            with pytest.raises(AccessDenied):
                eve.drop_dataset("seen")
        with closing(server.client()) as admin:
            admin.remove_key("eve")
        with closing(server.client(key)) as eve, pytest.raises(AccessDenied):
            wait_for(lambda: eve.datasets() is None, "the removed key is refused")
    with running_server(tmp_path / "server") as server:
        with closing(server.client()) as admin:
            admin.drop_dataset("seen")
        entries = audit_of(server)
    done = [(entry["event"], entry["user"], entry.get("outcome")) for entry in entries]
    for expected in (
        ("add_key", "local", "ok"),
        ("grant", "local", "ok"),
        ("login", "eve", None),
        ("create_dataset", "eve", "ok"),
        ("drop_dataset", "eve", "AccessDenied"),
        ("remove_key", "local", "ok"),
        ("drop_dataset", "local", "ok"),
    ):
        assert expected in done, expected
    assert any(event == "refused" for event, *_ in done)
    (grant,) = (entry for entry in entries if entry["event"] == "grant")
    assert (grant["of"], grant["dataset"], grant["right"]) == ("eve", "seen", "write")
    (login,) = (entry for entry in entries if (entry["event"], entry["user"]) == ("login", "eve"))
    assert login["address"] == "127.0.0.1"
    assert "secret" not in json.dumps(entries) and "verifier" not in json.dumps(entries)


def test_verbose_logs_calls_with_the_request_id_of_the_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="dieselfs.rpc.connection")
    with running_server(tmp_path / "server", ["--log-level", "debug", "--log-format", "json"]) as server:
        with closing(server.client()) as client:
            client.datasets()
        messages = [record.getMessage() for record in caplog.records]
        (request,) = re.findall(r"list_datasets: request (\S+) to", "\n".join(messages))

        def logged() -> list[dict[str, object]]:
            entries = [json.loads(line) for line in server.log().splitlines()]
            return [entry for entry in entries if entry.get("request") == request]

        wait_for(lambda: bool(logged()), "the call is logged")
        (entry,) = logged()
        assert (entry["method"], entry["user"], entry["outcome"]) == ("list_datasets", "local", "ok")


def test_the_newest_are_kept() -> None:
    recent = RecentFailures()
    for number in range(FAILURES_MAX + 5):
        recent.add("call", "stat", f"user-{number}", "NotFound", f"{number}" + "x" * 1000)
    found = [*recent.newest()]
    assert [each.number for each in found] == [*range(FAILURES_MAX + 5, 5, -1)]
    assert found[0].text.startswith(f"{FAILURES_MAX + 4}x") and len(found[0].text) == TEXT_CHARACTERS_MAX


def test_warnings_of_the_log_are_failures() -> None:
    recent = RecentFailures()
    log = logging.Logger("a.logger")
    log.addHandler(RecentLog(recent))
    log.info("usual")
    log.warning("%s is full", "the disk")
    (found,) = recent.newest()
    assert (found.level, found.what, found.text, found.user) == (
        "warning",
        "a.logger",
        "the disk is full",
        "",
    )


def test_one_user_does_not_push_out_the_others() -> None:
    recent = RecentFailures()
    recent.add("error", "a.logger", "", "", "the disk is full")
    recent.add("call", "stat", "bob", "NotFound", "no dataset")
    for number in range(FAILURES_MAX):
        recent.add("call", "stat", "ann", "AccessDenied", f"{number}")
    found = [*recent.newest()]
    assert [each.text for each in found[-2:]] == ["no dataset", "the disk is full"]
    assert len(found) == FAILURES_PER_USER_MAX + 2 and found[0].text == f"{FAILURES_MAX - 1}"


def test_the_kind_of_an_error_is_told_and_a_wrong_log_call_does_not_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)  # prints nothing
    recent = RecentFailures()
    log = logging.Logger("a.logger")
    log.addHandler(RecentLog(recent))
    log.warning("%d is no number", "x")
    log.error("it failed", exc_info=ValueError("secret"))
    assert [each.text for each in recent.newest()] == ["it failed (ValueError)"]
