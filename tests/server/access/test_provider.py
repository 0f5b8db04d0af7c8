"""Tokens of an identity provider at the server: which ones buy a key, and whose it is."""

import base64
import hmac
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey
from jwt.algorithms import RSAAlgorithm

from dieselfs.errors import AccessDenied, DieselfsError, InvalidInput, Unavailable
from dieselfs.limits import TOKEN_BYTES_MAX
from dieselfs.net.auth import Key
from dieselfs.oidc import grants
from dieselfs.oidc import provider as provider_requests
from dieselfs.oidc.provider import SKEW_S
from dieselfs_server.access.accounts import (
    LOGIN_TOKEN_LIFETIME_S_MAX,
    LOGINS_PER_USER_MAX,
    PAGE_KEY,
    PAGE_KEYS_PER_USER_MAX,
    Accounts,
    Caller,
    Person,
    Right,
    StoredKey,
    token_end_s,
    with_bar,
    with_grant,
    with_login,
    with_members,
)
from dieselfs_server.access.provider import (
    ASK_AGAIN_S,
    ASK_S,
    KEYS_FRESH_S,
    KEYS_KEPT_S,
    Discovery,
    Provider,
    ProviderLogins,
    SigningKeys,
)
from dieselfs_server.access.users import UserStore, decode_accounts, encode_accounts
from dieselfs_server.settings import ProviderSettings
from dieselfs_server.store.memory import MemoryStore
from tests.server.access.test_accounts import KEY, added, table

ISSUER = "https://id.example.org/realm"
SIGNING = ECKey.generate_key("P-256", {"kid": "one"})
RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
WEAK = rsa.generate_private_key(65537, 1024)
ENCRYPTING = ECKey.generate_key("P-256", {"kid": "enc", "use": "enc"})
WEAK_PUBLISHED = json.loads(RSAAlgorithm.to_jwk(WEAK.public_key())) | {"kid": "weak"}
PUBLISHED = [*(key.as_dict(private=False) for key in (SIGNING, RSA, ENCRYPTING)), WEAK_PUBLISHED]
SETTINGS = ProviderSettings(ISSUER, ["dieselfs"], groups={"/ml": "vision", "admins": "shared"})


def provider(settings: ProviderSettings = SETTINGS) -> Provider:
    return Provider(settings, SigningKeys(lambda: PUBLISHED))


def claims(**changed: Any) -> dict[str, Any]:
    now_s = int(time.time())
    usual = {"iss": ISSUER, "aud": "dieselfs", "sub": "7", "iat": now_s, "exp": now_s + 60}
    return {k: v for k, v in (usual | {"preferred_username": "ada"} | changed).items() if v is not None}


def signed(
    key: Any = SIGNING, alg: str = "ES256", header: Mapping[str, Any] | None = None, **changed: Any
) -> bytes:
    named = {"alg": alg, "kid": key.kid, **(header or {})}
    token: str = jwt.encode(named, claims(**changed), key, algorithms=[alg])
    return token.encode()


def test_a_token_names_a_user_and_the_groups_that_the_table_maps() -> None:
    person = provider().person(signed(groups=["/ml", "/unknown", "everyone", 7]))
    assert person == Person("oidc:ada", "7", frozenset({"vision"}))
    assert provider().person(signed(RSA, "RS256", aud=["other", "dieselfs"])).name == "oidc:ada"
    of_kubernetes = ProviderSettings(
        ISSUER, ["dieselfs"], "sub", groups={"system:serviceaccounts:lab": "vision"}
    )
    person = provider(of_kubernetes).person(signed(sub="system:serviceaccount:lab:train"))
    assert (person.name, person.groups) == ("oidc:train@lab", frozenset({"vision"}))
    late_s = int(time.time()) - SKEW_S / 2
    assert provider().person(signed(exp=late_s)).name == "oidc:ada"


def test_a_token_of_the_page_is_for_its_login_and_its_application() -> None:
    of_page = provider(replace(SETTINGS, client_id="page"))
    for azp in (None, "page"):
        assert of_page.person(signed(aud=["page", "x"], nonce="n", azp=azp), "n").name == "oidc:ada"
    for other in (
        signed(aud="page", nonce="m"),
        signed(aud="page"),
        signed(aud="page", nonce="n", azp="x"),
        signed(aud="dieselfs", nonce="n"),
    ):
        with pytest.raises(AccessDenied):
            of_page.person(other, "n")


