"""A server that sends the beginning of its answer byte by byte does not hold a reader for ever."""

import socket
from contextlib import closing, suppress
from threading import Event, Thread

import pytest
from urllib3 import PoolManager
from urllib3.exceptions import HTTPError

from dieselfs.net import web_connections
from dieselfs.net.web_connections import bounded


def test_headers_that_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_connections, "ANSWER_TIMEOUT_S", 0.3)
    is_over = Event()

    def drip() -> None:
        with closing(listener.accept()[0]) as client, suppress(OSError):
            client.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
            while not is_over.wait(0.02):
                client.sendall(b"x")

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = Thread(target=drip)
        thread.start()
        try:
            with pytest.raises((HTTPError, OSError)):
                bounded(PoolManager(timeout=30)).request(
                    "GET",
                    f"http://127.0.0.1:{listener.getsockname()[1]}/a",
                    retries=False,
                    preload_content=False,
                )
        finally:
            is_over.set()
            thread.join()
