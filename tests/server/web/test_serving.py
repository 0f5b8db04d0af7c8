"""Connections of browsers: bounded in number and time, with TLS 1.3."""

import ssl
from contextlib import suppress

import pytest
import trio

from dieselfs.errors import Unavailable
from dieselfs.net.address import TcpAddress
from dieselfs.rpc.serving import slots
from dieselfs.telemetry.budget import ENTRIES_PER_SOURCE
from dieselfs_server.access.certificates import browser_tls
from dieselfs_server.web import serving as module
from dieselfs_server.web.guard import Receive, Scope, Send
from dieselfs_server.web.serving import CONNECTIONS_PER_ADDRESS_MAX, LOGGED_IN, UNAUTHENTICATED_MAX, serving
from tests.support.identity import IDENTITY

LOOPBACK = TcpAddress("127.0.0.1", 0)
REQUEST = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
TIMEOUT_S = 30.0


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


async def answer(stream: trio.abc.ReceiveStream) -> bytes:
    received = b""
    while not received.endswith(b"hello"):
        part = await stream.receive_some()
        if not part:
            break
        received += part
    return received


async def test_a_request_over_tls_1_3() -> None:
    tls = browser_tls(IDENTITY, ["storage-1"])
    with trio.fail_after(TIMEOUT_S):
        async with serving(lambda port: hello, LOOPBACK, lambda: tls) as port:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            stream = trio.SSLStream(
                await trio.open_tcp_stream("127.0.0.1", port), context, server_hostname="storage-1"
            )
            await stream.send_all(REQUEST)
            assert (await answer(stream)).startswith(b"HTTP/1.1 200")
            assert stream.version() == "TLSv1.3"
            await stream.aclose()


async def logged_in(scope: Scope, receive: Receive, send: Send) -> None:
    assert scope[LOGGED_IN]()
    await hello(scope, receive, send)


async def test_the_oldest_connection_that_is_not_logged_in_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "UNAUTHENTICATED_S_MIN", 0.0)
    with trio.fail_after(TIMEOUT_S):
        async with serving(lambda port: logged_in, LOOPBACK, None) as port:
            known = await trio.open_tcp_stream("127.0.0.1", port)
            await known.send_all(REQUEST)
            await answer(known)
            idle = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(UNAUTHENTICATED_MAX)]
            idle.append(await trio.open_tcp_stream("127.0.0.1", port))
            for stream in (idle[-1], known):
                await stream.send_all(REQUEST)
                assert (await answer(stream)).endswith(b"hello")
            with suppress(trio.BrokenResourceError):
                assert await idle[0].receive_some() == b""
            for stream in (*idle, known):
                await stream.aclose()


async def test_the_connections_of_an_address_that_are_logged_in_are_bounded() -> None:
    with trio.fail_after(TIMEOUT_S):
        async with serving(lambda port: logged_in, LOOPBACK, None) as port:
            streams = []
            for _ in range(CONNECTIONS_PER_ADDRESS_MAX):
                streams.append(await trio.open_tcp_stream("127.0.0.1", port))
                await streams[-1].send_all(REQUEST)
                await answer(streams[-1])
            more = await trio.open_tcp_stream("127.0.0.1", port)
            assert await more.receive_some() == b""
            for stream in (*streams, more):
                await stream.aclose()


async def test_a_silent_browser_and_one_that_takes_nothing_are_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.2)
    monkeypatch.setattr(module, "SEND_S", 0.2)
    ended = trio.Event()

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(64):
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
        ended.set()

    with trio.fail_after(TIMEOUT_S):
        async with serving(lambda port: large, LOOPBACK, None) as port:
            silent = await trio.open_tcp_stream("127.0.0.1", port)
            assert await silent.receive_some() == b""
            greedy = await trio.open_tcp_stream("127.0.0.1", port)
            await greedy.send_all(REQUEST)
            await ended.wait()  # although nobody has read
            await silent.aclose()
            await greedy.aclose()


@pytest.mark.parametrize(
    "switch",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\n"
        b"http2-settings: AAAA\r\n\r\n",
    ],
)
async def test_a_browser_that_wants_http_2_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, switch: bytes
) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.2)
    with trio.fail_after(TIMEOUT_S):
        async with (
            serving(lambda port: hello, LOOPBACK, None) as port,
            await trio.open_tcp_stream("127.0.0.1", port) as stream,
        ):
            await stream.send_all(switch)
            await answer(stream)  # which ends


async def test_refused_browsers_do_not_fill_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 0)
    with trio.fail_after(TIMEOUT_S):
        async with serving(lambda port: hello, LOOPBACK, None) as port:
            for _ in range(ENTRIES_PER_SOURCE + 5):
                async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                    assert await stream.receive_some() == b""
    assert caplog.text.count("browser refused") == ENTRIES_PER_SOURCE


async def test_an_address_in_use_is_one_line() -> None:
    async with serving(lambda port: hello, LOOPBACK, None) as port:
        with pytest.raises(Unavailable, match=r"cannot serve the page at tcp://127\.0\.0\.1"):
            async with serving(lambda other: hello, TcpAddress("127.0.0.1", port), None):
                pass
