"""Users whom an OpenID Connect provider names: its signed tokens, and the keys that servers give for them. This module
opens sockets.

A token is good for one exchange: it buys a key, which expires. All that follows is as with any key.
"""

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any, TypeVar

import trio

from dieselfs.errors import AccessDenied, DieselfsError, InvalidInput, Unavailable
from dieselfs.limits import TOKEN_BYTES_MAX
from dieselfs.net.auth import PROVIDER_MARK, Key, Verifier, check_key_id, check_user_name
from dieselfs.oidc.grants import Redirect
from dieselfs.oidc.provider import SKEW_S, discover, fetch_keys
from dieselfs.rpc.login import Login
from dieselfs_server.access.accounts import PAGE_KEY, Caller, Person, StoredKey, with_login
from dieselfs_server.access.users import UserStore
from dieselfs_server.settings import ProviderSettings

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures that only the provider can make; none with a shared secret."""
KEYS_FRESH_S = 3600.0
"""The provider's keys are asked for again after this."""
KEYS_KEPT_S = 86_400.0
"""While the provider is away, its last keys count for this long."""
ASK_S = 30.0
"""At least between two questions to the provider, whatever tokens arrive."""
ASK_AGAIN_S = 1.0
"""At least between two questions about itself, however many logins fail."""
GROUPS_MAX = 1_000
"""Of a token; more are an error, so that none is left out in silence."""

_SERVICE_ACCOUNT = re.compile(r"system:serviceaccount:([^:@]+):([^:@]+)")
"""The subject of a token of Kubernetes: namespace and name. All accounts of a namespace are a group there."""

Value = TypeVar("Value")

LOGINS_AT_ONCE = 4
"""Threads that check tokens, and may wait for the provider."""

log = logging.getLogger(__name__)


