"""Answers of an identity provider: what is too much, too slow, or leads elsewhere."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dieselfs.errors import AccessDenied, InvalidInput, Unavailable
from dieselfs.oidc import grants, provider
from dieselfs.oidc.grants import INTERVAL_S, Application, Code
from dieselfs.oidc.provider import ANSWER_BYTES_MAX, discover, request
from tests.support.certificates import make_certificate
from tests.support.http_files import web_file


def test_an_answer_has_limits_and_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The end of a connection is seen late on a busy machine: none is used again.
    monkeypatch.setattr("urllib3.connectionpool.is_connection_dropped", lambda _: False)
    pair = make_certificate(tmp_path)
    authority = str(pair[0])
    with web_file(b"{}", "keys", pair) as file:
        assert request(file.url, authority) == (200, {})
        with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
            request(file.url, None)
        with pytest.raises(InvalidInput, match="https://"):
            request(file.url.replace("https", "http"), authority)
        for content in (b" " * (ANSWER_BYTES_MAX + 1), b"[" * 100_000, b"[]", b"\xff"):
            file.content = content
            with pytest.raises(Unavailable, match=r"bytes|JSON"):
                request(file.url, authority)
        file.content, file.redirects = b"{}", {"/data/keys": "https://169.254.169.254/latest"}
        with pytest.raises(Unavailable, match="JSON"):  # the redirect itself has none
            request(file.url, authority)
    for url in ("file:///etc/passwd", "https://[", ""):
        with pytest.raises(InvalidInput):
            request(url, authority)
    with pytest.raises(InvalidInput, match="none"):
        request("https://127.0.0.1:1", str(tmp_path / "none"))


def test_the_provider_is_the_one_that_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"issuer": "https://other.example.org"}
    monkeypatch.setattr(provider, "request", lambda url, authority: (200, found))
    with pytest.raises(InvalidInput, match=r"calls itself 'https://other\.example\.org'"):
        discover("https://id.example.org", None)


ABOUT = {"issuer": "https://id", "token_endpoint": "token", "device_authorization_endpoint": "device"}


def asking(
    monkeypatch: pytest.MonkeyPatch, *answers: tuple[int, dict[str, object]]
) -> Callable[[], list[float]]:
    """Let a person log in at a provider with these answers to questions; pauses, in seconds."""
    begun = {
        "user_code": "AB-CD",
        "verification_uri": "https://id/enter",
        "device_code": "x",
        "expires_in": 60,
    }
    left, pauses, now_s = [(200, begun), *answers], list[float](), [0.0]
    monkeypatch.setattr(grants, "discover", lambda *_: ABOUT)
    monkeypatch.setattr(grants, "request", lambda *_: left.pop(0))

    def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        now_s[0] += pause_s

    def log_in() -> list[float]:
        shown: list[Code] = []
        tokens = Application("https://id", "dieselfs").by_code(shown.append, sleep, lambda: now_s[0])
        assert shown == [Code("AB-CD", "https://id/enter", "")]
        assert (tokens.token, tokens.refresh) == ("signed", "next")
        return pauses

    return log_in


PENDING: tuple[int, dict[str, object]] = (400, {"error": "authorization_pending"})
DONE: tuple[int, dict[str, object]] = (
    200,
    {"id_token": "signed", "access_token": "x", "refresh_token": "next"},
)


def test_a_provider_that_is_busy_is_asked_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    log_in = asking(monkeypatch, PENDING, (400, {"error": "slow_down"}), (503, {}), DONE)
    assert log_in() == [INTERVAL_S, INTERVAL_S, 2 * INTERVAL_S, 3 * INTERVAL_S]


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([PENDING] * 12, "not entered in time"),
        ([(400, {"error": "access_denied", "error_description": "\x1b[2Jno"})], "'access_denied'"),
        ([(400, {"error": "expired_token"})], "expired_token"),
    ],
)
def test_a_code_that_is_not_accepted(
    monkeypatch: pytest.MonkeyPatch, answers: list[tuple[int, dict[str, object]]], reason: str
) -> None:
    with pytest.raises(AccessDenied, match=reason):
        asking(monkeypatch, *answers)()
