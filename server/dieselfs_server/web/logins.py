"""Who is logged in at the page, and how: with the proof of a key as in the API, with a one-time link, or at the
identity provider. No I/O.

A browser cannot see the certificate of its connection, so its proof covers the origin of the page instead: a proof that
a page of another name has got is wrong here.

Tokens are random. Only the digest of a token is kept. All are in the memory of one server, so a restart ends them.
"""

import hashlib
import os
import re
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from dieselfs.errors import AccessDenied
from dieselfs.limits import KNOWN_ADDRESS_S
from dieselfs.net import auth
from dieselfs.rpc.serving.slots import KNOWN_ADDRESSES_MAX, address_group
from dieselfs_server.access.accounts import Caller

if TYPE_CHECKING:  # few servers need its HTTP
    from dieselfs.oidc.grants import Redirect

WINDOW_S = 60.0
TRIES_PER_ADDRESS = 30
TRIES_OF_ALL = 300
"""Limits of a window, for one address and for all, which bound the processor time of logins."""
TRIES_OF_EACH = 3
"""Of every address, also when others have used up TRIES_OF_ALL: few addresses keep nobody from logging in."""
TRIES_WITH_EACH = 3000
"""Limit of all together with TRIES_OF_EACH. Only addresses from which somebody has logged in have tries beyond it."""
FAILURES_OF_USER = 10
"""Failed logins as one user from one address in a window; others behind the same address still log in."""


class LoginRate:
    """For one thread at a time. Times are in seconds, and do not fall. Of IPv6, a /64 is one address."""

    def __init__(self, times: int = 1) -> None:
        """`times`: by which TRIES_PER_ADDRESS and TRIES_OF_ALL are multiplied.

        TRIES_WITH_EACH is not multiplied: else many addresses could evict the pending logins of others.
        """
        self._times = times
        self._ends_s = float("-inf")
        self._tries: Counter[str] = Counter()
        self._total = 0  # of `_tries`
        self._failures: Counter[tuple[str, str]] = Counter()
        self._known_until_s: dict[str, float] = {}  # addresses from which somebody has logged in

    def take(self, address: str, now_s: float) -> bool:
        """Whether a try is allowed now. An address from which somebody has logged in comes first."""
        if now_s >= self._ends_s:
            self._ends_s = now_s + WINDOW_S
            self._tries.clear()
            self._failures.clear()
            self._total = 0
        group = address_group(address)
        is_known = self._known_until_s.get(group, now_s) > now_s
        tries, limit = self._tries[group], self._times * TRIES_OF_ALL
        if tries < TRIES_OF_EACH:
            limit += TRIES_WITH_EACH - TRIES_OF_ALL
        if tries >= self._times * TRIES_PER_ADDRESS or (self._total >= limit and not is_known):
            return False
        self._tries[group] += 1
        self._total += 1
        return True

    def may_be(self, address: str, user: str) -> bool:
        """Whether a try as this user is allowed in this window."""
        return self._failures[address_group(address), user] < FAILURES_OF_USER

    def fail(self, address: str, user: str) -> None:
        self._failures[address_group(address), user] += 1

    def succeed(self, address: str, now_s: float) -> None:
        """The last try succeeded, so it does not count."""
        group = address_group(address)
        if self._tries[group] > 0:
            self._tries[group] -= 1
            self._total -= 1
        if len(self._known_until_s) >= KNOWN_ADDRESSES_MAX:
            del self._known_until_s[min(self._known_until_s, key=self._known_until_s.__getitem__)]
        self._known_until_s[group] = now_s + KNOWN_ADDRESS_S


TOKEN_BYTES = 32
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")

Value = TypeVar("Value")


@dataclass(slots=True)
class _Entry(Generic[Value]):
    value: Value
    owner: str
    ends_s: float
    used_s: float


