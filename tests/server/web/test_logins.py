"""Logins at the page: proofs for this page alone, links for one browser, sessions that end."""

from dataclasses import dataclass

import pytest

from dieselfs.errors import AccessDenied
from dieselfs.net import auth
from dieselfs_server.access.accounts import Caller
from dieselfs_server.web.logins import (
    CHALLENGE_S,
    LINK_S,
    SESSION_IDLE_S,
    SESSION_S,
    Challenge,
    Logins,
    checked_proof,
)

KEY = auth.Key("ann", "k1", bytes(range(32)))
ORIGIN = "https://storage-1:7071"
ANN = Caller("ann", "k1")


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


def proof_of(challenge: Challenge, origin: str = ORIGIN, role: str = auth.PAGE_ROLE) -> bytes:
    nonces = challenge.client_nonce, challenge.server_nonce
    return auth.client_proof(KEY, auth.transcript(role, origin.encode(), "ann", "k1", *nonces))


@pytest.fixture
def challenge() -> Challenge:
    return Challenge("ann", "k1", bytes(32), b"s" * 32)


def test_both_ends_prove_the_key(challenge: Challenge) -> None:
    answer = checked_proof(challenge, ORIGIN, proof_of(challenge), KEY.verifier(), b"salt")
    nonces = challenge.client_nonce, challenge.server_nonce
    transcript = auth.transcript(auth.PAGE_ROLE, ORIGIN.encode(), "ann", "k1", *nonces)
    assert auth.is_server_proof(KEY, transcript, answer)


@pytest.mark.parametrize(
    ("origin", "role"),
    [("https://storage-2:7071", auth.PAGE_ROLE), (ORIGIN, auth.SERVER_ROLE), (ORIGIN, auth.PEER_ROLE)],
)
def test_a_proof_for_another_page_or_for_the_api_is_wrong(
    challenge: Challenge, origin: str, role: str
) -> None:
    with pytest.raises(AccessDenied, match="unknown key"):
        checked_proof(challenge, ORIGIN, proof_of(challenge, origin, role), KEY.verifier(), b"salt")


def test_an_unknown_user_is_refused_in_the_same_words(challenge: Challenge) -> None:
    with pytest.raises(AccessDenied, match="unknown key"):
        checked_proof(challenge, ORIGIN, proof_of(challenge), None, b"salt")


def test_a_challenge_is_for_one_proof_in_time() -> None:
    time = Clock()
    logins = Logins(time)
    token, challenge = logins.challenge("10.0.0.1", "ann", "k1", bytes(32))
    assert logins.take_challenge(token) == challenge
    with pytest.raises(AccessDenied):
        logins.take_challenge(token)
    late, _ = logins.challenge("10.0.0.1", "ann", "k1", bytes(32))
    time.now_s += CHALLENGE_S
    with pytest.raises(AccessDenied):
        logins.take_challenge(late)


def test_a_link_is_for_one_browser_in_time() -> None:
    time = Clock()
    logins = Logins(time)
    link, late = logins.make_link(ANN), logins.make_link(ANN)
    assert logins.take_link(link) == ANN
    with pytest.raises(AccessDenied, match="used already"):
        logins.take_link(link)
    time.now_s += LINK_S
    with pytest.raises(AccessDenied):
        logins.take_link(late)


def test_a_session_ends_when_it_is_not_used_and_when_it_is_old() -> None:
    time = Clock()
    logins = Logins(time)
    idle, used = logins.open(ANN), logins.open(ANN)
    for _ in range(int(SESSION_S / (SESSION_IDLE_S / 2)) - 1):
        time.now_s += SESSION_IDLE_S / 2
        assert logins.caller(used) == ANN
    assert logins.caller(idle) is None
    time.now_s += SESSION_IDLE_S / 2
    assert logins.caller(used) is None


def test_a_closed_session_is_over() -> None:
    logins = Logins(Clock())
    first, second = logins.open(ANN), logins.open(ANN)
    logins.close(first)
    assert (logins.caller(first), logins.caller(second), logins.caller("")) == (None, ANN, None)
    logins.close_all()
    assert logins.caller(second) is None
