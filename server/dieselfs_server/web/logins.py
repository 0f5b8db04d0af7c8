"""Who is logged in at the page, and how: with the proof of a key as in the API, or with a one-time link. No I/O.

A browser cannot see the certificate of its connection, so its proof covers the origin of the page instead: a proof that
a page of another name has got is wrong here.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

from dieselfs.errors import AccessDenied
from dieselfs.net import auth
from dieselfs_server.access.accounts import Caller
from dieselfs_server.web.login_rate import LoginRate
from dieselfs_server.web.tokens import Tokens

SESSION_S = 12 * 3600.0
SESSION_IDLE_S = 1800.0
LINK_S = 600
CHALLENGE_S = 30.0
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


class Logins:
    """For the trio thread; `clock`: seconds that do not fall."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rate = LoginRate()
        self._links: Tokens[Caller] = Tokens(LINKS_MAX, LINKS_PER_USER_MAX, LINK_S)
        self._challenges: Tokens[Challenge] = Tokens(CHALLENGES_MAX, CHALLENGES_PER_ADDRESS_MAX, CHALLENGE_S)
        self._sessions: Tokens[Caller] = Tokens(
            SESSIONS_MAX, SESSIONS_PER_USER_MAX, SESSION_S, SESSION_IDLE_S
        )

    def may_try(self, address: str) -> bool:
        return self._rate.take(address, self._clock())

    def succeeded(self, address: str) -> None:
        self._rate.give_back(address)

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
        return self._challenges.add(challenge, address, self._clock()), challenge

    def take_challenge(self, token: str) -> Challenge:
        """Raises AccessDenied."""
        challenge = self._challenges.take(token, self._clock())
        if challenge is None:
            raise AccessDenied("the login took too long: try again")
        return challenge

    def open(self, caller: Caller) -> str:
        """Begin a session; the token is for the cookie."""
        return self._sessions.add(caller, caller.name, self._clock())

    def caller(self, token: str) -> Caller | None:
        """Of a session; this counts as its use."""
        return self._sessions.find(token, self._clock()) if token else None

    def close(self, token: str) -> None:
        self._sessions.take(token, self._clock())

    def close_all(self) -> None:
        for tokens in (self._links, self._challenges, self._sessions):
            tokens.clear()


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
