"""What supervisors say about themselves; test_control.py reads it of real ones."""

import json
import os
import subprocess
import sys

import pytest

from dieselfs_client.supervision.status import (
    STATUS_NAME,
    MemoryFile,
    SupervisorStatus,
    parse_status,
    supervision_of,
    supervisions,
)
from tests.support.users import NOBODY

STATE = SupervisorStatus(
    mountpoint="/mnt/ö\udcff", device="0:45", supervisor=os.getpid(), daemon=7, trouble="x" * 500
)


def encoded(state: SupervisorStatus) -> bytes:
    return json.dumps(state._asdict()).encode()


def test_it_can_be_found_by_its_mount_point() -> None:
    status = MemoryFile(STATUS_NAME)
    status.write(encoded(STATE))
    assert supervision_of(STATE.mountpoint) == STATE
    shorter = STATE._replace(trouble="", restarts=3, is_served=True, resends=True)
    status.write(encoded(shorter))
    assert supervision_of(STATE.mountpoint) == shorter
    assert shorter in supervisions()
    os.close(status.descriptor)
    assert supervision_of(STATE.mountpoint) is None


def test_the_supervisor_of_an_earlier_mount_of_the_path_is_not_that_of_the_mount() -> None:
    """Else `dlcmd upgrade` would send it a signal, and `dlcmd umount` would wait for its end."""
    status = MemoryFile(STATUS_NAME)
    status.write(encoded(STATE))
    try:
        assert supervision_of(STATE.mountpoint, STATE.device) == STATE
        assert supervision_of(STATE.mountpoint, "0:46") is None
    finally:
        os.close(status.descriptor)


def test_who_says_that_he_is_another_process_is_not_believed() -> None:
    status = MemoryFile(STATUS_NAME)
    status.write(encoded(STATE._replace(supervisor=1)))
    assert supervision_of(STATE.mountpoint) is None
    os.close(status.descriptor)


PRETENDER = """
import os, sys, json
fields = json.loads(sys.argv[1]) | {"supervisor": os.getpid()}
os.write(os.memfd_create("dieselfs-mount"), json.dumps(fields).encode())
print(os.getpid(), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="starts a process of another user")
@pytest.mark.parametrize(("user", "is_believed"), [(0, True), (NOBODY, False)])
def test_only_processes_of_the_own_user_are_believed(user: int, is_believed: bool) -> None:
    """Else root's `dlcmd upgrade` would send a signal to whatever another user names."""
    command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", sys.executable, "-S", "-E"]
    with subprocess.Popen(
        [*command, "-c", PRETENDER, encoded(STATE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        found = [one for one in supervisions() if one.supervisor == pid]
        process.kill()
    assert bool(found) == is_believed


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        b"\xff",
        json.dumps({"mountpoint": "/mnt"}).encode(),
        json.dumps(STATE._asdict() | {"daemon": "7"}).encode(),
        json.dumps(STATE._asdict() | {"daemon": True}).encode(),
        json.dumps(STATE._asdict() | {"more": 1}).encode(),
    ],
)
def test_what_is_no_status(content: bytes) -> None:
    assert parse_status(content) is None