def test_a_name_that_people_choose_is_no_service_account() -> None:
    of_people = ProviderSettings(ISSUER, ["dieselfs"], "preferred_username")
    with pytest.raises(AccessDenied):
        provider(of_people).person(signed(preferred_username="system:serviceaccount:corp.org:alice"))


def _coded(content: bytes) -> bytes:
    return base64.urlsafe_b64encode(content).rstrip(b"=")


def _unsigned(alg: str, key_id: str = "one") -> bytes:
    parts = ({"alg": alg, "kid": key_id}, claims())
    return b".".join(_coded(json.dumps(part).encode()) for part in parts)


def _with_short_key() -> bytes:
    message = _unsigned("RS256", "weak")
    return message + b"." + _coded(WEAK.sign(message, padding.PKCS1v15(), SHA256()))


def _with_public_key_as_secret() -> bytes:
    message = _unsigned("HS256")
    return message + b"." + _coded(hmac.digest(SIGNING.as_pem(private=False), message, "sha256"))


OTHER = ECKey.generate_key("P-256", {"kid": "one"})
OWN = OTHER.as_dict(private=False)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: _unsigned("none") + b".", "algorithm 'none'"),
        (lambda: _unsigned("ES256") + b".", "[Ss]ignature"),
        (_with_public_key_as_secret, "algorithm 'HS256'"),
        (lambda: signed(OTHER), "[Ss]ignature"),
        (lambda: signed(OTHER, header={"jwk": OWN, "jku": "https://evil.example.org/keys"}), "[Ss]ignature"),
        (lambda: signed(header={"kid": "../../etc/passwd"}), "has no key"),
        (lambda: signed(header={"kid": "rsa"}), "token: "),
        (lambda: signed(header={"kid": "enc"}), "for something else"),
        (_with_short_key, "2048|[Kk]ey"),
        (lambda: signed(iss="https://id.example.org/other"), "[Ii]ssuer"),
        (lambda: signed(aud="another"), "[Aa]udience"),
        (lambda: signed(aud=None), "aud"),
        (lambda: signed(exp=int(time.time() - SKEW_S - 5)), "expired"),
        (lambda: signed(exp=None), "exp"),
        (lambda: signed(exp=1e400), "token: "),
        (lambda: signed(nbf=int(time.time() + SKEW_S + 60)), "not yet valid"),
        (lambda: signed(preferred_username=None), "no preferred_username"),
        (lambda: signed(preferred_username="ada bert"), "is not allowed"),
        (lambda: signed(preferred_username="oidc:ada"), "is not allowed"),
        (lambda: signed(groups="/ml"), "is no list"),
        (lambda: signed(groups=["g"] * 1001), "is no list"),
        (lambda: b"a" * (TOKEN_BYTES_MAX + 1), "limit 16,384"),
        (lambda: b"\xff.\xff.\xff", "token: "),
        (lambda: b"e30." + b"W" * 9000 + b".", "token: "),
    ],
)
def test_what_is_no_token(make: Callable[[], bytes], reason: str) -> None:
    with pytest.raises(AccessDenied, match=reason):
        provider().person(make())


def test_an_address_counts_only_if_the_provider_has_verified_it() -> None:
    by_mail = provider(ProviderSettings(ISSUER, ["dieselfs"], "email"))
    assert by_mail.person(signed(email="a@b.org", email_verified=True)).name == "oidc:a@b.org"
    with pytest.raises(AccessDenied, match="not verified"):
        by_mail.person(signed(email="a@b.org"))


def test_keys_change_and_the_provider_may_be_away_for_a_while() -> None:
    now_s, asked, published = [0.0], [0], [PUBLISHED[:1]]

    def fetch() -> list[dict[str, Any]]:
        asked[0] += 1
        if not published[0]:
            raise Unavailable("away")
        return published[0]

    keys = SigningKeys(fetch, lambda: now_s[0])
    assert keys.find("one") == PUBLISHED[0]
    for _ in range(9):
        with pytest.raises(AccessDenied):
            keys.find("rsa")
    assert asked == [1], "unknown keys cost the provider one question in ASK_S"
    published[0], now_s[0] = PUBLISHED[1:2], ASK_S
    assert keys.find("rsa") == PUBLISHED[1]
    with pytest.raises(AccessDenied):
        keys.find("one")
    published[0] = []
    now_s[0] += KEYS_FRESH_S
    assert keys.find("rsa") == PUBLISHED[1] and asked == [3]
    now_s[0] += KEYS_KEPT_S
    with pytest.raises(Unavailable, match="nobody can log in: away"):
        keys.find("rsa")


