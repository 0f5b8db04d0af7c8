"""What is said to the kernel when a connection is taken over; test_supervisor.py has what comes of it."""

import errno
import os
import struct

import pytest

from dieselfs_client.mount.points.connection import resend


def test_the_kernel_is_asked_to_send_again() -> None:
    reading, writing = os.pipe()
    assert resend(writing)
    assert struct.unpack("=IiQ", os.read(reading, 100)) == (16, 7, 0)
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("code", "can_go_on"),
    [(errno.EINVAL, False), (errno.ENODEV, True), (errno.ENOTCONN, True), (errno.ECONNABORTED, True)],
)
def test_a_kernel_that_cannot_and_a_connection_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, code: int, can_go_on: bool
) -> None:
    def refuse(descriptor: int, data: bytes) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "write", refuse)
    assert resend(-1) is can_go_on


def test_what_is_no_connection_is_a_fault() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        resend(-1)
