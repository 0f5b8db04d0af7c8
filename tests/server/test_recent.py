"""What failed lately: bounded, the newest first, with the log."""

import logging

from dieselfs_server.recent import FAILURES_MAX, TEXT_CHARACTERS_MAX, RecentFailures, RecentLog


def test_the_newest_are_kept() -> None:
    recent = RecentFailures()
    for number in range(FAILURES_MAX + 5):
        recent.add("call", "stat", "ann", "NotFound", f"{number}" + "x" * 1000)
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
