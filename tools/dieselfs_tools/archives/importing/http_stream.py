"""A file at a URL as a stream, which is requested again from where a connection broke. This module opens sockets."""

import http.client
import io
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from types import TracebackType
from typing import Any

from dieselfs.attached.web_url import http_time_ns, redirected
from dieselfs.errors import Damaged, DieselfsError, NotFound, Unavailable

SILENCE_S = 60.0
"""Without a byte, the connection counts as broken."""

RETRIES_MAX = 5
"""In a row, without a byte between them."""

RETRY_PAUSE_S = 1.0

_NOT_FOUND = (404, 410)
_BROKEN = (OSError, http.client.HTTPException)


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, request: Any, response: Any, code: int, why: str, headers: Any, url: str
    ) -> Any:
        """Raises InvalidInput for another protocol, AccessDenied for a way out of TLS."""
        return super().redirect_request(
            request, response, code, why, headers, redirected(request.full_url, url)
        )


_opener = urllib.request.build_opener(_Redirects)


class HttpStream(io.RawIOBase):
    """The body of one URL, opened at once. Raises NotFound, Unavailable; Damaged if the file changes meanwhile."""

    def __init__(self, url: str, pause: Callable[[float], None] = time.sleep) -> None:
        self._url = url
        self._pause = pause
        self._position = 0
        self._size: int | None = None
        self._validator: str | None = None
        self.mtime_ns = 0
        self._retries = 0
        self._response: http.client.HTTPResponse | None = None
        self._response = self._request()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        while True:
            try:
                if self._response is None:
                    self._response = self._request()
                got = self._response.readinto(view)
                if got or self._size is None or self._position >= self._size or not len(view):
                    self._position += got
                    self._retries = 0 if got else self._retries
                    return got
                reason = "the connection was closed early"
            except _BROKEN as error:
                if isinstance(error, DieselfsError):
                    raise
                reason = str(error) or type(error).__name__
            self._drop(reason)

    def _drop(self, reason: str) -> None:
        """Close the connection, and wait before the next one. Raises Unavailable after too many."""
        if self._response is not None:
            self._response.close()
            self._response = None
        self._retries += 1
        if self._retries > RETRIES_MAX:
            raise Unavailable(
                f"{self._url}: {reason}, after {self._position} bytes and {RETRIES_MAX} retries"
            )
        self._pause(RETRY_PAUSE_S * self._retries)

    def _request(self) -> http.client.HTTPResponse:
        while True:
            headers = {"Accept-Encoding": "identity"}
            if self._position:
                headers["Range"] = f"bytes={self._position}-"
                if self._validator:
                    headers["If-Range"] = self._validator
            try:
                request = urllib.request.Request(self._url, headers=headers)
                return self._checked(_opener.open(request, timeout=SILENCE_S))
            except urllib.error.HTTPError as error:
                if error.code in _NOT_FOUND:
                    raise NotFound(f"{self._url}: {error.code} {error.reason}") from None
                if error.code < 500 and error.code != 429:
                    raise Unavailable(f"{self._url}: {error.code} {error.reason}") from None
                reason = f"{error.code} {error.reason}"
            except _BROKEN as error:
                if isinstance(error, DieselfsError):
                    raise
                reason = str(getattr(error, "reason", None) or error) or type(error).__name__
            self._drop(reason)

    def _checked(self, response: http.client.HTTPResponse) -> http.client.HTTPResponse:
        """A response that continues at the position. Raises Damaged."""
        if not self._position:
            length = response.headers.get("Content-Length")
            self._size = int(length) if length and length.isdigit() else None
            etag = response.headers.get("ETag")
            last_modified = response.headers.get("Last-Modified")
            self.mtime_ns = http_time_ns(last_modified)
            self._validator = etag if etag and not etag.startswith("W/") else last_modified
        elif response.status != http.client.PARTIAL_CONTENT:
            response.close()
            raise Damaged(
                f"{self._url}: the connection broke after {self._position} bytes, and the server does not continue "
                "there, or the file has changed; run the same command again"
            )
        return response

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
        super().close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
