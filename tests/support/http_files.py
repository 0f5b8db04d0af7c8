"""A web server with one file, which closes connections early if it is asked to."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class WebFile:
    """`sends`: how many bytes each request sends before its connection is closed; later ones send all. `statuses`: of
    the first requests, without a body. `ranges`: the Range header of each request.
    """

    content: bytes
    sends: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    ranges: list[str | None] = field(default_factory=list)
    etag: str = '"1"'
    url: str = ""


@contextmanager
def web_file(content: bytes, name: str = "a.tar") -> Iterator[WebFile]:
    file = WebFile(content)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            file.ranges.append(self.headers["Range"])
            if file.statuses:
                self.send_error(file.statuses.pop(0))
                return
            start = 0
            if self.headers["Range"] and self.headers["If-Range"] in (None, file.etag):
                start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(file.content) - start))
            self.send_header("ETag", file.etag)
            self.send_header("Last-Modified", "Sun, 13 Sep 2020 12:26:40 GMT")
            self.end_headers()
            end = start + file.sends.pop(0) if file.sends else len(file.content)
            self.wfile.write(file.content[start:end])

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        file.url = f"http://127.0.0.1:{server.server_address[1]}/data/{name}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield file
        finally:
            server.shutdown()
            thread.join()
