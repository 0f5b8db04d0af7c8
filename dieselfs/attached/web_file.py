"""A file on the web as a source: ranges over HTTP, of the version that was attached. This module opens sockets.

urllib3 has the connections, TLS and the proxies of the environment. It follows no redirects: each hop is first checked
as the URL itself is, because who may name a URL is not always who may read what is behind it.
"""

import re
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from dieselfs.attached.interface import OpenSource
from dieselfs.attached.web_url import (
    PORTS,
    http_time_ns,
    is_address,
    is_public,
    parse_web_url,
    redirected,
    with_host,
    without_query,
)
from dieselfs.chunk.source import ETAG, MODIFIED, AttachedSource
from dieselfs.errors import AccessDenied, Damaged, InvalidInput, NotFound, Unavailable
from dieselfs.limits import MIB
from dieselfs.net.sockets import addresses

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

CONNECT_TIMEOUT_S = 3.0
SILENCE_S = 5.0
"""Without a byte, a connection counts as broken."""

PART_TIMEOUT_S = 10.0
PART_BYTES = 8 * MIB
"""Bytes of one request. A part that takes longer than PART_TIMEOUT_S is requested again."""

TRIES_MAX = 4
TRIES_S_MAX = 15.0
"""A request is repeated TRIES_MAX times, and not any more TRIES_S_MAX after the first one."""

RETRY_PAUSE_S = 0.2
"""Before the second try; it doubles with each."""

REDIRECTS_MAX = 5

_REDIRECTS = (301, 302, 303, 307, 308)
_MISSING = (404, 410)
_PASSING = (408, 425, 429)
_OBJECT = re.compile(r"^\w*(\(host=[^)]*\)|<[^>]*>): ")
"""Before what messages of urllib3 say."""

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")

CheckAllowed = Callable[[bytes], None]


