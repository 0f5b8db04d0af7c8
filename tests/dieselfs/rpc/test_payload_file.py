"""Payloads out of the server's own files: the same bytes and errors as if they were sent, and only for its own user."""

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from threading import Thread

import pytest

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.ids import ChunkIdSource, chunk_name
from dieselfs.chunk.segment import map_sealed
from dieselfs.dataset import Dataset
from dieselfs.errors import AccessDenied, Damaged, InvalidInput, NotFound
from dieselfs.limits import SHARED_PAYLOADS_MAX
from dieselfs.net.address import parse_address
from dieselfs.net.auth import read_key_file
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.connection import Connection, connected
from dieselfs.rpc.messages import encode_reply, frame, thrift
from dieselfs.rpc.payload_files import OpenedFiles, read_payload_file, shared_files
from dieselfs.rpc.records import PayloadFile
from dieselfs.sources.server import ServerSource
from tests.support.descriptors import descriptor_count
from tests.support.page_cache import cached_pages, undisturbed
from tests.support.server import RunningServer, receive_payload, running_server
from tests.support.strangers import pinned

PAYLOAD = os.urandom(300_000)
TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server")) as running:
        client = running.client()
        client.create_dataset("data")
        client.close()
        yield running


def store_chunk(server: RunningServer) -> bytes:
    """A new chunk with PAYLOAD; returns its ID."""
    client = server.client()
    dataset = client.dataset("data")
    builder = ChunkBuilder()
    builder.add_file(b"file", PAYLOAD, 0o644, 1)
    chunk_id = ChunkIdSource().next()
    first = client.reserve_versions("data", 1)
    client.put_chunk("data", chunk_id, builder.seal().encode(chunk_id, "data", dataset.dataset_id, first))
    client.close()
    return chunk_id


def chunk_file(server: RunningServer, chunk_id: bytes) -> Path:
    (path,) = (server.folder / "chunks").rglob(chunk_name(chunk_id))
    return path


def arguments(chunk_id: bytes) -> dict[str, object]:
    return {"dataset": "data", "chunk_id": chunk_id}


@pytest.fixture
def connection(server: RunningServer) -> Iterator[Connection]:
    opened = connect(server.unix)
    yield opened
    opened.close()


def connect(address: str, key_file: Path | None = None) -> Connection:
    server = parse_address(address)
    key = read_key_file(key_file) if key_file else None
    return Connection(connected(server, pinned(key) if key else None), server, key)


def open_chunks(server: RunningServer) -> list[str]:
    """Files of its store that the server has open."""
    names = []
    for entry in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            names.append(os.readlink(entry))
    return [name for name in names if name.startswith(f"{server.folder}/chunks/")]


