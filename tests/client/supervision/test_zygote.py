"""How a daemon that was forked begins, and ends."""

import logging
import os
from typing import NoReturn

import pytest

from dieselfs.errors import EXIT_OK
from dieselfs_client.options import MountOptions
from dieselfs_client.supervision import zygote
from dieselfs_client.supervision.tether import Tether
from tests.support.dataset import TreeEntry, pack_entries


def test_a_daemon_that_stands_by_ends_with_one_line_when_the_supervisor_is_gone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def leave(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    packed = pack_entries([TreeEntry(b"a", 0o100644, 0, b"a")])
    ours, theirs = Tether.pair()
    ours.close()
    with theirs, caplog.at_level(logging.INFO), pytest.raises(SystemExit) as ended:
        opened = zygote.Opened(packed.snapshot, packed.source(), None)
        zygote._be_daemon(Tether(theirs), opened, "/mnt", MountOptions(), None)
    assert ended.value.code == EXIT_OK
    assert [(each.levelname, each.exc_info) for each in caplog.records] == [("INFO", None)]
