"""Tokens from an OpenID Connect provider: for people by a code that they enter in a browser (RFC 8628), or by a browser
that is sent to the provider and back (RFC 6749, 4.1); for jobs by the secret of a service; and again by a refresh
token. This module opens sockets.
"""

import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

from dieselfs.errors import AccessDenied, InvalidInput, Unavailable
from dieselfs.oidc.provider import discover, endpoint, request

SCOPES = ("openid", "profile", "email", "groups", "offline_access")
"""Those of them are asked for that the provider says it has."""

INTERVAL_S = 5.0
"""Between two questions whether the code was entered, if the provider names none; slow_down adds as much."""
CODE_S_MAX = 1800.0

_DEVICE = "urn:ietf:params:oauth:grant-type:device_code"


@dataclass(frozen=True, slots=True)
class Tokens:
    """`token`: signed by the provider, for servers; `refresh` gets the next ones, empty without."""

    token: str = field(repr=False)
    refresh: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Code:
    """What a person enters, and where."""

    code: str
    url: str
    direct_url: str
    """The same with the code in it; empty if the provider gives none."""


_random = partial(secrets.token_urlsafe, 32)


@dataclass(frozen=True, slots=True)
class Redirect:
    """A browser that is sent to the provider, which sends it back to `page`. `state` comes back with it, `nonce` in the
    token. Only who has `verifier` gets that (PKCE, RFC 7636).
    """

    page: str
    state: str = field(default_factory=_random, repr=False)
    nonce: str = field(default_factory=_random, repr=False)
    verifier: str = field(default_factory=_random, repr=False)


@dataclass(frozen=True, slots=True)
class Application:
    """A client that is registered at the provider. `secret`: empty for a public one."""

    issuer: str
    client_id: str
    authority: str | None = None
    secret: str = field(default="", repr=False)

    def by_code(
        self,
        show: Callable[[Code], object],
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> Tokens:
        """Let a person log in elsewhere; `show` tells them how. Blocks for CODE_S_MAX at most.

        Raises AccessDenied if the login is refused or comes too late, Unavailable, InvalidInput.
        """
        about = discover(self.issuer, self.authority)
        begun = self._asked(
            endpoint(about, "device_authorization_endpoint"), {"scope": _scope(about, SCOPES)}
        )
        show(
            Code(
                *(
                    _text(begun, name)
                    for name in ("user_code", "verification_uri", "verification_uri_complete")
                )
            )
        )
        pause_s = max(_number(begun, "interval", INTERVAL_S), 1.0)
        end_s = clock() + min(_number(begun, "expires_in", CODE_S_MAX), CODE_S_MAX)
        form = {"grant_type": _DEVICE, "device_code": _text(begun, "device_code")}
        while clock() + pause_s < end_s:
            sleep(pause_s)
            try:
                return _tokens(self._asked(endpoint(about, "token_endpoint"), form))
            except _Refused as refused:
                if refused.code == "slow_down":
                    pause_s += INTERVAL_S
                elif refused.code != "authorization_pending":
                    raise
            except Unavailable:  # one lost answer
                pause_s += INTERVAL_S
        raise AccessDenied("the code was not entered in time: dlcmd login")

    def address(self, about: Mapping[str, Any], redirect: Redirect) -> str:
        """Where a browser is sent, by what `discover` found. Raises InvalidInput."""
        url = endpoint(about, "authorization_endpoint")
        if not url.startswith("https://"):
            raise InvalidInput(f"identity provider {self.issuer}: {url[:200]!r} does not begin with https://")
        challenge = urlsafe_b64encode(sha256(redirect.verifier.encode()).digest()).decode().rstrip("=")
        query = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": redirect.page,
            "scope": _scope(about, SCOPES[:-1]),
            "state": redirect.state,
            "nonce": redirect.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}"

    def by_redirect(self, about: Mapping[str, Any], redirect: Redirect, code: str) -> Tokens:
        """For the code with which a browser has come back; `about`: what `discover` found. Raises as `by_refresh`."""
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect.page}
        form["code_verifier"] = redirect.verifier
        try:
            return _tokens(self._asked(endpoint(about, "token_endpoint"), form))
        except _Refused as refused:
            if refused.code != "invalid_grant":
                raise
            # It was used, is old, or the provider has restarted.
            raise AccessDenied(f"{refused}: log in again") from None

    def by_refresh(self, refresh: str) -> Tokens:
        """The next tokens. Raises AccessDenied if the provider has ended the login, Unavailable, InvalidInput."""
        about = discover(self.issuer, self.authority)
        form = {"grant_type": "refresh_token", "refresh_token": refresh}
        found = self._asked(endpoint(about, "token_endpoint"), form)
        return _tokens(found, refresh)

    def by_secret(self) -> Tokens:
        """A token of the application itself, for a job. Raises as `by_refresh`."""
        about = discover(self.issuer, self.authority)
        return _tokens(self._asked(endpoint(about, "token_endpoint"), {"grant_type": "client_credentials"}))

    def revoke(self, refresh: str) -> None:
        """End a refresh token, if the provider can (RFC 7009). Raises AccessDenied, Unavailable, InvalidInput."""
        about = discover(self.issuer, self.authority)
        if "revocation_endpoint" in about:
            self._asked(endpoint(about, "revocation_endpoint"), {"token": refresh})

    def _asked(self, url: str, form: Mapping[str, str]) -> dict[str, Any]:
        login = (self.client_id, self.secret) if self.secret else None
        own = {} if self.secret else {"client_id": self.client_id}
        status, found = request(url, self.authority, {**form, **own}, login)
        if status != 200:
            if isinstance(code := found.get("error"), str):
                raise _Refused(self.issuer, code, str(found.get("error_description", "")))
            raise Unavailable(f"identity provider: {url}: status {status}")
        return found


def _scope(about: Mapping[str, Any], wanted: tuple[str, ...]) -> str:
    offered = about.get("scopes_supported")
    known = offered if isinstance(offered, list) else SCOPES[:1]
    return " ".join(each for each in wanted if each in known or each == SCOPES[0])


class _Refused(AccessDenied):
    def __init__(self, issuer: str, code: str, description: str) -> None:
        self.code = code
        said = " ".join(f"{code} {description}".split())[:200]
        super().__init__(f"identity provider {issuer}: {said if said.isprintable() else code!r}")


def _tokens(found: Mapping[str, Any], refresh: str = "") -> Tokens:
    """`refresh`: stays in use if there is no other. Raises Unavailable."""
    token = _text(found, "id_token") or _text(found, "access_token")
    if not token:
        raise Unavailable("identity provider: it gave no token")
    return Tokens(token, _text(found, "refresh_token") or refresh)


def _text(found: Mapping[str, Any], name: str) -> str:
    """Empty unless there is one, without control characters: it may be shown."""
    value = found.get(name)
    return value if isinstance(value, str) and value.isprintable() else ""


def _number(found: Mapping[str, Any], name: str, default: float) -> float:
    value = found.get(name)
    return float(value) if isinstance(value, int | float) and value >= 0 else default