class WebFile(OpenSource):
    """A file on the web. Its server must answer ranges, and say an ETag or a time."""

    def __init__(
        self,
        location: bytes,
        check_allowed: CheckAllowed,
        known: AttachedSource | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`check_allowed` gets each URL that is asked, without its query. Over http://, where no certificate says who
        answers, it also gets the URL with the address, if the name of a host leads into a private network.

        Raises InvalidInput, AccessDenied, NotFound, Unavailable.
        """
        self._url = location.decode("ascii", "replace")
        parse_web_url(self._url)
        self._check_allowed = check_allowed
        self._pause = pause
        self.mtime_ns = 0
        check_allowed(location)
        self._known = known
        if known is not None:
            self.source = AttachedSource(location, known.size_bytes, known.mark)
            return
        _, size_bytes, mark, self.mtime_ns = self._get(0, 1)
        self.source = self._known = AttachedSource(location, size_bytes, mark)

    def read(self, offset: int, length: int) -> bytes:
        parts, end = [], offset + length
        if end > self.source.size_bytes:
            raise Damaged(f"{self._url}: it ends at {self.source.size_bytes}")
        while offset < end:
            parts.append(self._get(offset, min(offset + PART_BYTES, end))[0])
            offset += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _get(self, begin: int, end: int) -> tuple[bytes, int, str, int]:
        """The bytes of a range, size, mark and time of the file."""
        from urllib3.exceptions import HTTPError, SSLError

        since_s = time.monotonic()
        for number in range(TRIES_MAX):
            try:
                return self._try(begin, end, number)
            except SSLError as error:
                raise Unavailable(f"{self._url}: {_one_line(error)}") from None
            except (_PassingFault, HTTPError, OSError) as error:
                reason = _one_line(error)
            if time.monotonic() - since_s > TRIES_S_MAX or number == TRIES_MAX - 1:
                break
            self._pause(RETRY_PAUSE_S * 2**number)
        raise Unavailable(f"{self._url}: {reason}; tried {number + 1} times")

    def _try(self, begin: int, end: int, number: int) -> tuple[bytes, int, str, int]:
        until_s = time.monotonic() + PART_TIMEOUT_S
        url = self._url
        for _ in range(REDIRECTS_MAX + 1):
            response = self._ask(url, begin, end, number)
            with closing(response):
                target = response.headers.get("Location") if response.status in _REDIRECTS else None
                if target is None:
                    found = self._answered(response, begin, end, until_s)
                    response.release_conn()
                    return found
            url = redirected(url, target)
            self._check_allowed(without_query(url).encode())
        raise Unavailable(f"{self._url}: more than {REDIRECTS_MAX} redirects")

    def _ask(self, url: str, begin: int, end: int, number: int) -> "BaseHTTPResponse":
        """The begin of an answer. Tries of different numbers ask different addresses of the host."""
        from dieselfs.net.web_connections import client

        parts = urlsplit(url)
        headers = {"Accept-Encoding": "identity", "Range": f"bytes={begin}-{end - 1}"}
        host = parts.hostname or ""
        # A proxy would look up the name again: over http://, an address that was not checked could answer.
        proxy = None if parts.scheme == "http" or proxy_bypass(host) else getproxies().get(parts.scheme)
        if proxy is None and not is_address(host):
            located = self._at_address(url, parts, number)
            if parts.scheme == "http":
                headers["Host"] = parts.netloc
                url = located
        return client(proxy, CONNECT_TIMEOUT_S, SILENCE_S).request(
            "GET",
            url,
            headers=headers,
            redirect=False,
            retries=False,
            preload_content=False,
            decode_content=False,
        )

    def _at_address(self, url: str, parts: SplitResult, number: int) -> str:
        """The URL with the address that is asked, so that it is the one that was checked. Over https, the name is only
        looked up, within a bound: the certificate says who answers.
        """
        found = addresses(parts.hostname or "", parts.port or PORTS[parts.scheme], CONNECT_TIMEOUT_S)
        address = str(found[number % len(found)][4][0])
        located = with_host(url, address)
        if parts.scheme == "http" and not is_public(address):
            self._check_allowed(without_query(located).encode())
        return located

    def _answered(
        self, response: "BaseHTTPResponse", begin: int, end: int, until_s: float
    ) -> tuple[bytes, int, str, int]:
        self._check_status(response.status, response.reason or "")
        found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if found is None or response.headers.get("Content-Encoding", "identity") != "identity":
            raise InvalidInput(f"{self._url}: its server sends no ranges of its bytes as they are; {_IMPORT}")
        size_bytes = int(found[3])
        mark, mtime_ns = _mark(self._url, response)
        known = self._known
        if known is not None and known.version != (size_bytes, mark):
            raise Damaged(
                f"{self._url}: it has changed since it was attached ({known.size_bytes} bytes and {known.mark} then, "
                f"{size_bytes} bytes and {mark} now); attach it again"
            )
        if (int(found[1]), int(found[2])) != (begin, end - 1):
            raise _PassingFault("its server sent another range")
        content = bytearray()
        while len(content) < end - begin:
            part = response.read1(end - begin - len(content), decode_content=False)
            if not part:
                raise _PassingFault("the connection was closed early")
            if time.monotonic() > until_s:
                raise _PassingFault(f"no whole answer within {PART_TIMEOUT_S:.0f} s")
            content += part
        return bytes(content), size_bytes, mark, mtime_ns

    def _check_status(self, status: int, reason: str) -> None:
        text = f"HTTP status {status} {reason}".rstrip()
        if status in _PASSING or status >= 500:
            raise _PassingFault(text)
        if status in _MISSING:
            raise NotFound(f"{self._url}: {text}")
        if status in (401, 403):
            raise AccessDenied(f"{self._url}: {text}; only files that everybody may read can be attached")
        if status == 416:
            kind = InvalidInput if self._known is None else Damaged
            raise kind(f"{self._url}: it is empty, or shorter than it was")
        if status == 200:
            raise InvalidInput(
                f"{self._url}: its server answers no requests for a range of a file; {_IMPORT}"
            )
        if status != 206:
            raise Unavailable(f"{self._url}: {text}")


class _PassingFault(Exception):
    """What another try may mend."""


_IMPORT = "dlcmd import copies the bytes instead"


def _mark(url: str, response: "BaseHTTPResponse") -> tuple[str, int]:
    """How the version is recognized, and its time, 0 if that is not known."""
    mtime_ns = http_time_ns(response.headers.get("Last-Modified"))
    if tag := response.headers.get("ETag"):
        return ETAG + tag, mtime_ns
    if not mtime_ns:
        raise InvalidInput(
            f"{url}: its server says neither ETag nor Last-Modified, so a change would not be noticed; {_IMPORT}"
        )
    return f"{MODIFIED}{mtime_ns}", mtime_ns


def _one_line(error: BaseException) -> str:
    text = _OBJECT.sub("", " ".join(str(error).split()), count=1)
    return text[:300] or type(error).__name__
