"""Requests to an OpenID Connect provider, of clients and of servers, each with a limit of bytes and of time. This
module opens sockets.

Only https is asked, and no redirect is followed: an answer leads nobody to an address that the provider's own documents
do not name.
"""

import json
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode, urlsplit

from urllib3.exceptions import HTTPError
from urllib3.util import make_headers

from dieselfs.errors import InvalidInput, Unavailable, os_errors_as
from dieselfs.limits import KIB
from dieselfs.net import web_connections

CONNECT_S = 3.0
ANSWER_S = 5.0
"""For the body of an answer; the headers have `web_connections.ANSWER_TIMEOUT_S`."""
ANSWER_BYTES_MAX = 256 * KIB

KEYS_MAX = 64
SKEW_S = 60.0
"""Clocks of the provider and of the servers may differ by this."""

DISCOVERY = "/.well-known/openid-configuration"


def request(
    url: str,
    authority: str | None,
    form: Mapping[str, str] | None = None,
    login: tuple[str, str] | None = None,
) -> tuple[int, dict[str, Any]]:
    """Status and JSON object of an answer, to a GET, or to a POST of `form`. `authority`: a file of certificates that
    are trusted as well; `login`: name and secret. Raises Unavailable, InvalidInput.
    """
    return _answered(url, authority, form, login)[:2]


def _answered(
    url: str,
    authority: str | None,
    form: Mapping[str, str] | None = None,
    login: tuple[str, str] | None = None,
) -> tuple[int, dict[str, Any], str]:
    """As `request`, and the date of the answer."""
    try:
        is_https = urlsplit(url).scheme == "https"
    except ValueError:
        is_https = False
    if not is_https:
        raise InvalidInput(f"identity provider: {url[:200]!r} does not begin with https://")
    # The API server of Kubernetes gives its keys as the second type, not if a client accepts the first alone.
    headers = {"accept": "application/json, application/jwk-set+json", "connection": "close"}
    if login is not None:
        headers |= make_headers(basic_auth=":".join(map(_quoted, login)))
    if form is not None:
        headers["content-type"] = "application/x-www-form-urlencoded"
    with os_errors_as(InvalidInput, f"oidc_ca {authority}"):
        # Kept connections would be used again, although their server was asked to close them.
        client = web_connections.new_client(None, CONNECT_S, ANSWER_S, authority)
    method, body = ("GET", None) if form is None else ("POST", urlencode(form))
    options: dict[str, Any] = {"headers": headers, "redirect": False, "retries": False}
    try:
        with client, client.request(method, url, body=body, preload_content=False, **options) as answer:
            found = json.loads(_read(answer))
    except (HTTPError, OSError, ValueError, RecursionError) as error:
        raise Unavailable(f"identity provider: {url}: {_reason(error)}") from None
    if not isinstance(found, dict):
        raise Unavailable(f"identity provider: {url}: not an object of JSON")
    return int(answer.status), found, answer.headers.get("date", "")


def _quoted(text: str) -> str:
    """As RFC 6749, 2.3.1, has it before name and secret are joined."""
    return urlencode({"": text})[1:]


def _read(answer: Any) -> bytes:  # of urllib3, whose type has no read1
    end_s, content = time.monotonic() + ANSWER_S, bytearray()
    while part := answer.read1(ANSWER_BYTES_MAX):
        content += part
        if len(content) > ANSWER_BYTES_MAX:
            raise ValueError(f"more than {ANSWER_BYTES_MAX:,} bytes")
        if time.monotonic() > end_s:
            raise TimeoutError(f"no whole answer within {ANSWER_S:.0f} s")
    return bytes(content)


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError):
        return "not JSON"
    return str(getattr(error, "reason", None) or error)


def discover(issuer: str, authority: str | None) -> dict[str, Any]:
    """What the provider says about itself. Raises Unavailable, InvalidInput."""
    status, found = request(issuer.rstrip("/") + DISCOVERY, authority)
    if status != 200:
        raise Unavailable(f"identity provider {issuer}: {DISCOVERY} has status {status}")
    if found.get("issuer") != issuer:
        raise InvalidInput(
            f"oidc_issuer {issuer}: the provider calls itself {str(found.get('issuer'))[:200]!r}; set this name"
        )
    return found


def endpoint(about: Mapping[str, Any], name: str) -> str:
    """The URL of a part of the provider, by what `discover` found. Raises InvalidInput."""
    url = about.get(name)
    if not isinstance(url, str) or not url:
        raise InvalidInput(f"identity provider {about['issuer']}: it has no {name}")
    return url


def fetch_keys(about: Mapping[str, Any], authority: str | None) -> list[dict[str, Any]]:
    """The public keys of a provider, by what `discover` found. Raises Unavailable, InvalidInput."""
    url = endpoint(about, "jwks_uri")
    status, found = request(url, authority)
    keys = found.get("keys")
    if status != 200:
        raise Unavailable(f"identity provider: {url}: status {status}")
    if not isinstance(keys, list) or len(keys) > KEYS_MAX:
        raise Unavailable(f"identity provider: {url}: not a list of up to {KEYS_MAX} keys")
    return [key for key in keys if isinstance(key, dict)]


def clock_ahead_s(issuer: str, authority: str | None) -> float:
    """By how much the clock of a provider is ahead, in seconds; 0 if it does not tell its time. Raises Unavailable,
    InvalidInput.
    """
    date = _answered(issuer.rstrip("/") + DISCOVERY, authority)[2]
    try:
        return parsedate_to_datetime(date).timestamp() - time.time()
    except ValueError:
        return 0.0
