"""How a daemon that was forked begins, and ends."""

import logging
import os
from typing import NoReturn

import pytest

from dieselfs.errors import EXIT_OK
from dieselfs_client import zygote
from dieselfs_client.supervision.control_channel import ControlChannel
from dieselfs_client.supervision.supervisor_client import SupervisorClient


async def unused(supervisor_client: SupervisorClient) -> None:
    raise AssertionError("a daemon without a supervisor serves nothing")


def test_a_daemon_that_stands_by_ends_with_one_line_when_the_supervisor_is_gone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def leave(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    ours, theirs = ControlChannel.pair()
    ours.close()
    with theirs, caplog.at_level(logging.INFO), pytest.raises(SystemExit) as ended:
        zygote._be_daemon(ControlChannel(theirs), unused, None)
    assert ended.value.code == EXIT_OK
    assert [(each.levelname, each.exc_info) for each in caplog.records] == [("INFO", None)]
