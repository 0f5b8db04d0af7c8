"""Requests with which browsers log in."""

from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import trio
from starlette.requests import Request

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


async def _body() -> dict[str, Any]:
    return {"type": "http.request", "body": b"{}", "more_body": False}


async def test_browsers_that_wait_for_the_provider_take_no_thread_that_checks_tokens() -> None:
    provider = SlowProvider()
    service: Any = SimpleNamespace(metrics=SimpleNamespace(declare=lambda _: None), audit=None)
    known = service, Logins(trio.current_time), cast(Any, None), cast(Any, provider)
    entrance = Entrance(*known, True, 7071)
    scope = {"type": "http", "headers": [(b"host", b"storage-1")], "client": ("10.0.0.1", 1)}
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            for _ in range(ASKING_MAX):
                nursery.start_soon(entrance.to_provider, Request(scope, _body))
            try:
                while not provider.asked:
                    await trio.sleep(0.01)
                assert provider.limiter.borrowed_tokens == 0
            finally:
                provider.answers.set()
    assert provider.asked == ["https://storage-1/"] * ASKING_MAX
