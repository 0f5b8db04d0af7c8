"""Requests with which browsers log in."""

import json
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from starlette.requests import Request

from dieselfs.errors import AccessDenied, Unavailable
from dieselfs.oidc.grants import Redirect
from dieselfs_server.access.accounts import Caller
from dieselfs_server.web.entrance import ASKING_MAX, Entrance
from dieselfs_server.web.logins import TRIES_PER_ADDRESS, LoginRate, Logins

TIMEOUT_S = 30.0


class SlowProvider:
    def __init__(self) -> None:
        self.issuer = "https://id.example.org"
        self.limiter = trio.CapacityLimiter(1)
        self.asked: list[str] = []
        self.answers = Event()

    def begin(self, page: str) -> tuple[str, Redirect]:
        self.asked.append(page)
        self.answers.wait(TIMEOUT_S)
        return self.issuer, Redirect(page)


class LostProvider(SlowProvider):
    def begin(self, page: str) -> tuple[str, Redirect]:
        raise Unavailable("oidc_ca /etc/of-the-server: No such file or directory")


async def _body() -> dict[str, Any]:
    return {"type": "http.request", "body": b"{}", "more_body": False}


def entrance_of(provider: SlowProvider, logins: Logins | None = None) -> Entrance:
    metrics = SimpleNamespace(declare=lambda _: SimpleNamespace(value=0))
    service: Any = SimpleNamespace(metrics=metrics, audit=None)
    known = service, logins or Logins(trio.current_time), cast(Any, None), cast(Any, provider)
    return Entrance(*known, True, 7071)


SCOPE: dict[str, Any] = {"type": "http", "headers": [(b"host", b"storage-1")], "client": ("10.0.0.1", 1)}


async def test_browsers_that_wait_for_the_provider_take_no_thread_that_checks_tokens() -> None:
    provider = SlowProvider()
    entrance = entrance_of(provider)
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            for _ in range(ASKING_MAX):
                nursery.start_soon(entrance.to_provider, Request(SCOPE, _body))
            try:
                while not provider.asked:
                    await trio.sleep(0.01)
                assert provider.limiter.borrowed_tokens == 0
            finally:
                provider.answers.set()
    assert provider.asked == ["https://storage-1/"] * ASKING_MAX


async def test_why_the_provider_cannot_be_asked_is_for_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Unavailable) as shown:
        await entrance_of(LostProvider()).to_provider(Request(SCOPE, _body))
    assert "its log has the reason" in str(shown.value) and "/etc" not in str(shown.value)
    assert "oidc_ca /etc/of-the-server" in caplog.text


class RefusingProvider(SlowProvider):
    """It refuses all codes but one."""

    def finish(self, redirect: Redirect, code: str, life_s: float) -> Caller:
        self.asked.append(code)
        if code != "right":
            raise AccessDenied("invalid_grant")
        return Caller("oidc:ada", "page")


async def test_one_address_asks_the_provider_no_more_often_than_it_may_begin_logins() -> None:
    """Even if it has begun more of them before. Those that succeed do not count."""
    provider, logins = RefusingProvider(), Logins(trio.current_time)
    logins.redirect_rate, logins.return_rate = LoginRate(), LoginRate()
    provider.answers.set()
    entrance, browser = entrance_of(provider, logins), ""

    async def come_back(code: str) -> None:
        nonlocal browser
        redirect = Redirect("https://storage-1/")
        browser = logins.send_away("10.0.0.1", redirect, browser)
        body = json.dumps({"code": code, "state": redirect.state}).encode()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        cookie = b"cookie", f"__Host-dieselfs-away={browser}".encode()
        await entrance.from_provider(Request({**SCOPE, "headers": [*SCOPE["headers"], cookie]}, receive))

    for _ in range(2 * TRIES_PER_ADDRESS):
        await entrance.to_provider(Request(SCOPE, _body))
        await come_back("right")
    provider.asked.clear()
    for _ in range(TRIES_PER_ADDRESS):
        with pytest.raises(AccessDenied, match="invalid_grant"):
            await come_back("wrong")
    with pytest.raises(Unavailable, match="too many logins"):
        await come_back("wrong")
    assert provider.asked == ["wrong"] * TRIES_PER_ADDRESS
