"""A stream of server-sent events, as an answer."""

from collections.abc import Awaitable, Callable

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

STREAM_S = 3600.0
"""Then the browser connects again."""


class EventStream(Response):
    """Sends what `next_event` returns, until that is None or the browser has left."""

    def __init__(
        self,
        next_event: Callable[[], Awaitable[bytes | None]],
        opened: Callable[[], object],
        closed: Callable[[], object],
    ) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self._next_event = next_event
        self._opened = opened
        self._closed = closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._opened()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_until_left, receive, nursery.cancel_scope)
                with trio.move_on_after(STREAM_S):
                    await self._send_events(send)
                nursery.cancel_scope.cancel()
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._closed()

    async def _send_events(self, send: Send) -> None:
        await send({"type": "http.response.body", "body": b"retry: 3000\n\n", "more_body": True})
        while (event := await self._next_event()) is not None:
            await send({"type": "http.response.body", "body": b"data: " + event + b"\n\n", "more_body": True})


async def _until_left(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
