"""Attacks of users with a key, and of those who can change stored bytes, on a real server."""

import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from xxhash import xxh3_64_digest, xxh3_128_digest

from dieselfs.dataset import Dataset
from dieselfs.errors import Damaged
from dieselfs.limits import CHUNK_OBJECT_BYTES_MAX, MIB
from dieselfs.net.address import parse_address
from dieselfs.net.sockets import open_socket
from dieselfs.rpc.messages import PROTOCOL_VERSION, encode_call, frame
from tests.support.server import RunningServer, running_server

HELLO = {"protocol_version": PROTOCOL_VERSION, "user": "", "key_id": "", "client_nonce": bytes(32)}
TIMEOUT_S = 30.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path / "server") as running:
        yield running


def resident_bytes(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) << 10


def test_announced_bytes_take_no_memory_before_they_come(server: RunningServer) -> None:
    """Twelve uploads of the largest size, of which only a call and one byte arrive."""
    upload = {"dataset": "data", "chunk_id": bytes(16), "bulk_length": CHUNK_OBJECT_BYTES_MAX}
    with closing(server.client()) as client, ExitStack() as stack:
        client.create_dataset("data")
        before = resident_bytes(server.process.pid)
        for _ in range(12):
            sock = stack.enter_context(open_socket(parse_address(server.unix)))
            sock.settimeout(TIMEOUT_S)
            sock.sendall(frame(encode_call("hello", 1, HELLO)))
            sock.recv(65536)
            sock.sendall(frame(encode_call("put_chunk", 2, upload)) + b"x")
        for _ in range(20):  # meanwhile it has taken the calls
            client.datasets()
        assert resident_bytes(server.process.pid) - before < 64 * MIB


def content_with_sum(number: int) -> bytes:
    """2,000 bytes of which some are `number`, whose xxh3 is the same for each number.

    The lower halves of two words are those of the secret of xxh3, which is public. So xxh3 multiplies their upper
    halves by 0, and adds them: any two numbers of the same sum will do.
    """
    secret = 0xBE4BA423396CFEB8, 0x1CAD21F72C81017C
    halves = number, (sum(word >> 32 for word in secret) - number) & 0xFFFFFFFF
    content = bytearray(2000)
    for stripe, (half, word) in enumerate(zip(halves, secret, strict=True)):
        struct.pack_into("<Q", content, 64 * stripe, half << 32 | word & 0xFFFFFFFF)
    return bytes(content)


def test_bytes_with_the_same_fast_checksum_are_not_believed(server: RunningServer) -> None:
    stored, forged = content_with_sum(1), content_with_sum(77)
    assert stored != forged
    assert xxh3_64_digest(stored) == xxh3_64_digest(forged)
    assert xxh3_128_digest(stored) == xxh3_128_digest(forged)
    with closing(Dataset(server.settings(), "data", must_exist=False)) as data:
        data.put("file", stored)
        data.flush()
        (chunk,) = (path for path in (server.folder / "chunks").glob("*/???/??/*") if path.is_file())
        whole = chunk.read_bytes()
        assert whole.count(stored) == 1
        chunk.chmod(0o600)
        chunk.write_bytes(whole.replace(stored, forged))
        assert data.client.fsck("data", is_deep=True, is_repair=False).problem_count > 0
    with closing(Dataset(server.settings(), "data")) as data, pytest.raises(Damaged):
        data.get("file")
