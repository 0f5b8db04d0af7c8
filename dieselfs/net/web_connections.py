"""Connections of urllib3 on which the beginning of an answer has a bound, also if it comes byte by byte. This module
opens sockets, and runs a timer for each request.
"""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from threading import Event, Timer
from typing import Any
from urllib.parse import unquote

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager, ProxyManager, Timeout, make_headers
from urllib3.connection import HTTPConnection, HTTPSConnection

CONNECTIONS_PER_HOST = 8

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


def new_client(
    proxy: str | None, connect_timeout_s: float, silence_s: float, authority: str | None = None
) -> PoolManager:
    """Connections through a proxy, or without one. `silence_s`: without a byte, a connection counts as broken.
    `authority`: a file of certificates that are trusted as well. Raises OSError.
    """
    options: dict[str, Any] = {
        "maxsize": CONNECTIONS_PER_HOST,
        "timeout": Timeout(connect=connect_timeout_s, read=silence_s),
    }
    if authority is not None:
        options["ssl_context"] = ssl.create_default_context()
        options["ssl_context"].load_verify_locations(authority)
    if proxy is None:
        return bounded(PoolManager(**options))
    address, login = proxy_parts(proxy)
    headers = None if login is None else make_headers(proxy_basic_auth=login)
    return bounded(ProxyManager(address, proxy_headers=headers, **options))


client = cache(new_client)
"""The same connections for the same arguments."""


def proxy_parts(proxy: str) -> tuple[str, str | None]:
    """The URL of a proxy, and its USER:PASSWORD, of `[http://][USER:PASSWORD@]HOST[:PORT]`."""
    scheme, mark, rest = proxy.rpartition("://")
    login, at, host = rest.rpartition("@")
    return f"{scheme if mark else 'http'}://{host}", unquote(login) if at else None
