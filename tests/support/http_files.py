"""A web server with one file, which fails as it is asked to."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TIMEOUT_S = 30.0


@dataclass
class WebFile:
    """`sends`: how many bytes each request sends before its connection is closed; later ones send all. `statuses`: of
    the first requests, without a body. `ranges`: the Range header of each request. `redirects`: where a path leads.
    `silent`: how many of the first requests get no answer. `held`: answers wait until it is set.
    """

    content: bytes
    sends: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    ranges: list[str | None] = field(default_factory=list)
    etag: str | None = '"1"'
    modified: str | None = "Sun, 13 Sep 2020 12:26:40 GMT"
    has_ranges: bool = True
    redirects: dict[str, str] = field(default_factory=dict)
    silent: int = 0
    held: threading.Event | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    url: str = ""


@contextmanager
def web_file(
    content: bytes, name: str = "a.tar", certificate: tuple[Path, Path] | None = None
) -> Iterator[WebFile]:
    """`certificate`: the files of a certificate and its key, for https."""
    file = WebFile(content)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = TIMEOUT_S
        disable_nagle_algorithm = True  # as in `http_proxy`

        def do_GET(self) -> None:
            file.ranges.append(self.headers["Range"])
            if file.held is not None:
                file.held.wait(TIMEOUT_S)
            if file.silent:
                file.silent -= 1
                file.ended.wait(TIMEOUT_S)
                self.close_connection = True
            elif file.statuses:
                self.send_error(file.statuses.pop(0))
            elif target := file.redirects.get(self.path.partition("?")[0]):
                self.send_response(302)
                self.send_header("Location", target)
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self._send()

        do_HEAD = do_GET

        def _send(self) -> None:
            start, end = 0, len(file.content)
            wanted = self.headers["Range"] if self.headers["If-Range"] in (None, file.etag) else None
            if wanted and file.has_ranges:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                start, end = int(first), min(int(last or end) + 1, end)
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(file.content)}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(end - start))
            if self.close_connection:  # as a client has asked, which else may use it once more
                self.send_header("Connection", "close")
            for header, value in (("ETag", file.etag), ("Last-Modified", file.modified)):
                if value is not None:
                    self.send_header(header, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            if file.sends:
                end = min(start + file.sends.pop(0), end)
                self.close_connection = True
            with suppress(ConnectionError):
                self.wfile.write(file.content[start:end])

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        server.daemon_threads = True
        file.url = f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_address[1]}/data/{name}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield file
        finally:
            file.ended.set()
            server.shutdown()
            thread.join()
