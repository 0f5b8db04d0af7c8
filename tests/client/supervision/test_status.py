"""What supervisors say about themselves; test_control.py reads it of real ones."""

import json
import os

import pytest

from dieselfs_client.supervision.status import (
    STATUS_NAME,
    MemoryFile,
    SupervisorStatus,
    parse_status,
    supervision_of,
    supervisions,
)

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


def test_who_says_that_he_is_another_process_is_not_believed() -> None:
    status = MemoryFile(STATUS_NAME)
    status.write(encoded(STATE._replace(supervisor=1)))
    assert supervision_of(STATE.mountpoint) is None
    os.close(status.descriptor)


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
