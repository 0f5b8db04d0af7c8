"""A read that one server answers late goes to another one too; the first good answer wins."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest

from dieselfs.errors import DieselfsError, NotFound, Unavailable
from dieselfs.rpc import hedging
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.endpoints import OVERTAKEN_MAX
from dieselfs.rpc.messages import (
    FRAME_HEADER_BYTES,
    decode_call,
    encode_refusal,
    encode_reply,
    frame,
    frame_length,
    thrift,
)
from dieselfs.settings import Settings
from tests.support.descriptors import descriptor_count

RANGES = np.array([[0, 4]], np.uint32)
LONG_S = 60.0


class Server:
    """Answers reads with its name, at once or when it `is_fast`."""

    def __init__(self, folder: Path, name: str) -> None:
        self.address = f"unix:{folder}/{name}.sock"
        self.name = name
        self.is_fast = Event()
        self.is_fast.set()
        self.reads = 0
        self.refusal: DieselfsError | None = None
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None
        """What happens when a read arrives, and when it is answered."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{folder}/{name}.sock")
        self._listener.listen()
        self.threads = [Thread(target=self._accept)]
        self.threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.threads.append(Thread(target=self._serve, args=(client,)))
                self.threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            while header := client.recv(FRAME_HEADER_BYTES, socket.MSG_WAITALL):
                message = client.recv(frame_length(header, 1 << 20), socket.MSG_WAITALL)
                method, sequence, _ = decode_call(message)
                if method == "hello":
                    challenge = thrift.Challenge(server_nonce=bytes(32), is_trusted=True)
                    client.sendall(frame(encode_reply(method, sequence, challenge)))
                    continue
                self.reads += 1
                self.before()
                self.is_fast.wait(LONG_S)
                self._answer(client, method, sequence)
                self.after()

    def _answer(self, client: socket.socket, method: str, sequence: int) -> None:
        if self.refusal is not None:
            client.sendall(frame(encode_refusal(method, sequence, self.refusal)))
        else:
            content = self.name.encode()
            client.sendall(
                frame(encode_reply(method, sequence, thrift.Bulk(bulk_length=len(content)))) + content
            )

    def close(self) -> None:
        self.is_fast.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self.threads:
            thread.join(LONG_S)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    with ExitStack() as stack:
        one, two = (stack.enter_context(closing(Server(tmp_path, name))) for name in ("one.", "two."))
        yield one, two


@pytest.fixture
def client(tmp_path: Path, servers: tuple[Server, Server]) -> Iterator[ServerClient]:
    """It begins with the first server."""
    with closing(client_of(tmp_path, *servers)) as client:
        yield client


def client_of(folder: Path, *servers: Server) -> ServerClient:
    listed = ",".join(server.address for server in servers)
    return ServerClient(Settings(folder / "home", folder / "cache", listed), start=0)


def read(client: ServerClient) -> str:
    return client.ranges("d", bytes(16), RANGES).decode()


def hedges(client: ServerClient) -> tuple[int, int]:
    return client.hedges_sent(), client.hedges_won()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second request is sent after a moment."""
    monkeypatch.setattr(hedging, "HEDGE_CEILING_S", 0.05)


def test_the_answer_of_the_second_server_is_taken_if_it_comes_first(
    servers: tuple[Server, Server], client: ServerClient, soon: None
) -> None:
    slow, _ = servers
    slow.is_fast.clear()
    assert read(client) == "two." and hedges(client) == (1, 1)
    assert client.failures() == 0 and client.trouble() == ""


def test_the_answer_of_the_first_server_is_taken_if_it_comes_first(
    servers: tuple[Server, Server], client: ServerClient, soon: None
) -> None:
    one, two = servers
    one.is_fast.clear()
    two.is_fast.clear()
    two.before = one.is_fast.set
    assert read(client) == "one." and hedges(client) == (1, 0)
    two.is_fast.set()
    assert read(client) == "one." and two.reads == 1  # the same connection, which has no reply left


def test_a_server_that_answers_at_once_is_the_only_one_asked(
    servers: tuple[Server, Server], client: ServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hedging, "HEDGE_CEILING_S", LONG_S)
    assert {read(client) for _ in range(5)} == {"one."}
    assert hedges(client) == (0, 0) and servers[1].reads == 0


def test_a_first_answer_that_is_no_good_does_not_win(
    servers: tuple[Server, Server], client: ServerClient, soon: None
) -> None:
    one, two = servers
    one.is_fast.clear()
    two.refusal = Unavailable("the store is away")
    two.after = one.is_fast.set
    assert read(client) == "one." and one.reads == 1


def test_an_error_that_all_servers_would_give_is_final(
    servers: tuple[Server, Server], client: ServerClient, soon: None
) -> None:
    one, two = servers
    one.is_fast.clear()
    two.refusal = NotFound("no such chunk")
    before = descriptor_count()
    with pytest.raises(NotFound):
        read(client)
    one.is_fast.set()
    assert descriptor_count() <= before + 4  # both ends of a connection to each, and none that is forgotten


def test_a_server_that_is_overtaken_again_and_again_is_avoided(
    servers: tuple[Server, Server], client: ServerClient, soon: None
) -> None:
    slow, _ = servers
    read(client)  # so that there is a connection to each
    slow.is_fast.clear()
    assert [read(client) for _ in range(OVERTAKEN_MAX + 3)] == ["two."] * (OVERTAKEN_MAX + 3)
    assert slow.reads <= 1 + OVERTAKEN_MAX and hedges(client) == (slow.reads - 1, slow.reads - 1)


def test_a_refusal_is_not_asked_for_again_on_a_new_connection(
    tmp_path: Path, servers: tuple[Server, Server]
) -> None:
    """A store that hangs would take the time of another call."""
    one, _ = servers
    with closing(client_of(tmp_path, one)) as client:
        assert read(client) == "one."
        client.be_patient_for(0.0)
        one.refusal = Unavailable("the store hangs")
        with pytest.raises(Unavailable, match="the store hangs"):
            read(client)
        assert one.reads == 2


def test_the_only_server_is_asked_once(
    tmp_path: Path, servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hedging, "HEDGE_CEILING_S", 0.0)
    with closing(client_of(tmp_path, servers[0])) as client:
        assert read(client) == "one." and hedges(client) == (0, 0) and servers[0].reads == 1