class Discovery:
    """What the provider says about itself. It is asked again after KEYS_FRESH_S, and ASK_AGAIN_S after a failure: it
    may have moved. A refused login is no failure. Threads may ask at once.
    """

    def __init__(
        self, ask: Callable[[], dict[str, Any]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._clock = ask, clock
        self._known = dict[str, Any](), float("-inf")  # and when it was read
        self._asked_s = float("-inf")
        self._trouble = ""  # why it is not known

    def use(self, act: Callable[[dict[str, Any]], Value]) -> Value:
        """What `act` returns. Raises as `act`, and Unavailable, also for wrong settings: users cannot mend them."""
        (about, read_s), now_s = self._known, self._clock()
        is_due = now_s - read_s >= KEYS_FRESH_S and now_s - self._asked_s >= ASK_AGAIN_S
        if not about and not is_due and self._trouble:
            raise Unavailable(self._trouble)
        try:
            if not about or is_due:
                self._asked_s = now_s
                about = self._ask()
                self._known = about, now_s
            return act(about)
        except AccessDenied:
            raise
        except DieselfsError as error:
            self._known, self._trouble = (self._known[0], float("-inf")), str(error)
            if isinstance(error, InvalidInput):
                raise Unavailable(str(error)) from None
            raise


class SigningKeys:
    """The provider's keys, as they change. Thread-safe; blocks while it asks for them."""

    def __init__(
        self, fetch: Callable[[], list[dict[str, Any]]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fetch, self._clock = fetch, clock
        self._lock = Lock()  # guards the four below; one thread asks, the others wait
        self._keys: list[dict[str, Any]] = []
        self._read_s = self._asked_s = float("-inf")
        self._trouble = "it was not asked yet"

    def find(self, key_id: str, is_of_provider: bool = False) -> dict[str, Any]:
        """The key with this ID. `is_of_provider`: the provider itself has given the token that names it just now, so it
        is asked at once. Raises AccessDenied if there is none, Unavailable if that is not known.
        """
        with self._lock:
            now_s = self._clock()
            found = self._known(key_id)
            is_old = now_s - self._read_s >= KEYS_FRESH_S
            if (found is None or is_old) and (is_of_provider or now_s - self._asked_s >= ASK_S):
                self._asked_s = now_s
                try:
                    self._keys, self._read_s, self._trouble = self._fetch(), now_s, ""
                except DieselfsError as error:
                    self._trouble = str(error)
                    log.warning("%s; the last keys of the provider stay in use", error)
                found = self._known(key_id)
            if now_s - self._read_s >= KEYS_KEPT_S:
                raise Unavailable(f"nobody can log in: {self._trouble}")
            if found is None:
                raise AccessDenied(f"the provider has no key {key_id[:80]!r}")
            return found

    def _known(self, key_id: str) -> dict[str, Any] | None:
        return next((key for key in self._keys if key.get("kid") == key_id), None)


class Provider:
    """Finds the person behind a token."""

    def __init__(self, settings: ProviderSettings, keys: SigningKeys | None = None) -> None:
        """Raises InvalidInput if the package for tokens is not installed."""
        try:
            import jwt
        except ImportError:
            raise InvalidInput("oidc_issuer needs: pip install '.[oidc]', in a checkout") from None
        self._jwt, self._settings = jwt, settings
        self.discovery = Discovery(partial(discover, settings.issuer, settings.authority))
        fetch = partial(self.discovery.use, partial(fetch_keys, authority=settings.authority))
        self._keys = keys or SigningKeys(fetch)

    def person(self, token: bytes, nonce: str = "") -> Person:
        """`nonce`: of a browser that was sent to the provider; the token is then for the application of the web page.
        Raises AccessDenied, with the reason for the log; Unavailable. Blocks.
        """
        if len(token) > TOKEN_BYTES_MAX:
            raise AccessDenied(f"a token of {len(token):,} bytes, limit {TOKEN_BYTES_MAX:,}")
        try:
            audiences = [self._settings.client_id] if nonce else self._settings.audiences
            claims = self._claims(token, audiences, bool(nonce))
        except (self._jwt.PyJWTError, ValueError, TypeError, RecursionError, OverflowError) as error:
            raise AccessDenied(f"token: {error}") from None
        page = nonce, self._settings.client_id
        if nonce and (claims.get("nonce"), claims.get("azp", page[1])) != page:
            raise AccessDenied("token: it is not for this login of this page")
        return self._person(claims)

    def _claims(self, token: bytes, audiences: Sequence[str], is_of_provider: bool) -> dict[str, Any]:
        header = self._jwt.get_unverified_header(token)
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in ALGORITHMS or not isinstance(key_id, str):
            raise AccessDenied(f"token: algorithm {str(algorithm)[:20]!r}, or no key ID")
        found = self._keys.find(key_id, is_of_provider)
        if found.get("alg", algorithm) != algorithm or found.get("use", "sig") != "sig":
            raise AccessDenied(f"token: key {key_id[:80]!r} is for something else")
        claims: dict[str, Any] = self._jwt.decode(
            token,
            self._jwt.PyJWK(found, algorithm),
            algorithms=[algorithm],
            audience=list(audiences),
            issuer=self._settings.issuer,
            leeway=SKEW_S,
            options={"require": ["exp", "iat", "iss", "aud", "sub"], "enforce_minimum_key_length": True},
        )
        return claims

    def _person(self, claims: Mapping[str, Any]) -> Person:
        name, groups = claims.get(self._settings.user_claim), claims.get(self._settings.groups_claim, [])
        # Of other claims, such as the names that people choose, none says that.
        subject = name if self._settings.user_claim == "sub" and isinstance(name, str) else ""
        if account := _SERVICE_ACCOUNT.fullmatch(subject):
            name, groups = f"{account[2]}@{account[1]}", [f"system:serviceaccounts:{account[1]}"]
        if not isinstance(name, str) or (
            self._settings.user_claim == "email" and not claims.get("email_verified")
        ):
            raise AccessDenied(f"token: no {self._settings.user_claim}, or one that is not verified")
        try:
            check_user_name(PROVIDER_MARK + name)
        except InvalidInput as error:
            raise AccessDenied(f"token: {error}") from None
        if not isinstance(groups, list) or len(groups) > GROUPS_MAX:
            raise AccessDenied(
                f"token: {self._settings.groups_claim} is no list of up to {GROUPS_MAX} groups"
            )
        mapped = (self._settings.groups.get(each) for each in groups if isinstance(each, str))
        return Person(PROVIDER_MARK + name, str(claims["sub"]), frozenset(filter(None, mapped)))


class ProviderLogins:
    """Gives keys for tokens. Blocks."""

    def __init__(
        self,
        settings: ProviderSettings,
        users: UserStore,
        clock: Callable[[], float] = time.time,
        provider: Provider | None = None,
    ) -> None:
        """Raises InvalidInput for the file with the secret of the application, or without the package for tokens."""
        self._provider, self._users, self._clock = provider or Provider(settings), users, clock
        self.issuer, self._lifetime_s = settings.issuer, settings.lifetime_s
        application = settings.issuer, settings.client_id, settings.authority, settings.secret_file
        self._application = Login(*application).application()
        self.limiter = trio.CapacityLimiter(LOGINS_AT_ONCE)

    def log_in(self, token: bytes, key_id: str, verifier: Verifier) -> tuple[str, int]:
        """The user, and until when the key counts, in seconds since 1970. Raises AccessDenied, Unavailable,
        InvalidInput.
        """
        return self._log_in(self._provider.person(token), key_id, verifier, self._lifetime_s)

    def _log_in(self, person: Person, key_id: str, verifier: Verifier, life_s: float) -> tuple[str, int]:
        now_s = int(self._clock())
        key = StoredKey(verifier, now_s, now_s + int(life_s))
        self._users.change(partial(with_login, person=person, key_id=check_key_id(key_id), key=key))
        return person.name, key.expires_s

    def begin(self, page: str) -> tuple[str, Redirect]:
        """Where a browser is sent, from which it comes back to `page`. Raises Unavailable."""
        redirect = Redirect(page)
        address = partial(self._application.address, redirect=redirect)
        return self._provider.discovery.use(address), redirect

    def finish(self, redirect: Redirect, code: str, life_s: float) -> Caller:
        """The user who has come back with a code, for `life_s` at most: with a key whose secret nobody has. Raises as
        `log_in`.
        """
        exchange = partial(self._application.by_redirect, redirect=redirect, code=code)
        token = self._provider.discovery.use(exchange).token
        person, key = self._provider.person(token.encode(), redirect.nonce), Key.generate("login")
        key_id = PAGE_KEY + key.key_id
        return Caller(self._log_in(person, key_id, key.verifier(), min(life_s, self._lifetime_s))[0], key_id)