def test_what_the_provider_says_about_itself_is_asked_for_again_after_a_failure() -> None:
    now_s, asked, fault = [0.0], [0], list[DieselfsError]()

    def ask() -> dict[str, Any]:
        asked[0] += 1
        return {"number": asked[0]}

    def act(about: dict[str, Any]) -> int:
        if fault:
            raise fault.pop()
        return int(about["number"])

    discovery = Discovery(ask, lambda: now_s[0])
    assert [discovery.use(act) for _ in range(9)] == [1] * 9
    now_s[0] = KEYS_FRESH_S
    assert discovery.use(act) == 2
    for made, kind in ((Unavailable("x"), Unavailable), (InvalidInput("oidc_ca x"), Unavailable)):
        now_s[0] += ASK_AGAIN_S
        fault.append(made)
        with pytest.raises(kind):
            discovery.use(act)
    assert discovery.use(act) == 3
    now_s[0] += ASK_AGAIN_S
    assert [discovery.use(act) for _ in range(9)] == [4] * 9


def test_logins_that_fail_ask_the_provider_about_itself_once_a_second() -> None:
    now_s, asked = [0.0], list[float]()

    def ask() -> dict[str, Any]:
        asked.append(now_s[0])
        if len(asked) > 3:
            raise Unavailable("away")
        return {"issuer": ISSUER}

    def fail(about: dict[str, Any]) -> None:
        assert about == {"issuer": ISSUER}
        raise Unavailable("status 502")

    discovery = Discovery(ask, lambda: now_s[0])
    for number in range(40):
        now_s[0] = number * ASK_AGAIN_S / 8
        with pytest.raises(Unavailable):
            discovery.use(fail)
    assert asked == [number * ASK_AGAIN_S for number in range(5)]


def test_a_login_that_is_refused_is_no_reason_to_ask_the_provider_about_itself() -> None:
    now_s, asked = [0.0], list[float]()

    def ask() -> dict[str, Any]:
        asked.append(now_s[0])
        return {"issuer": ISSUER}

    def refuse(about: dict[str, Any]) -> None:
        raise AccessDenied("invalid_grant")

    discovery = Discovery(ask, lambda: now_s[0])
    for number in range(9):
        now_s[0] = number * ASK_AGAIN_S
        with pytest.raises(AccessDenied, match="invalid_grant"):
            discovery.use(refuse)
    assert asked == [0.0]


def test_logins_before_the_provider_has_answered_ask_it_once_a_second() -> None:
    now_s, asked = [0.0], list[float]()

    def ask() -> dict[str, Any]:
        asked.append(now_s[0])
        if len(asked) < 3:
            raise InvalidInput(f"oidc_ca {len(asked)}")
        return {"issuer": ISSUER}

    discovery = Discovery(ask, lambda: now_s[0])
    for number in range(16):
        now_s[0] = number * ASK_AGAIN_S / 8
        with pytest.raises(Unavailable, match=f"oidc_ca {number // 8 + 1}"):
            discovery.use(len)
    now_s[0] = 2 * ASK_AGAIN_S
    assert [discovery.use(len) for _ in range(9)] == [1] * 9
    assert asked == [0.0, ASK_AGAIN_S, 2 * ASK_AGAIN_S]


