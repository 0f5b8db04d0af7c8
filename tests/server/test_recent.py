"""What failed lately: bounded, the newest first, with the log."""

import logging

import pytest

from dieselfs_server.recent import (
    FAILURES_MAX,
    FAILURES_PER_USER_MAX,
    TEXT_CHARACTERS_MAX,
    RecentFailures,
    RecentLog,
)


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
