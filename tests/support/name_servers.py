"""Name servers in the place of the machine's, one of which answers for a name only when it is told to."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

SILENT = "silent.example"
BOUND_S = 60.0


class NameServers:
    """Answers for all names but SILENT, which has the address 127.0.0.1 once `is_over` is set."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.is_over = threading.Event()
        self.asked = 0

    def __call__(self, host: str, *arguments: Any, **options: Any) -> Any:
        if host == SILENT and not options.get("flags"):
            self.asked += 1
            assert self.is_over.wait(BOUND_S)
            host = "127.0.0.1"
        return self._real(host, *arguments, **options)


@contextmanager
def silent_name_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServers]:
    """In this process; look-ups that still wait get their answer at the end."""
    servers = NameServers(socket.getaddrinfo)
    monkeypatch.setattr(socket, "getaddrinfo", servers)
    try:
        yield servers
    finally:
        servers.is_over.set()