def read(connection: Connection, chunk_id: bytes, length: int = len(PAYLOAD)) -> bytes | None:
    destination = bytearray(length)
    parts = partial(iter, [memoryview(destination)[: length // 3], memoryview(destination)[length // 3 :]])
    is_read = read_payload_file(connection, arguments(chunk_id), length, parts, TIMEOUT_S)
    return bytes(destination) if is_read else None


def test_a_payload_is_read_and_everything_is_closed(server: RunningServer, connection: Connection) -> None:
    chunk_id = store_chunk(server)
    assert read(connection, chunk_id) == PAYLOAD
    before = descriptor_count()
    for _ in range(20):
        assert read(connection, chunk_id) == PAYLOAD
    connection.call("list_datasets", {})  # answered after the last file was closed there
    assert descriptor_count() == before
    assert not open_chunks(server)
    assert connection.gives_files


def test_the_client_reads_the_file_unless_it_wants_the_bytes_sent(server: RunningServer) -> None:
    chunk_id = store_chunk(server)
    client = server.client()
    before = client.status().metrics["rpc.requests"]
    receive_payload(client, "data", chunk_id, memoryview(read_here := bytearray(len(PAYLOAD))))
    receive_payload(client, "data", chunk_id, memoryview(sent := bytearray(len(PAYLOAD))), is_sent=True)
    assert read_here == sent == PAYLOAD
    assert client.status().metrics["rpc.requests"] == before + 3  # one each, and this
    client.close()


def test_damage_is_asked_for_again_in_bytes(server: RunningServer) -> None:
    """The second time the server reads it, who may know another copy."""
    chunk_id = store_chunk(server)
    with Dataset(server.settings(), "data") as data:
        receive_payload(data.client, "data", chunk_id, memoryview(bytearray(len(PAYLOAD))))
        chunks = [data.snapshot.chunk_id(chunk) for chunk in range(data.snapshot.chunk_count)]
        with open(chunk_file(server, chunk_id), "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(bytes([PAYLOAD[-1] ^ 1]))
        before = data.client.status().metrics["rpc.requests"]
        with pytest.raises(Damaged, match="digest"):
            ServerSource(data.client, data.snapshot).fetch_chunk(chunks.index(chunk_id))
        assert data.client.status().metrics["rpc.requests"] == before + 3
    chunk_file(server, chunk_id).unlink()


def test_what_was_opened_stays_readable_when_the_chunk_goes(
    server: RunningServer, connection: Connection
) -> None:
    chunk_id = store_chunk(server)
    reply, (descriptor,) = connection.call_for_files("open_payload", arguments(chunk_id), TIMEOUT_S)
    try:
        chunk_file(server, chunk_id).unlink()
        assert os.pread(descriptor, reply.length, reply.start) == PAYLOAD
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)
    with pytest.raises(NotFound):
        read(connection, chunk_id)
    assert connection.is_open


def test_a_file_that_is_cut_off_is_what_it_would_be_if_it_were_sent(
    server: RunningServer, connection: Connection
) -> None:
    chunk_id = store_chunk(server)
    path = chunk_file(server, chunk_id)
    os.truncate(path, path.stat().st_size - 1)
    assert read(connection, chunk_id) is None
    client = server.client()
    with pytest.raises(Damaged):
        receive_payload(client, "data", chunk_id, memoryview(bytearray(len(PAYLOAD))))
    os.truncate(path, 10)
    with pytest.raises(Damaged):
        receive_payload(client, "data", chunk_id, memoryview(bytearray(len(PAYLOAD))))
    client.close()


def test_parts_of_a_file_that_is_opened_once(server: RunningServer) -> None:
    chunk_id = store_chunk(server)
    with closing(server.client()) as client:
        assert bytes(client.part("data", chunk_id, 3, 5) or b"") == PAYLOAD[3:8]
        requests = client.status().metrics["rpc.requests"]
        assert bytes(client.part("data", chunk_id, 0, len(PAYLOAD)) or b"") == PAYLOAD
        assert client.status().metrics["rpc.requests"] == requests + 1, "that of the status"
        assert client.part("data", chunk_id, 1, len(PAYLOAD)) is None, "it ends before"
    with closing(server.client(server.user("part", data="read"))) as client:
        assert client.part("data", chunk_id, 3, 5) is None


def test_a_payload_of_another_length_is_not_read(server: RunningServer, connection: Connection) -> None:
    chunk_id = store_chunk(server)
    assert read(connection, chunk_id, len(PAYLOAD) - 1) is None
    client = server.client()
    with pytest.raises(Damaged):
        receive_payload(client, "data", chunk_id, memoryview(bytearray(len(PAYLOAD) + 1)))
    client.close()


def test_nobody_else_gets_a_file(server: RunningServer) -> None:
    chunk_id = store_chunk(server)
    key_file = server.user("reader", data="read")
    for address in (server.tcp, server.unix):  # over the Unix socket too: with a key, one is that key's user
        connection = connect(address, key_file)
        assert not connection.gives_files
        before = descriptor_count()
        with pytest.raises(AccessDenied, match="get_payload"):
            connection.call_for_files("open_payload", arguments(chunk_id), TIMEOUT_S)
        assert descriptor_count() == before
        _, sent = connection.call("get_payload", arguments(chunk_id), bulk_bytes_max=len(PAYLOAD))
        assert sent is not None and bytes(sent) == PAYLOAD
        connection.close()
    client = server.client(key_file)
    receive_payload(client, "data", chunk_id, memoryview(received := bytearray(len(PAYLOAD))))
    assert received == PAYLOAD
    client.close()


def test_nobody_else_gets_shared_memory(server: RunningServer) -> None:
    chunk_id = store_chunk(server)
    wanted = {"dataset": "data", "chunk_ids": chunk_id, "wanted_bytes": 1}
    with closing(connect(server.unix, server.user("sharer", data="read"))) as connection:
        assert not connection.is_of_own_user and shared_files(connection, wanted, TIMEOUT_S) == []
        with pytest.raises(AccessDenied, match="get_payload"):
            connection.call("share_payloads", wanted)
    with closing(connect(server.unix)) as connection:
        before = descriptor_count()
        for _ in range(3):
            (file,) = shared_files(connection, wanted, TIMEOUT_S)
            assert (file.place, file.length, file.is_kept) == (0, len(PAYLOAD), True)
            assert map_sealed(file.descriptor, file.length)[0 : file.length] == PAYLOAD
            assert not os.get_inheritable(file.descriptor)
            os.close(file.descriptor)
        assert descriptor_count() == before
        ids = [chunk_id, store_chunk(server), chunk_id]
        files = shared_files(connection, wanted | {"chunk_ids": b"".join(ids)}, TIMEOUT_S)
        assert [file.place for file in files] == [0, 2], "the one that is not in memory is not read ahead"
        for file in files:
            os.close(file.descriptor)


@pytest.mark.parametrize("chunk_ids", [b"", bytes(15), bytes(16 * (SHARED_PAYLOADS_MAX + 1))])
def test_a_request_for_too_many_chunks_is_refused(connection: Connection, chunk_ids: bytes) -> None:
    with pytest.raises(InvalidInput, match="chunks"):
        connection.call("share_payloads", {"dataset": "data", "chunk_ids": chunk_ids, "wanted_bytes": 1})
    with pytest.raises(InvalidInput, match="chunks"):
        connection.call("open_payloads", {"dataset": "data", "chunk_ids": chunk_ids})
    assert connection.is_open


def open_ahead(client: ServerClient, chunk_id: bytes) -> None:
    """Read a chunk, and have its file opened for a second read."""
    client.dataset("data")  # a connection that is idle
    room = memoryview(bytearray(len(PAYLOAD)))
    client.payload_in_parts(
        "data", chunk_id, len(PAYLOAD), lambda: iter((room,)), is_sent=True, ahead=[chunk_id]
    )


def test_files_that_are_opened_ahead_are_read_without_another_call(server: RunningServer) -> None:
    ids = [store_chunk(server) for _ in range(3)]
    client = server.client()
    calls = client.status().metrics["rpc.requests"]
    descriptors = descriptor_count()
    first = memoryview(received := bytearray(len(PAYLOAD)))
    client.payload_in_parts(
        "data", ids[0], len(PAYLOAD), lambda: iter((first,)), ahead=[*ids, bytes(16), ids[0]]
    )
    assert received == PAYLOAD
    assert descriptor_count() == descriptors + 2, "those before the chunk that is missing"
    for chunk_id in ids[1:]:
        receive_payload(client, "data", chunk_id, memoryview(received := bytearray(len(PAYLOAD))))
        assert received == PAYLOAD
    assert descriptor_count() == descriptors
    assert client.status().metrics["rpc.requests"] == calls + 2  # one for all, and this one
    assert not open_chunks(server)
    client.close()


@undisturbed
def test_files_leave_the_page_cache_where_they_are_of_no_more_use(server: RunningServer) -> None:
    ids = [store_chunk(server) for _ in range(2)]
    client = server.client()
    for chunk_id in ids:
        with open(chunk_file(server, chunk_id), "rb") as file:
            os.fsync(file.fileno())
    for client.drops_pages in (False, True):
        open_ahead(client, ids[1])
        for chunk_id in ids:
            receive_payload(client, "data", chunk_id, memoryview(received := bytearray(len(PAYLOAD))))
            assert received == PAYLOAD
            pages = cached_pages(chunk_file(server, chunk_id))
            assert not any(pages) if client.drops_pages else all(pages)
    client.close()


def test_a_file_that_was_opened_ahead_and_cut_off_is_asked_for_again(server: RunningServer) -> None:
    chunk_id = store_chunk(server)
    client = server.client()
    open_ahead(client, chunk_id)
    path = chunk_file(server, chunk_id)
    content = path.read_bytes()
    os.truncate(path, len(content) - 1)
    path.unlink()
    path.write_bytes(content)
    receive_payload(client, "data", chunk_id, memoryview(received := bytearray(len(PAYLOAD))))
    assert received == PAYLOAD
    client.close()


def test_files_beyond_the_limit_are_closed(server: RunningServer) -> None:
    before = descriptor_count()
    opened = OpenedFiles(files_max=2)
    for key in (1, 2, 2, 3):
        opened.put(key, PayloadFile(os.open("/dev/null", os.O_RDONLY), 0, 0))
    assert descriptor_count() == before + 2 and opened.take(1) is None
    opened.close()
    opened.put(4, PayloadFile(os.open("/dev/null", os.O_RDONLY), 0, 0))
    assert descriptor_count() == before


def test_as_many_files_stay_open_as_the_limit_of_descriptors_allows() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
        assert OpenedFiles().files_max == 128 and OpenedFiles(3).files_max == 3
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_nobody_else_gets_files_ahead(server: RunningServer) -> None:
    chunk_id, key_file = store_chunk(server), server.user("runner", data="read")
    for address in (server.tcp, server.unix):
        connection = connect(address, key_file)
        with closing(connection), pytest.raises(AccessDenied, match="get_payload"):
            connection.call("open_payloads", {"dataset": "data", "chunk_ids": chunk_id})
    before = descriptor_count()
    with closing(server.client(key_file)) as client:
        open_ahead(client, chunk_id)  # it does not ask
        receive_payload(client, "data", chunk_id, memoryview(received := bytearray(len(PAYLOAD))))
        assert received == PAYLOAD
    assert descriptor_count() == before


def test_what_was_opened_counts_as_sent(server: RunningServer) -> None:
    chunk_id = store_chunk(server)
    client = server.client()
    before = client.status().metrics["rpc.sent_bytes"]
    connection = connect(server.unix)
    read(connection, chunk_id)
    connection.close()
    counts = (
        client.status().metrics["rpc.sent_bytes"] for _ in range(10_000)
    )  # until it has seen the connection end
    assert next(count for count in counts if count != before) == before + len(PAYLOAD)
    client.close()


def test_a_server_without_files_is_asked_once_by_each_connection(tmp_path: Path) -> None:
    with running_server(tmp_path, ["--store", "memory:"]) as server:
        client = server.client()
        client.create_dataset("data")
        chunk_id = store_chunk(server)
        before = client.status().metrics["rpc.requests"]
        for _ in range(3):
            receive_payload(client, "data", chunk_id, memoryview(received := bytearray(len(PAYLOAD))))
            assert received == PAYLOAD
        assert client.status().metrics["rpc.requests"] == before + 5  # one to open, three payloads, this one
        client.close()


def answer_as_a_false_server(end: socket.socket, extra: int) -> None:
    """Trust the caller, and answer the next call with a pipe as the file, `extra` more descriptors with it."""
    for method, value in (
        ("hello", thrift.Challenge(server_nonce=bytes(32), is_trusted=True)),
        ("open_payload", thrift.PayloadFile(is_file=True, start=0, length=len(PAYLOAD))),
    ):
        end.recv(65536)
        reply = frame(encode_reply(method, 1 if method == "hello" else 2, value))
        if method == "hello":
            end.sendall(reply)
            continue
        reading, writing = os.pipe()
        socket.send_fds(end, [reply], [reading] * (1 + extra))
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("extra", [0, 3])
def test_what_is_no_file_is_closed_again(extra: int, tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    before = descriptor_count()
    with theirs:
        false_server = Thread(target=answer_as_a_false_server, args=(theirs, extra))
        false_server.start()
        address = parse_address(f"unix:{tmp_path}/none")
        with closing(Connection(ours, address, None, TIMEOUT_S)) as connection:
            assert read(connection, bytes(16)) is None
            false_server.join(TIMEOUT_S)
            assert descriptor_count() == before
