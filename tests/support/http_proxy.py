"""An HTTP proxy between a client of S3 and its server that answers itself, cuts, shortens or withholds answers."""

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from urllib.parse import urlsplit

TIMEOUT_S = 30.0

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets the connection
_OF_A_CONNECTION = frozenset(("connection", "keep-alive", "transfer-encoding", "content-length"))


@dataclass(frozen=True)
class Pass:
    """The server answers. `then` is called before its answer is passed on."""

    then: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Answer:
    """The proxy answers; the server does not see the request."""

    status: int
    code: str


@dataclass(frozen=True)
class Reset:
    """The connection is reset, before the server sees the request or after it has carried it out."""

    is_done: bool


@dataclass(frozen=True)
class Truncate:
    """The body of the server's answer ends after this number of bytes."""

    length_bytes: int


@dataclass(frozen=True)
class Silence:
    """No answer; the connection stays open until the proxy ends."""


Action = Pass | Answer | Reset | Truncate | Silence
Rule = Callable[[str, int], Action]
"""What happens to a request, given as `PUT /path?query`, which is the n-th one, counted from 0."""


def pass_all(request: str, number: int) -> Action:
    return Pass()


@dataclass
class HttpProxy:
    endpoint: str
    target: tuple[str, int]
    rule: Rule = pass_all
    requests: list[str] = field(default_factory=list)
    ended: Event = field(default_factory=Event)
    lock: Lock = field(default_factory=Lock)  # guards `requests`

    def obey(self, rule: Rule) -> None:
        """Count from 0 again, with another rule."""
        with self.lock:
            self.requests.clear()
            self.rule = rule

    def decide(self, request: str) -> Action:
        with self.lock:
            number = len(self.requests)
            self.requests.append(request)
            return self.rule(request, number)


@contextmanager
def http_proxy(endpoint: str) -> Iterator[HttpProxy]:
    """A proxy in front of the server at `endpoint`, until the end of the block."""
    parts = urlsplit(endpoint)
    assert parts.hostname and parts.port

    class Handler(_Handler):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Handler.proxy = HttpProxy("http://{}:{}".format(*server.server_address), (parts.hostname, parts.port))
    thread = Thread(target=server.serve_forever, args=[0.05])
    thread.start()
    try:
        yield Handler.proxy
    finally:
        Handler.proxy.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    proxy: HttpProxy
    protocol_version = "HTTP/1.1"
    timeout = TIMEOUT_S
    disable_nagle_algorithm = True  # the body need not wait until the client has confirmed the headers

    def _serve(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        match self.proxy.decide(f"{self.command} {self.path}"):
            case Pass(then):
                self._forward(content, then=then)
            case Answer(status, code):
                body = f"<Error><Code>{code}</Code><Message>said the proxy</Message></Error>".encode()
                self._send(
                    status, [("Content-Type", "application/xml"), ("ETag", '"proxy"')], body, len(body)
                )
            case Reset(is_done):
                if is_done:
                    self._ask(content)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                self.close_connection = True
            case Truncate(length_bytes):
                self._forward(content, length_bytes)
                self.close_connection = True
            case Silence():
                self.proxy.ended.wait(TIMEOUT_S)
                self.close_connection = True

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _serve

    def _ask(self, content: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """The server's answer. The signature covers the header Host, so it is passed on."""
        connection = HTTPConnection(*self.proxy.target, timeout=TIMEOUT_S)
        try:
            connection.request(self.command, self.path, content, dict(self.headers))
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _forward(
        self, content: bytes, length_bytes: int | None = None, then: Callable[[], None] = lambda: None
    ) -> None:
        try:
            status, headers, body = self._ask(content)
            then()
        except (OSError, HTTPException):
            self.close_connection = True
            return
        length = len(body)
        if self.command == "HEAD":
            length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
        self._send(status, headers, body[:length_bytes], length)

    def _send(self, status: int, headers: list[tuple[str, str]], body: bytes, length: int) -> None:
        with suppress(ConnectionError):
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in _OF_A_CONNECTION:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the tests have the requests."""