class Tokens(Generic[Value]):
    """At most `count_max` values, `owner_max` of one owner; the oldest of the owner with most gives way.

    For one thread at a time.

    A value ends `life_s` after it was added, and when it was not used for `idle_s`. Times are in seconds, and do not
    fall.
    """

    def __init__(self, count_max: int, owner_max: int, life_s: float, idle_s: float | None = None) -> None:
        self._count_max = count_max
        self._owner_max = owner_max
        self._life_s = life_s
        self._idle_s = life_s if idle_s is None else idle_s
        self._entries = OrderedDict[bytes, _Entry[Value]]()  # by digest, the oldest first
        self._used = OrderedDict[bytes, None]()  # the last one that was used at the end
        self._owned: dict[str, OrderedDict[bytes, None]] = {}  # by owner, the oldest first
        self._owners: dict[int, OrderedDict[str, None]] = {}  # by how many they have

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, value: Value, owner: str, now_s: float, token: str = "") -> str:
        """The token of a value: a new one unless it is given, in letters that may stand in a URL."""
        self._drop_ended(now_s)
        if len(self._owned.get(owner, ())) >= self._owner_max:
            self._drop(next(iter(self._owned[owner])))
        elif len(self._entries) >= self._count_max:
            largest = next(iter(self._owners[max(self._owners)]))
            self._drop(next(iter(self._owned[largest])))
        token = token or secrets.token_urlsafe(TOKEN_BYTES)
        self._drop(digest := _digest(token))
        owned = self._owned.setdefault(owner, OrderedDict())
        self._entries[digest] = _Entry(value, owner, now_s + self._life_s, now_s)
        self._used[digest] = owned[digest] = None
        self._recount(owner, len(owned) - 1, len(owned))
        return token

    def find(self, token: str, now_s: float) -> Value | None:
        """The value of a token, which is used by this; None if it is unknown or has ended."""
        self._drop_ended(now_s)
        entry = self._entries.get(digest := _digest(token))
        if entry is None:
            return None
        entry.used_s = now_s
        self._used.move_to_end(digest)
        return entry.value

    def take(self, token: str, now_s: float) -> Value | None:
        """As `find`; the token is worthless afterwards."""
        value = self.find(token, now_s)
        self._drop(_digest(token))
        return value

    def clear(self) -> None:
        self._entries.clear()
        self._used.clear()
        self._owned.clear()
        self._owners.clear()

    def _drop_ended(self, now_s: float) -> None:
        while self._entries and now_s >= self._entries[first := next(iter(self._entries))].ends_s:
            self._drop(first)
        while self._used and now_s - self._entries[first := next(iter(self._used))].used_s >= self._idle_s:
            self._drop(first)

    def _drop(self, digest: bytes) -> None:
        if (entry := self._entries.pop(digest, None)) is None:
            return
        owned = self._owned[entry.owner]
        del self._used[digest], owned[digest]
        self._recount(entry.owner, len(owned) + 1, len(owned))
        if not owned:
            del self._owned[entry.owner]

    def _recount(self, owner: str, before: int, now: int) -> None:
        """Note how many values an owner has."""
        if before:
            del self._owners[before][owner]
            if not self._owners[before]:
                del self._owners[before]
        if now:
            self._owners.setdefault(now, OrderedDict())[owner] = None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


SESSION_S = 12 * 3600.0
SESSION_IDLE_S = 1800.0
LINK_S = 600
CHALLENGE_S = 30.0
REDIRECT_S = 600
"""For a person at the identity provider."""
REDIRECT_TRIES = 40
"""Times as many logins may begin at the identity provider as tries with keys are allowed; those that succeed do not
count. Thousands of users may be behind one address, nobody guesses anything there, and the server does less for each.
As many may come back, for each of which the server asks the provider.
"""
REDIRECTS_MAX = REDIRECT_TRIES * TRIES_PER_ADDRESS * int(REDIRECT_S / WINDOW_S)
"""As many as one address may begin within REDIRECT_S: those behind one address push nobody's login out."""
SESSIONS_MAX = 1024
SESSIONS_PER_USER_MAX = 16
LINKS_MAX = 256
LINKS_PER_USER_MAX = 8
CHALLENGES_MAX = 512
CHALLENGES_PER_ADDRESS_MAX = 32


@dataclass(frozen=True, slots=True)
class Challenge:
    """What a proof must cover, but for the origin."""

    user: str
    key_id: str
    client_nonce: bytes
    server_nonce: bytes


class CallerTokens(Protocol):
    """`Tokens` of callers, in this process or in memory that several processes share."""

    def add(self, value: Caller, owner: str, now_s: float) -> str: ...

    def find(self, token: str, now_s: float) -> Caller | None: ...

    def take(self, token: str, now_s: float) -> Caller | None: ...

    def clear(self) -> None: ...


