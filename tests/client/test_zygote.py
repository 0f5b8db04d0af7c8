"""How a daemon that was forked begins, and ends."""

import logging
import os
import socket
import subprocess
import sys
from typing import NoReturn

import pytest

from dieselfs.errors import EXIT_OK
from dieselfs_client import zygote
from dieselfs_client.supervision.control_channel import ControlChannel, Message
from dieselfs_client.supervision.supervisor_client import SupervisorClient

HEAVY = {"cryptography", "dieselfs.dataset", "dieselfs.sources.decrypted", "dieselfs_client.cluster.role"}
"""What a mount of a plain dataset, outside of jobs, does not use."""


def test_the_zygote_of_a_plain_mount_loads_nothing_that_others_use() -> None:
    loaded = f"import sys, dieselfs_client.zygote; print(*{HEAVY} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


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


def test_a_zygote_ends_without_a_traceback_when_the_supervisor_is_gone() -> None:
    ours, theirs = ControlChannel.pair()
    ours.close()
    with theirs:
        zygote.fork_daemons(ControlChannel(theirs), unused, None)


def test_a_zygote_is_warm_for_each_supervisor() -> None:
    ours, theirs = ControlChannel.pair()
    memory = os.memfd_create("snapshot")
    before = len(os.listdir("/proc/self/fd"))
    with theirs:
        ours.send("keep", "snapshot", memory)
        ours.send("go")
        shutdown = socket.socket(fileno=os.dup(ours.fileno()))
        shutdown.shutdown(socket.SHUT_WR)
        zygote.fork_daemons(ControlChannel(theirs), unused, None)
        shutdown.close()
        assert [ours.receive(), ours.receive()] == 2 * [Message("warm", "", None)]
        assert len(os.listdir("/proc/self/fd")) == before
    ours.close()
    os.close(memory)