def test_a_login_of_the_page_asks_the_provider_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, signing, about = list[str](), SIGNING, {"issuer": ISSUER}
    about |= {name: f"{ISSUER}/{name}" for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")}
    nonce = ""

    def answer(url: str, *_: object) -> tuple[int, dict[str, Any]]:
        asked.append(url.rpartition("/")[2])
        token = signed(signing, nonce=nonce).decode()
        keys = [signing.as_dict(private=False)]
        by_name: dict[str, dict[str, Any]] = {"openid-configuration": about, "jwks_uri": {"keys": keys}}
        return 200, by_name.get(asked[-1], {"id_token": token})

    for module in (provider_requests, grants):
        monkeypatch.setattr(module, "request", answer)
    logins = ProviderLogins(SETTINGS, UserStore(MemoryStore()))

    def log_in() -> list[str]:
        nonlocal nonce
        asked.clear()
        _, redirect = logins.begin("https://storage-1:7071/")
        nonce = redirect.nonce
        assert logins.finish(redirect, "code", 60.0).name == "oidc:ada"
        return asked

    assert log_in() == ["openid-configuration", "token_endpoint", "jwks_uri"]
    assert log_in() == ["token_endpoint"]
    signing = ECKey.generate_key("P-256", {"kid": "of a restarted provider"})
    assert log_in() == ["token_endpoint", "jwks_uri"]


def test_a_missing_file_of_authorities_is_for_the_log(tmp_path: Path) -> None:
    settings = replace(SETTINGS, authority=str(tmp_path / "none"))
    with pytest.raises(Unavailable, match=r"oidc_ca .*none"):  # whose text the page does not show
        ProviderLogins(settings, UserStore(MemoryStore())).begin("https://storage-1:7071/")


def test_a_login_makes_a_user_with_a_key_that_expires() -> None:
    users = UserStore(MemoryStore(), lambda: 1000.0)
    users.change(
        lambda _: with_grant(with_members(table(), "vision", []), "group:vision", "scans", Right.WRITE)
    )
    logins = ProviderLogins(replace(SETTINGS, lifetime_s=600.0), users, lambda: 1000.0, provider())
    key = Key.generate("login")
    assert logins.log_in(signed(groups=["/ml"]), key.key_id, key.verifier()) == ("oidc:ada", 1600)
    assert users.verifier("oidc:ada", key.key_id) == key.verifier()
    accounts, caller = users.current(), Caller("oidc:ada", key.key_id)
    assert caller.right_on("scans", accounts, 1599) is Right.WRITE
    assert caller.right_on("scans", accounts, 1600) is Right.NONE
    assert caller.right_on("faces", accounts, 1599) is Right.NONE, "the local user ada is another one"
    assert caller.has_right(accounts, 1599)
    assert (
        b'"format": 4' in encode_accounts(accounts) and decode_accounts(encode_accounts(accounts)) == accounts
    )
    second = Key.generate("login")
    logins.log_in(signed(), second.key_id, second.verifier())
    assert caller.right_on("scans", users.current(), 1599) is Right.NONE, "the last login tells the groups"
    users.change(lambda accounts: with_bar(accounts, "oidc:ada", True))
    with pytest.raises(AccessDenied, match="oidc:ada is barred"):
        logins.log_in(signed(), "third", second.verifier())


def _login(accounts: Accounts, key_id: str, subject: str = "7") -> Accounts:
    return with_login(accounts, Person("oidc:ada", subject), key_id, StoredKey(KEY.verifier(), 0, 100))


def test_a_name_that_the_provider_gives_to_somebody_else_is_refused() -> None:
    with pytest.raises(AccessDenied, match="is another person"):
        _login(_login(Accounts(), "a"), "b", "8")


def test_one_user_has_a_bounded_number_of_logins() -> None:
    accounts = Accounts()
    for number in range(LOGINS_PER_USER_MAX):
        accounts = _login(accounts, f"k{number}")
    with pytest.raises(InvalidInput, match="64 keys"):
        _login(accounts, "more")


def test_sessions_of_the_page_keep_nobody_from_logging_in() -> None:
    accounts = _login(Accounts(), "machine")
    for number in range(LOGINS_PER_USER_MAX + 1):
        key = StoredKey(KEY.verifier(), number, 1000)
        accounts = with_login(accounts, Person("oidc:ada", "7"), f"{PAGE_KEY}{number}", key)
    left = [f"{PAGE_KEY}{number}" for number in range(number + 1 - PAGE_KEYS_PER_USER_MAX, number + 1)]
    assert [*_login(accounts, "other").users["oidc:ada"].keys] == ["machine", *left, "other"]


def test_nobody_makes_keys_or_groups_with_names_of_the_provider() -> None:
    for name in ("oidc:ada", "oidc:"):
        with pytest.raises(InvalidInput):
            added(_login(Accounts(), "a"), Key(name, "b", bytes(32)))
        with pytest.raises(InvalidInput):
            with_members(Accounts(), name, [])


def test_a_token_of_a_job_outlives_the_login_for_days() -> None:
    key, month_s = StoredKey(KEY.verifier(), 0, 100), 30 * 86_400
    assert token_end_s("oidc:ada", key, 50, month_s) == 50 + LOGIN_TOKEN_LIFETIME_S_MAX
    assert token_end_s("oidc:ada", key, 50, 60) == 60
    assert token_end_s("ada", key, 50, month_s) == 100
