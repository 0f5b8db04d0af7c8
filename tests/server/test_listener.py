"""What strangers and broken clients can do to the server: nothing but lose their own connection."""

import os
import random
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.errors import AccessDenied, Damaged, NotFound, ProtocolError, Unavailable
from dieselfs.limits import CHUNK_OBJECT_BYTES_MAX, FRAME_BYTES_MAX, UNAUTHENTICATED_MAX
from dieselfs.net.address import parse_address
from dieselfs.net.auth import Key
from dieselfs.net.sockets import open_socket
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.connection import Connection, connected
from dieselfs.rpc.messages import PROTOCOL_VERSION, decode_reply, encode_call, encode_reply, frame, thrift
from dieselfs.telemetry.budget import ENTRIES_PER_SOURCE
from tests.support.dlcmd import wait_until
from tests.support.server import RunningServer, running_server, start_server
from tests.support.strangers import is_hung_up, pinned, raw_socket, tls_socket

HELLO = {"protocol_version": PROTOCOL_VERSION, "user": "", "key_id": "", "client_nonce": bytes(32)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Its own: strangers use up what a server writes into its log about those of this machine."""
    with running_server(tmp_path_factory.mktemp("server")) as running:
        yield running


def assert_healthy(server: RunningServer) -> None:
    client = server.client()
    assert client.status().started_s > 0
    client.close()


MESSAGES = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\xff" * 100,
    b"\x00\x00\x00\x00",
    frame(b"x" * 4096),
    frame(b"\x80\x01\x00\x01" + b"\x0f" * 200),
    frame(encode_call("status", 1, {})),
    frame(encode_call("list_datasets", 1, {})),
    frame(encode_call("put_chunk", 1, {"dataset": "d", "chunk_id": bytes(16), "bulk_length": 10})),
    (FRAME_BYTES_MAX).to_bytes(4, "big") + b"x" * 100_000,
    frame(encode_call("hello", 1, HELLO)) + frame(encode_call("status", 1, {})),
)


@pytest.mark.parametrize("connect", [raw_socket, tls_socket])
def test_before_the_handshake_nothing_is_answered(
    server: RunningServer, connect: Callable[[str], socket.socket]
) -> None:
    """To somebody who knows the address, outside of TLS and inside. Some messages seem to be cut off, and are waited
    for.
    """

    def is_hung_up_after(sent: bytes) -> bool:
        with connect(server.tcp) as stranger:
            with suppress(ConnectionError, ssl.SSLError):  # the server may close while we send
                stranger.sendall(sent)
            return is_hung_up(stranger)

    with ThreadPoolExecutor(len(MESSAGES)) as threads:
        assert all(threads.map(is_hung_up_after, MESSAGES))
    assert_healthy(server)


def test_noise_of_a_fixed_seed(server: RunningServer) -> None:
    source = random.Random(7)
    for _ in range(100):
        with tls_socket(server.tcp) as sock:
            message = bytearray(frame(encode_call("hello", 1, HELLO)))
            for _ in range(source.randrange(1, 6)):
                message[source.randrange(len(message))] = source.randrange(256)
            with suppress(ConnectionError, ssl.SSLError):
                sock.sendall(bytes(message))
    assert_healthy(server)


@pytest.mark.parametrize("version", [1, 99])
def test_another_protocol_version_is_told_so(server: RunningServer, version: int) -> None:
    with tls_socket(server.tcp) as stranger:
        stranger.sendall(frame(encode_call("hello", 1, {**HELLO, "protocol_version": version})))
        reply = stranger.recv(65536)
    with pytest.raises(ProtocolError, match="upgrade"):
        decode_reply("hello", 1, reply[4:])


def refused_logins(server: RunningServer) -> int:
    with closing(server.client()) as client:
        return client.status().metrics["rpc.refused_logins"]


def test_unknown_user_removed_key_and_wrong_key_sound_the_same(server: RunningServer) -> None:
    path = server.user("mallory", all_datasets="read")
    right = Key.parse(path.read_text(), "key")
    address = parse_address(server.tcp)
    before = refused_logins(server)
    answers = []
    for key in (
        replace(right, user="nobody", key_id="00000000"),
        replace(right, key_id="00000000"),
        replace(right, secret=bytes(32)),
    ):
        with pytest.raises(AccessDenied) as caught:
            Connection(connected(address, pinned(right)), address, key)
        answers.append(str(caught.value))
    assert len(set(answers)) == 1
    reasons = ("handshake failed: ", "wrong secret", "unknown, removed or expired")
    wait_until(lambda: all(reason in server.log() for reason in reasons))  # it logs after it has replied
    client = server.client(path)
    client.datasets()  # the right key passes
    client.close()
    assert refused_logins(server) == before + 3


def test_a_client_without_a_key_is_told_what_to_do(server: RunningServer) -> None:
    address = parse_address(server.tcp)
    with pytest.raises(AccessDenied, match="--key-file"):
        Connection(open_socket(address), address, None)


def test_a_false_server_is_found_out(server: RunningServer) -> None:
    """A server that does not know the key cannot prove that it does, whatever it says, without TLS too."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        address = parse_address(f"tcp://127.0.0.1:{listening.getsockname()[1]}")
        client_end = open_socket(address)
        false_end, _ = listening.accept()

        def pretend() -> None:
            with false_end:
                false_end.recv(65536)
                false_end.sendall(
                    frame(
                        encode_reply("hello", 1, thrift.Challenge(server_nonce=bytes(32), is_trusted=False))
                    )
                )
                false_end.recv(65536)
                false_end.sendall(frame(encode_reply("prove", 2, thrift.Welcome(proof=bytes(32)))))

        thread = Thread(target=pretend)
        thread.start()
        with pytest.raises(AccessDenied, match="not the real one"):
            Connection(client_end, address, Key("ada", "k", bytes(32)))
        thread.join()


def test_a_bad_chunk_is_refused_and_the_connection_lives_on(server: RunningServer) -> None:
    client = server.client()
    dataset = client.create_dataset("bad-chunks")
    builder = ChunkBuilder()
    builder.add_file(b"file", os.urandom(100_000), 0o644, 0)
    chunk_id = ChunkIdSource().next()
    head, payload = builder.seal().encode(chunk_id, dataset.name, dataset.dataset_id, 1)
    damaged = bytearray(payload)
    damaged[50_000] ^= 1
    bad: list[list[bytes]] = [[head, bytes(damaged)], [head[:-1], payload], [b"x" * 1000], [head]]
    for parts in bad:
        with pytest.raises(Damaged):
            client.put_chunk(dataset.name, chunk_id, parts)
    with pytest.raises(Damaged, match=r"offset 24: this is chunk \S+, not chunk"):
        client.put_chunk(dataset.name, bytes(16), [head, payload])
    other = client.create_dataset("other-dataset")
    with pytest.raises(Damaged, match="belongs to dataset 'bad-chunks'"):
        client.put_chunk(other.name, chunk_id, [head, payload])
    with pytest.raises(NotFound):
        client.put_chunk("no-such-dataset", chunk_id, [head, payload])
    assert client.put_chunk(dataset.name, chunk_id, [head, payload]) == 1
    assert client.put_chunk(dataset.name, chunk_id, [head, payload]) == 1  # the answer was lost: sent again
    assert client.dataset(dataset.name).files == 1
    client.close()


def test_a_chunk_cut_off_in_the_middle_leaves_nothing(server: RunningServer) -> None:
    client = server.client()
    dataset = client.create_dataset("cut-off")
    builder = ChunkBuilder()
    builder.add_file(b"file", os.urandom(1_000_000), 0o644, 0)
    chunk_id = ChunkIdSource().next()
    parts = builder.seal().encode(chunk_id, dataset.name, dataset.dataset_id, 1)
    whole = b"".join(parts)
    with open_socket(parse_address(server.unix)) as sock:
        sock.sendall(frame(encode_call("hello", 1, HELLO)))
        sock.recv(65536)
        call = {"dataset": dataset.name, "chunk_id": chunk_id, "bulk_length": len(whole)}
        sock.sendall(frame(encode_call("put_chunk", 2, call)) + whole[: len(whole) // 2])
    assert client.dataset(dataset.name).files == 0
    assert client.put_chunk(dataset.name, chunk_id, parts) == 1
    client.close()


@pytest.mark.parametrize("length", [0, -1, CHUNK_OBJECT_BYTES_MAX + 1, 1 << 62])
def test_a_false_bulk_length_ends_the_connection(server: RunningServer, length: int) -> None:
    with open_socket(parse_address(server.unix)) as sock:
        sock.settimeout(15)
        sock.sendall(frame(encode_call("hello", 1, HELLO)))
        sock.recv(65536)
        call = {"dataset": "d", "chunk_id": bytes(16), "bulk_length": length}
        sock.sendall(frame(encode_call("put_chunk", 2, call)))
        assert is_hung_up(sock)
    assert_healthy(server)


def test_strangers_cannot_keep_users_out(server: RunningServer) -> None:
    path = server.user("trudy", all_datasets="read")
    held = []

    def is_let_in() -> bool:
        with closing(server.client(path)) as client, suppress(Unavailable):  # all strangers came a moment ago
            client.datasets()
            return True
        return False

    with closing(server.client(path)) as client:
        client.datasets()
        try:
            for _ in range(UNAUTHENTICATED_MAX + 10):
                held.append(raw_socket(server.tcp))
            assert_healthy(server)  # on the Unix socket
            wait_until(is_let_in)
            client.datasets()  # on its connection
        finally:
            for sock in held:
                sock.close()


def test_strangers_cannot_fill_the_log(tmp_path: Path) -> None:
    with running_server(tmp_path / "server") as server:
        before = len(server.log())
        for _ in range(2 * ENTRIES_PER_SOURCE):
            with raw_socket(server.tcp) as sock:
                sock.sendall(b"\xff" * 100)
                assert is_hung_up(sock)
        lines = server.log()[before:].splitlines()
    assert len([line for line in lines if "connection ended" in line]) == ENTRIES_PER_SOURCE


def test_unix_sockets_are_private(server: RunningServer) -> None:
    path = server.unix.removeprefix("unix:")
    assert os.stat(path).st_mode & 0o077 == 0


def test_a_server_writes_no_core_file(server: RunningServer) -> None:
    limits = Path(f"/proc/{server.process.pid}/limits").read_text()
    [core] = [line for line in limits.splitlines() if line.startswith("Max core file size")]
    assert core.split()[4:6] == ["0", "0"], "it would have keys"


def test_a_server_does_not_take_over_a_living_servers_socket(server: RunningServer) -> None:
    with (
        pytest.raises(AssertionError, match="listening there already"),
        running_server(server.folder.parent / "second", ["--listen", server.unix]),
    ):
        pass
    assert_healthy(server)


def test_a_client_may_come_and_go_while_the_server_restarts(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    first = start_server(folder)
    client: ServerClient = first.client()
    client.create_dataset("data")
    first.kill()
    second = start_server(folder)
    try:
        assert [dataset.name for dataset in client.datasets()] == ["data"]
        client.close()
    finally:
        assert second.stop() == 0
