"""The rules for every request and answer of the page, around the app: names, methods, headers, time.

A site that a browser visits can let its own name lead to this server (DNS rebinding), and read answers as its own. So a
name counts only if it is known as one of this server. Addresses cannot be changed in this way.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from ipaddress import ip_address
from typing import Any

import trio

from dieselfs.telemetry.budget import EventBudget

ALWAYS = frozenset(("localhost",))


def host_name(header: str) -> str:
    """The name or address in a `Host` header, in small letters; empty if it is malformed."""
    host, colon, port = header.rpartition(":")
    if not colon or header.endswith("]"):
        host, port = header, ""
    if port and not (port.isascii() and port.isdigit()):
        return ""
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host.lower().removesuffix(".")


def is_own(header: str, names: Collection[str]) -> bool:
    """Whether a `Host` header has an address, or one of `names`."""
    host = host_name(header)
    try:
        ip_address(host)
    except ValueError:
        return host in ALWAYS or host in names
    return True


REQUEST_S = 30.0
"""For an answer; streams of events take longer."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

EVENTS_PATH = "/events"

_POLICY = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "img", "media", "connect")),
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_ENCODED = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

log = logging.getLogger(__name__)


class Guard:
    """`names`: of this server, besides addresses; `origin` of a request is `SCHEME://HOST`."""

    def __init__(self, app: App, scheme: str, names: Collection[str]) -> None:
        self._app = app
        self._scheme = scheme
        self._names = names
        self._told = EventBudget()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # no lifespan to wait for, and no WebSockets
            return
        has_begun = False

        async def send_guarded(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                message["headers"] = [*message.get("headers", ()), *_ENCODED]
                if not any(name == b"cache-control" for name, _ in message["headers"]):
                    message["headers"].append((b"cache-control", b"no-store"))
            await send(message)

        refused = self._fault(scope)
        if refused is not None:
            await _answer(send_guarded, *refused)
            return
        scope["scheme"] = self._scheme
        limit_s = float("inf") if scope["path"] == EVENTS_PATH else REQUEST_S
        try:
            with trio.fail_after(limit_s):
                await self._app(scope, receive, send_guarded)
        except Exception as error:  # a bug fails this request, not the page
            self._tell(scope, error)
            if not has_begun:
                await _answer(send_guarded, 500, "the server failed; its log has the reason")

    def _tell(self, scope: Scope, error: Exception) -> None:
        if omitted := sum(self._told.begin(trio.current_time()).values()):
            log.warning("page: %d further requests failed", omitted)
        path, (address, *_) = scope["path"][:80], scope.get("client") or ("",)
        if not self._told.take("failed", "", address):
            return
        if isinstance(error, trio.TooSlowError):
            log.warning("page: %s took longer than %g s", path, REQUEST_S)
        else:
            log.error("page: %s failed with an internal error", path, exc_info=error)

    def _fault(self, scope: Scope) -> tuple[int, str] | None:
        """Why a request is refused: status and reason."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if not is_own(host, self._names):
            return (
                421,
                f"this server is not called {host[:80]!r}; an administrator can add the name (web_names)",
            )
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return 405, "only GET, HEAD and POST are answered"
        if scope["method"] == "POST":
            origin = headers.get(b"origin", b"").decode("latin-1")
            if origin != f"{self._scheme}://{host}":
                return 403, "this request comes from another site"
        return None


async def _answer(send: Send, status: int, text: str) -> None:
    body = json.dumps({"error": text}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),  # perhaps with a body that nobody reads
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
