"""The requests with which browsers log in and out of the page, and who a request is from.

A browser that logs in at the identity provider is sent there, and comes back to the page, which hands the answer in. So
all that counts is posted by the page itself, and its cookies are for its own site alone.
"""

import json
import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, TypeVar

import trio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from dieselfs.errors import AccessDenied, DieselfsError, InvalidInput, NotFound, Unavailable
from dieselfs.net.auth import NONCE_BYTES, PROVIDER_MARK, check_key_id, check_user_name
from dieselfs.telemetry import catalogue
from dieselfs_server.access.accounts import ALL_DATASETS, PAGE_KEY, Accounts, Caller, Right
from dieselfs_server.service import Service
from dieselfs_server.web.contents import Ask
from dieselfs_server.web.logins import REDIRECT_S, SESSION_S, LoginRate, Logins, checked_proof
from dieselfs_server.web.serving import LOGGED_IN

if TYPE_CHECKING:  # few servers need its HTTP
    from dieselfs_server.access.provider import ProviderLogins

BODY_BYTES_MAX = 4096
BODY_S = 10.0
ASKING_MAX = 4
"""Threads that ask the provider for browsers: strangers begin logins, and must not take those that check tokens."""

Value = TypeVar("Value")

_TOO_MANY = "too many logins: wait a minute, then try again"

log = logging.getLogger(__name__)


class LoggedOut(Exception):
    """The request has no session, or that of a key that was removed."""


@dataclass(frozen=True)
class Viewer:
    """Who looks, with the rights of now."""

    caller: Caller
    accounts: Accounts
    now_s: float

    def right(self, dataset: str) -> Right:
        return self.caller.right_on(dataset, self.accounts, self.now_s)

    def may_see(self, dataset: str) -> bool:
        return self.right(dataset) >= Right.READ

    def may_see_user(self, user: str) -> bool:
        """What a user stores and has read: as in the API, administrators, and the user."""
        return user != "" and (self.is_admin or user == self.caller.name)

    @property
    def is_admin(self) -> bool:
        return self.right(ALL_DATASETS) >= Right.ADMIN


