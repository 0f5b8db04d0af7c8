"""Requests with which browsers log in."""

from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from starlette.requests import Request

from dieselfs.errors import Unavailable
from dieselfs.oidc.grants import Redirect
from dieselfs_server.web.entrance import ASKING_MAX, Entrance
from dieselfs_server.web.logins import Logins

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


def entrance_of(provider: SlowProvider) -> Entrance:
    service: Any = SimpleNamespace(metrics=SimpleNamespace(declare=lambda _: None), audit=None)
    known = service, Logins(trio.current_time), cast(Any, None), cast(Any, provider)
    return Entrance(*known, True, 7071)


SCOPE = {"type": "http", "headers": [(b"host", b"storage-1")], "client": ("10.0.0.1", 1)}


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
