"""Connections of urllib3 on which the beginning of an answer has a bound, also if it comes byte by byte. This module
opens sockets, and runs a timer for each request.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Timer
from typing import Any

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
from urllib3.connection import HTTPConnection, HTTPSConnection

ANSWER_TIMEOUT_S = 10.0
"""From the request to the end of the headers."""


@contextmanager
def _bounded(connected: socket.socket) -> Iterator[None]:
    """Raises TimeoutError if the block takes too long."""
    is_late = Event()

    def end() -> None:
        is_late.set()
        with suppress(OSError):
            socket.socket.shutdown(connected, socket.SHUT_RDWR)  # below TLS, whose state is another thread's

    timer = Timer(ANSWER_TIMEOUT_S, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    if is_late.is_set():  # what came may look as if it was complete
        raise TimeoutError(f"no answer within {ANSWER_TIMEOUT_S:.0f} s")


class _Plain(HTTPConnection):
    def getresponse(self) -> Any:  # of urllib3, which is not that of http.client
        with _bounded(self.sock):
            return super().getresponse()


class _Encrypted(HTTPSConnection):
    def getresponse(self) -> Any:  # of urllib3, which is not that of http.client
        with _bounded(self.sock):
            return super().getresponse()


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _Plain


class _EncryptedPool(HTTPSConnectionPool):
    ConnectionCls = _Encrypted


def bounded(manager: PoolManager) -> PoolManager:
    """The same, with such connections. For one that has none yet."""
    manager.pool_classes_by_scheme = {"http": _PlainPool, "https": _EncryptedPool}
    return manager
