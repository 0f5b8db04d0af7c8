"""Reads that follow no redirect: obstore signs their URLs, and urllib3 sends them. obstore itself would ask any host to
which the storage leads it, also one that only this machine reaches. This module opens sockets.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from dieselfs.bucket.errors import Failure, answered

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

TRIES_MAX = 5
RETRY_PAUSE_S = 0.1
"""Before the second try; it doubles with each."""
ERROR_BYTES_MAX = 16 << 10

_PASSING = (408, 429, 500, 502, 503, 504)


class Failed(Exception):
    """The request has failed for good."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


class SignedReads:
    """May be used by any number of threads."""

    def __init__(
        self,
        sign: Callable[[str, str], str],
        authority: str | None,
        timeouts_s: tuple[float, float],
        tries_s_max: float,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`sign`: from method and key to a URL. `timeouts_s`: of a connection, and of a whole answer. A request is
        repeated TRIES_MAX times, and not any more `tries_s_max` after the first one.
        """
        self._sign = sign
        self._authority = authority
        self._connect_timeout_s, self._timeout_s = timeouts_s
        self._tries_s_max = tries_s_max
        self._pause = pause

    def request(
        self, method: str, key: str, headers: Mapping[str, str], begin: int = 0, length: int = 0
    ) -> tuple[Mapping[str, str], bytes]:
        """Headers and the `length` bytes of the answer, from `begin` on. Raises Failed."""
        from urllib3.exceptions import HTTPError

        since_s = time.monotonic()
        for number in range(TRIES_MAX):
            try:
                response = self._sent(method, key, headers, begin, length)
                with closing(response):
                    is_range = response.headers.get("Content-Range", "").startswith(f"bytes {begin}-")
                    if (response.status == 206 and is_range) or (response.status == 200 and not length):
                        return response.headers, self._body(response, length)
                    failure = answered(response.status, response.reason or "", self._text(response, method))
            except (HTTPError, OSError) as error:
                failure = Failure(0, "", " ".join(str(error).split())[:300] or type(error).__name__)
            is_late = time.monotonic() - since_s > self._tries_s_max
            if is_late or failure.status not in (0, *_PASSING):
                break
            self._pause(RETRY_PAUSE_S * 2**number)
        raise Failed(failure)

    def _sent(
        self, method: str, key: str, headers: Mapping[str, str], begin: int, length: int
    ) -> "BaseHTTPResponse":
        from dieselfs.net.web_connections import client

        if length:
            headers = {**headers, "Range": f"bytes={begin}-{begin + length - 1}"}
        url = self._sign(method, key)
        parts = urlsplit(url)
        proxy = None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)
        manager = client(proxy, self._connect_timeout_s, self._timeout_s, self._authority)
        return manager.request(
            method,
            url,
            headers={"Accept-Encoding": "identity", **headers},
            redirect=False,
            retries=False,
            preload_content=False,
            decode_content=False,
        )

    def _body(self, response: "BaseHTTPResponse", length: int) -> bytes:
        until_s = time.monotonic() + self._timeout_s
        content = bytearray()
        while len(content) < length and (part := response.read1(length - len(content))):
            content += part
            if time.monotonic() > until_s:
                raise TimeoutError(f"no whole answer within {self._timeout_s:.0f} s")
        if len(content) < length:
            raise ConnectionError("the connection ended before the answer was complete")
        response.release_conn()
        return bytes(content)

    def _text(self, response: "BaseHTTPResponse", method: str) -> str:
        return "" if method == "HEAD" else response.read1(ERROR_BYTES_MAX).decode("utf-8", "replace")
