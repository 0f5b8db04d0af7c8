"""Logins at the page: proofs for this page alone, links for one browser, sessions that end."""

from dataclasses import dataclass

import pytest

from dieselfs.errors import AccessDenied
from dieselfs.net import auth
from dieselfs.oidc.grants import Redirect
from dieselfs_server.access.accounts import Caller
from dieselfs_server.web.logins import (
    CHALLENGE_S,
    FAILURES_OF_USER,
    LINK_S,
    REDIRECT_S,
    REDIRECT_TRIES,
    REDIRECTS_MAX,
    SESSION_IDLE_S,
    SESSION_S,
    TRIES_OF_ALL,
    TRIES_OF_EACH,
    TRIES_PER_ADDRESS,
    TRIES_WITH_EACH,
    WINDOW_S,
    Challenge,
    LoginRate,
    Logins,
    Tokens,
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


def test_a_browser_comes_back_from_the_provider_once_in_time_with_its_own_state() -> None:
    time, redirect = Clock(), Redirect("https://storage-1:7071/")
    logins = Logins(time)
    ours = [logins.send_away("10.0.0.1", redirect) for _ in range(4)]
    time.now_s = REDIRECT_S - 1
    assert logins.take_redirect(ours[0], redirect.state) == redirect
    for token, state in ((ours[0], redirect.state), (ours[1], "x"), ("", redirect.state), ("", "")):
        with pytest.raises(AccessDenied, match="log in again"):
            logins.take_redirect(token, state)
    time.now_s = REDIRECT_S
    with pytest.raises(AccessDenied, match="has expired"):
        logins.take_redirect(ours[2], redirect.state)


def test_tabs_of_one_browser_log_in_side_by_side() -> None:
    logins, redirects = Logins(Clock()), [Redirect("https://storage-1:7071/") for _ in range(3)]
    browser = logins.send_away("10.0.0.1", redirects[0])
    assert [logins.send_away("10.0.0.1", each, browser) for each in redirects[1:]] == [browser] * 2
    assert [logins.take_redirect(browser, each.state) for each in redirects] == redirects
    for unusual in ("", "x", "a" * 42 + "\n", "a" * 44):
        given = logins.send_away("10.0.0.1", redirects[0], unusual)
        assert len(given) == 43 and given != unusual


def test_browsers_behind_one_address_do_not_end_the_login_of_another() -> None:
    logins, redirect = Logins(Clock()), Redirect("https://storage-1:7071/")
    first = logins.send_away("10.0.0.1", redirect)
    for _ in range(REDIRECTS_MAX - 1):
        logins.send_away("10.0.0.1", redirect)
    assert logins.take_redirect(first, redirect.state) == redirect


def test_a_closed_session_is_over() -> None:
    logins = Logins(Clock())
    first, second = logins.open(ANN), logins.open(ANN)
    logins.close(first)
    assert (logins.caller(first), logins.caller(second), logins.caller("")) == (None, ANN, None)
    logins.close_all()
    assert logins.caller(second) is None


def test_an_address_has_so_many_tries_in_a_window() -> None:
    rate = LoginRate()
    assert sum(rate.take("a", 1.0) for _ in range(1000)) == TRIES_PER_ADDRESS
    assert rate.take("b", 2.0)
    assert not rate.take("a", WINDOW_S)
    assert rate.take("a", 1.0 + WINDOW_S)


def test_logins_that_succeed_do_not_count() -> None:
    rate = LoginRate()
    for _ in range(1000):
        assert rate.take("a", 1.0)
        rate.succeed("a", 1.0)
    assert sum(rate.take("b", 1.0) for _ in range(1000)) == TRIES_PER_ADDRESS


def test_thousands_of_users_behind_one_address_log_in_at_the_provider() -> None:
    rate, waiting = LoginRate(REDIRECT_TRIES), 500
    for number in range(10_000):
        assert rate.take("10.0.0.1", number / 200), "in less than one window"
        if number >= waiting:
            rate.succeed("10.0.0.1", number / 200)
    unfinished = 10_000 * TRIES_PER_ADDRESS
    assert sum(rate.take("10.0.0.1", 50.0) for _ in range(unfinished)) == (
        REDIRECT_TRIES * TRIES_PER_ADDRESS - waiting
    )


def test_all_addresses_together_push_no_pending_login_out_sooner() -> None:
    rate = LoginRate(REDIRECT_TRIES)
    begun = sum(rate.take(f"2001:db8:{number:x}::1", 0.0) for number in range(20_000))
    assert begun == REDIRECT_TRIES * TRIES_OF_ALL + TRIES_WITH_EACH - TRIES_OF_ALL


def test_all_addresses_together_have_a_limit() -> None:
    rate = LoginRate()
    assert sum(rate.take(str(number), 0.0) for number in range(10_000)) == TRIES_WITH_EACH


def test_a_few_addresses_keep_nobody_else_from_logging_in() -> None:
    rate = LoginRate()
    rate.succeed("10.0.0.1", 0.0)
    taken = sum(rate.take(f"10.1.0.{number % 20}", 0.0) for number in range(10_000))
    assert taken == TRIES_OF_ALL
    assert sum(rate.take("10.2.0.1", 0.0) for _ in range(10)) == TRIES_OF_EACH
    assert (
        sum(rate.take("10.0.0.1", 0.0) for _ in range(100)) == TRIES_PER_ADDRESS
    )  # somebody has logged in from there
    assert not rate.take("10.1.0.1", 0.0)


def test_the_addresses_of_one_network_of_ipv6_count_as_one() -> None:
    rate = LoginRate()
    assert sum(rate.take(f"2001:db8::{number:x}", 0.0) for number in range(1000)) == TRIES_PER_ADDRESS
    assert rate.take("2001:db8:0:1::1", 0.0)


def test_failures_as_one_user_keep_no_other_user_of_the_address_out() -> None:
    rate = LoginRate()
    for _ in range(FAILURES_OF_USER):
        assert rate.may_be("10.0.0.1", "ann")
        rate.fail("10.0.0.1", "ann")
    assert not rate.may_be("10.0.0.1", "ann")
    assert rate.may_be("10.0.0.1", "bob") and rate.may_be("10.0.0.2", "ann")
    rate.take("10.0.0.1", WINDOW_S)
    assert rate.may_be("10.0.0.1", "ann")


def test_the_tokens_of_the_owner_with_most_give_way() -> None:
    tokens: Tokens[str] = Tokens(10, 10, life_s=100)
    own = tokens.add("own", "a", 0)
    for _ in range(50):
        tokens.add("flood", "b", 1)
    assert tokens.find(own, 2) == "own"


def test_a_token_is_found_until_it_ends() -> None:
    tokens: Tokens[str] = Tokens(10, 10, life_s=100)
    token = tokens.add("value", "a", 0)
    assert tokens.find(token, 99) == "value"
    assert tokens.find(token, 100) is None
    assert tokens.find("another", 0) is None


def test_what_is_not_used_ends_earlier() -> None:
    tokens: Tokens[str] = Tokens(10, 10, life_s=100, idle_s=10)
    used, unused = tokens.add("used", "a", 0), tokens.add("unused", "a", 0)
    assert [tokens.find(used, second) for second in (9, 18, 27)] == ["used"] * 3
    assert tokens.find(unused, 27) is None


def test_a_taken_token_is_worthless() -> None:
    tokens: Tokens[str] = Tokens(10, 10, life_s=100)
    token = tokens.add("value", "a", 0)
    assert (tokens.take(token, 1), tokens.take(token, 1), tokens.find(token, 1)) == ("value", None, None)


def test_the_oldest_of_an_owner_gives_way_before_that_of_others() -> None:
    tokens: Tokens[int] = Tokens(4, 2, life_s=100)
    made = [tokens.add(number, owner, 0) for number, owner in enumerate("abaac")]
    assert [tokens.find(token, 1) for token in made] == [None, 1, 2, 3, 4]
    tokens.add(9, "d", 1)
    assert len(tokens) == 4 and tokens.find(made[2], 1) is None and tokens.find(made[1], 1) == 1


class Seconds(float):
    """Counts how often it is compared with the end of a token."""

    compared = 0

    def __ge__(self, other: float, /) -> bool:
        type(self).compared += 1
        return float.__ge__(self, other)


def test_a_token_costs_as_much_beside_thousands_of_others() -> None:
    tokens: Tokens[int] = Tokens(3000, 3000, life_s=100)
    for number in range(3000):
        tokens.add(number, str(number % 1000), number / 1000)
    now_s = Seconds(3.0)
    made = [tokens.add(number, f"new {number}", now_s) for number in range(100)]
    assert [tokens.find(token, now_s) for token in made] == [*range(100)]
    assert Seconds.compared < 1000 and len(tokens) == 3000
    for ended_s, left in ((101.0, 2099), (102.5, 599), (103.0, 0)):
        tokens.find("", ended_s)
        assert len(tokens) == left


def test_the_largest_owner_is_found_after_others_have_shrunk() -> None:
    tokens: Tokens[str] = Tokens(6, 6, life_s=100)
    of_a = [tokens.add("a", "a", 0) for _ in range(4)]
    of_b = [tokens.add("b", "b", 0) for _ in range(2)]
    for token in of_a[:3]:
        tokens.take(token, 1)
    more = [tokens.add("c", "c", 1) for _ in range(3)]
    tokens.add("d", "d", 1)
    assert [tokens.find(token, 1) for token in (of_a[3], *of_b, *more)] == ["a", "b", "b", None, "c", "c"]


def test_tokens_are_not_guessed() -> None:
    tokens: Tokens[None] = Tokens(100, 100, life_s=100)
    made = {tokens.add(None, "a", 0) for _ in range(100)}
    assert len(made) == 100 and all(len(token) == 43 for token in made)