class Logins:
    """For the trio thread; `clock`: seconds that do not fall."""

    def __init__(
        self,
        clock: Callable[[], float],
        links: CallerTokens | None = None,
        sessions: CallerTokens | None = None,
    ) -> None:
        self._clock = clock
        self.rate = LoginRate()
        self.redirect_rate, self.return_rate = LoginRate(REDIRECT_TRIES), LoginRate(REDIRECT_TRIES)
        self._links: CallerTokens = links or Tokens(LINKS_MAX, LINKS_PER_USER_MAX, LINK_S)
        self._challenges: Tokens[Challenge] = Tokens(CHALLENGES_MAX, CHALLENGES_PER_ADDRESS_MAX, CHALLENGE_S)
        self._redirects: Tokens[Redirect] = Tokens(REDIRECTS_MAX, REDIRECTS_MAX, REDIRECT_S)
        self._sessions: CallerTokens = sessions or Tokens(
            SESSIONS_MAX, SESSIONS_PER_USER_MAX, SESSION_S, SESSION_IDLE_S
        )

    def make_link(self, caller: Caller) -> str:
        """A token with which a browser becomes `caller`, once, within LINK_S."""
        return self._links.add(caller, caller.name, self._clock())

    def take_link(self, token: str) -> Caller:
        """Raises AccessDenied."""
        caller = self._links.take(token, self._clock())
        if caller is None:
            raise AccessDenied(
                "this link was used already, or has expired: make a new one with dlcmd dashboard"
            )
        return caller

    def challenge(self, address: str, user: str, key_id: str, client_nonce: bytes) -> tuple[str, Challenge]:
        """A challenge for a caller at `address`, and the token that names it."""
        challenge = Challenge(user, key_id, client_nonce, os.urandom(auth.NONCE_BYTES))
        return self._challenges.add(challenge, address_group(address), self._clock()), challenge

    def take_challenge(self, token: str) -> Challenge:
        """Raises AccessDenied."""
        challenge = self._challenges.take(token, self._clock())
        if challenge is None:
            raise AccessDenied("the login took too long: try again")
        return challenge

    def send_away(self, address: str, redirect: "Redirect", browser: str = "") -> str:
        """The token with which a browser at `address` proves that it was sent to the identity provider: `browser`, if
        another tab has got that.
        """
        if not _TOKEN.fullmatch(browser):
            browser = secrets.token_urlsafe(TOKEN_BYTES)
        self._redirects.add(redirect, address_group(address), self._clock(), f"{browser} {redirect.state}")
        return browser

    def take_redirect(self, browser: str, state: str) -> "Redirect":
        """Of a browser that came back, once, within REDIRECT_S. Raises AccessDenied."""
        redirect = self._redirects.take(f"{browser} {state}", self._clock())
        if redirect is None:
            raise AccessDenied(
                "this login was used already, has expired, or was begun in another browser: log in again"
            )
        return redirect

    def open(self, caller: Caller) -> str:
        """Begin a session; the token is for the cookie."""
        return self._sessions.add(caller, caller.name, self._clock())

    def caller(self, token: str) -> Caller | None:
        """Of a session; this counts as its use."""
        return self._sessions.find(token, self._clock()) if token else None

    def close(self, token: str) -> None:
        self._sessions.take(token, self._clock())

    def close_all(self) -> None:
        self._links.clear()
        self._challenges.clear()
        self._redirects.clear()
        self._sessions.clear()


def checked_proof(
    challenge: Challenge, origin: str, proof: bytes, known: auth.Verifier | None, salt: bytes
) -> bytes:
    """The proof of the server, in return. Raises AccessDenied; an unknown user costs the same work."""
    verifier = known or auth.Verifier.nobody(salt, challenge.user, challenge.key_id)
    transcript = auth.transcript(
        auth.PAGE_ROLE,
        origin.encode(),
        challenge.user,
        challenge.key_id,
        challenge.client_nonce,
        challenge.server_nonce,
    )
    if not auth.is_client_proof(verifier, transcript, proof) or known is None:
        raise AccessDenied("unknown key: wrong key file, or the key was removed or has expired")
    return auth.server_proof(verifier, transcript)