class Entrance:
    """`scheme`: of the address of the page; `port` is that of its listener, which cookies do not tell apart."""

    def __init__(
        self,
        service: Service,
        logins: Logins,
        ask: Ask,
        provider: "ProviderLogins | None",
        is_encrypted: bool,
        port: int,
    ) -> None:
        self._service = service
        self._logins = logins
        self._ask = ask
        self._provider = provider
        self._is_encrypted = is_encrypted
        self.scheme = "https" if is_encrypted else "http"
        self._cookie = "__Host-dieselfs" if is_encrypted else f"dieselfs-{port}"
        self._away = f"{self._cookie}-away"
        """The cookie of a browser that was sent to the provider. All of its tabs have one."""
        self._asking = trio.CapacityLimiter(ASKING_MAX)
        self._refused = service.metrics.declare(catalogue.RPC_REFUSED_LOGINS)

    async def challenge(self, request: Request) -> dict[str, str]:
        fields = await _fields(request)
        nonce = _bytes_of(fields, "client_nonce", NONCE_BYTES)
        user, key_id = check_user_name(fields.get("user", "")), check_key_id(fields.get("key_id", ""))
        token, challenge = self._logins.challenge(address_of(request), user, key_id, nonce)
        return {"challenge": token, "server_nonce": urlsafe_b64encode(challenge.server_nonce).decode()}

    async def login(self, request: Request) -> Response:
        fields, user = await self._tried(request, self._logins.rate), ""
        users = self._service.users
        try:
            challenge = self._logins.take_challenge(fields.get("challenge", ""))
            user = challenge.user
            if not self._logins.rate.may_be(address_of(request), user):
                raise Unavailable(_TOO_MANY)
            known = await trio.to_thread.run_sync(users.verifier, challenge.user, challenge.key_id)
            origin = f"{self.scheme}://{request.headers['host']}"
            proof = checked_proof(challenge, origin, _bytes_of(fields, "proof", 32), known, users.salt)
        except AccessDenied as error:
            self._logins.rate.fail(address_of(request), user)
            self._note_refusal(request, str(error))
            raise
        caller = Caller(challenge.user, challenge.key_id)
        answer = self._opened(request, caller, "key", self._logins.rate)
        answer.body = answer.render({"proof": urlsafe_b64encode(proof).decode()})
        answer.headers["content-length"] = str(len(answer.body))
        return answer

    async def link(self, request: Request) -> Response:
        fields = await self._tried(request, self._logins.rate)
        try:
            caller = self._logins.take_link(fields.get("token", ""))
        except AccessDenied as error:
            self._note_refusal(request, str(error))
            raise
        return self._opened(request, caller, "link", self._logins.rate)

    async def provider(self, _: Request) -> dict[str, str]:
        """The identity provider, empty without one: the only view that needs no login."""
        return {"issuer": self._provider.issuer if self._provider is not None else ""}

    async def to_provider(self, request: Request) -> Response:
        await self._tried(request, self._logins.redirect_rate)
        page = f"{self.scheme}://{request.headers['host']}/"
        address, redirect = await self._at_provider(lambda provider: provider.begin(page))
        answer = JSONResponse({"address": address})
        token = self._logins.send_away(address_of(request), redirect, request.cookies.get(self._away, ""))
        self._set_cookie(answer, self._away, token, REDIRECT_S)
        return answer

    async def from_provider(self, request: Request) -> Response:
        fields = await _fields(request)  # what nobody was sent away for costs nothing, and is not counted
        rates = self._logins.redirect_rate, self._logins.return_rate
        try:
            redirect = self._logins.take_redirect(
                request.cookies.get(self._away, ""), fields.get("state", "")
            )
            if error := fields.get("error", ""):
                reason = f": {error[:80]}" if error.isidentifier() else ""
                raise AccessDenied(f"the identity provider refuses the login{reason}")
            code, sender = fields.get("code", ""), fields.get("iss")

            def finish(provider: "ProviderLogins") -> Caller:
                if sender not in (None, provider.issuer):  # RFC 9207
                    raise AccessDenied("the answer is from another identity provider: log in again")
                return provider.finish(redirect, code, SESSION_S)

            if not self._logins.return_rate.take(address_of(request), trio.current_time()):
                raise Unavailable(_TOO_MANY)
            caller = await self._at_provider(finish)
        except AccessDenied as refusal:
            self._note_refusal(request, str(refusal))
            raise
        return self._opened(request, caller, "provider", *rates)

    async def _at_provider(self, ask: "Callable[[ProviderLogins], Value]") -> Value:
        """Raises NotFound without a provider, and as `ask`; why it is Unavailable is for the log alone."""
        provider = self._provider
        if provider is None:
            raise NotFound("this server has no identity provider")
        try:
            return await trio.to_thread.run_sync(ask, provider, abandon_on_cancel=True, limiter=self._asking)
        except Unavailable as error:
            log.warning("page: %s", error)
            raise Unavailable(
                "the server cannot log in at the identity provider now; its log has the reason"
            ) from None

    async def logout(self, request: Request) -> Response:
        await _fields(request)
        token = request.cookies.get(self._cookie, "")
        caller = self._logins.caller(token)
        self._logins.close(token)
        name, key_id = (caller.name, caller.key_id) if caller is not None else ("", "")
        if name.startswith(PROVIDER_MARK) and key_id.startswith(PAGE_KEY):
            asked = self._ask(caller, address_of(request), "remove_key", user=name, key_id=key_id)
            with suppress(DieselfsError):  # it expires
                async with asked:
                    pass
        answer = JSONResponse({})
        self._set_cookie(answer, self._cookie, "", 0)
        return answer

    def _set_cookie(self, answer: Response, name: str, token: str, life_s: float) -> None:
        """`life_s` 0 removes it."""
        answer.set_cookie(
            name,
            token,
            max_age=int(life_s),
            path="/",
            secure=self._is_encrypted,
            httponly=True,
            samesite="strict",
        )

    async def _tried(self, request: Request, rate: LoginRate) -> dict[str, str]:
        """The fields of an attempt to log in. Raises Unavailable if there are too many."""
        if not rate.take(address_of(request), trio.current_time()):
            raise Unavailable(_TOO_MANY)
        return await _fields(request)

    def _opened(self, request: Request, caller: Caller, how: str, *rates: LoginRate) -> JSONResponse:
        """`rates`: which have counted the try."""
        if self._service.audit is not None:
            self._service.audit.write(
                "login", caller.name, address_of(request), key_used=caller.key_id, page=how
            )
        for rate in rates:
            rate.succeed(address_of(request), trio.current_time())
        self._logins.close(request.cookies.get(self._cookie, ""))
        answer = JSONResponse({})
        self._set_cookie(answer, self._cookie, self._logins.open(caller), SESSION_S)
        return answer

    def _note_refusal(self, request: Request, reason: str) -> None:
        self._refused.value += 1
        if self._service.audit is not None:
            self._service.audit.write("refused", "", address_of(request), reason=reason, page="login")

    async def viewer(self, request: Request) -> Viewer:
        """Raises LoggedOut. Others no longer take the place of a connection that is logged in."""
        token = request.cookies.get(self._cookie, "")
        caller = self._logins.caller(token)
        if caller is None:
            raise LoggedOut
        accounts = Accounts()
        if not caller.is_trusted:
            accounts = await trio.to_thread.run_sync(self._service.users.current)
            try:
                caller.key(accounts, time())
            except AccessDenied:
                self._logins.close(token)
                raise LoggedOut from None
        request.scope.get(LOGGED_IN, bool)()
        return Viewer(caller, accounts, time())


def address_of(request: Request) -> str:
    return request.client.host if request.client else ""


def _bytes_of(fields: dict[str, str], name: str, length: int) -> bytes:
    """Raises InvalidInput."""
    try:
        value = urlsafe_b64decode(fields.get(name, ""))
    except ValueError:
        value = b""
    if len(value) != length:
        raise InvalidInput(f"{name} must be {length} bytes in URL-safe base64")
    return value


async def _fields(request: Request) -> dict[str, str]:
    """The body of a request: a JSON object of texts in ASCII. Raises InvalidInput."""
    body = bytearray()
    try:
        with trio.fail_after(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > BODY_BYTES_MAX:
                    raise InvalidInput(f"a body of more than {BODY_BYTES_MAX} bytes")
    except trio.TooSlowError:
        raise InvalidInput(f"the body took longer than {BODY_S:g} s") from None
    except ClientDisconnect:
        raise InvalidInput("the browser left before the end of the body") from None
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or not all(
        isinstance(value, str) and value.isascii() for value in fields.values()
    ):
        raise InvalidInput("the body must be a JSON object of texts in ASCII")
    return fields
