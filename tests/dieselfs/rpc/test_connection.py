"""A server that lies about lengths and counts makes a client neither take memory nor wait; one that needs no key is
believed only if its process may be.
"""

import os
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import AF_UNIX, MSG_WAITALL, socket, socketpair
from threading import Thread
from typing import Any

import pytest

from dieselfs.errors import AccessDenied, DieselfsError, ProtocolError, Unavailable
from dieselfs.limits import GIB, MIB, SNAPSHOT_BYTES_MAX
from dieselfs.net.address import UnixAddress
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.connection import GROWTH_BYTES, Connection
from dieselfs.rpc.members import MEMBERSHIP_LIST_BYTES_MAX
from dieselfs.rpc.messages import (
    FRAME_HEADER_BYTES,
    KEEP_ALIVE,
    decode_call,
    encode_progress,
    encode_reply,
    frame,
    frame_length,
    thrift,
)
from dieselfs.rpc.records import CopyProgress, CopyRequest
from dieselfs.settings import Settings

NOBODY = 65534
TIMEOUT_S = 30.0
NAMED: dict[str, dict[str, object]] = {
    "get_snapshot": {"dataset": "d", "generation": 0, "known_digest": b"", "tag": "", "bases": b""},
    "join_job": {
        "dataset": "d",
        "job": "j",
        "fingerprint": b"",
        "generation": 1,
        "digest": b"",
        "member": b"",
        "known_version": 0,
    },
    "get_ranges": {"dataset": "d", "chunk_id": b"", "ranges": b""},
    "list_datasets": {},
    "status": {},
}


def _receive_call(sock: socket) -> tuple[str, int]:
    header = sock.recv(FRAME_HEADER_BYTES, MSG_WAITALL)
    if len(header) < FRAME_HEADER_BYTES:
        raise OSError
    method, sequence, _ = decode_call(sock.recv(frame_length(header, MIB), MSG_WAITALL))
    return method, sequence


def _serve(sock: socket, replies: list[Callable[[str, int], bytes]]) -> None:
    with sock:
        _, sequence = _receive_call(sock)
        challenge = thrift.Challenge(server_nonce=bytes(32), is_trusted=True)
        sock.sendall(frame(encode_reply("hello", sequence, challenge)))
        for reply in replies:
            sock.sendall(reply(*_receive_call(sock)))


@contextmanager
def liar(*replies: Callable[[str, int], bytes]) -> Iterator[Connection]:
    """A connection to a server that sends these bytes, one for each call, and closes."""
    ours, its = socketpair()
    server = Thread(target=_serve, args=(its, list(replies)))
    server.start()
    try:
        connection = Connection(ours, UnixAddress("/run/liar"), None, TIMEOUT_S)
        yield connection
        connection.close()
    finally:
        ours.close()
        server.join()


def _snapshot(length: int, sent: bytes = b"") -> Callable[[str, int], bytes]:
    info = thrift.SnapshotInfo(
        generation=1, updated_ns=1, digest=bytes(32), bulk_length=length, base_digest=b""
    )
    return lambda method, sequence: frame(encode_reply(method, sequence, info)) + sent


def _bulk(length: int) -> Callable[[str, int], bytes]:
    return lambda method, sequence: frame(encode_reply(method, sequence, thrift.Bulk(bulk_length=length)))


def _members(length: int) -> Callable[[str, int], bytes]:
    info = thrift.MembershipInfo(version=1, interval_ms=1000, bulk_length=length)
    return lambda method, sequence: frame(encode_reply(method, sequence, info))


@pytest.mark.parametrize(
    ("method", "reply", "bulk_bytes_max"),
    [
        ("get_snapshot", _snapshot(SNAPSHOT_BYTES_MAX + 1), SNAPSHOT_BYTES_MAX),
        ("get_snapshot", _snapshot((1 << 63) - 1), SNAPSHOT_BYTES_MAX),
        ("get_snapshot", _snapshot(-1), SNAPSHOT_BYTES_MAX),
        ("join_job", _members(MEMBERSHIP_LIST_BYTES_MAX + 1), MEMBERSHIP_LIST_BYTES_MAX),
        ("get_ranges", _bulk(11), 10),
        ("get_ranges", _bulk(1), 0),
    ],
)
def test_more_bytes_than_a_method_can_need_are_refused(
    method: str, reply: Callable[[str, int], bytes], bulk_bytes_max: int
) -> None:
    with liar(reply) as connection:
        with pytest.raises(ProtocolError, match=r"announces .* bytes behind its reply"):
            connection.call(method, NAMED[method], bulk_bytes_max=bulk_bytes_max, timeout_s=TIMEOUT_S)
        assert not connection.is_open  # its bytes belong to no later call


def test_memory_is_taken_as_bytes_arrive() -> None:
    tracemalloc.start()
    try:
        with liar(_snapshot(32 * GIB, b"x" * 100)) as connection, pytest.raises(Unavailable):
            connection.call(
                "get_snapshot", NAMED["get_snapshot"], bulk_bytes_max=SNAPSHOT_BYTES_MAX, timeout_s=TIMEOUT_S
            )
        assert tracemalloc.get_traced_memory()[1] < 3 * GROWTH_BYTES
    finally:
        tracemalloc.stop()


def test_a_reply_that_is_longer_than_a_step_arrives_whole() -> None:
    content = os.urandom(MIB) * (GROWTH_BYTES // MIB + 1) + b"the end"
    with liar(_snapshot(len(content), content)) as connection:
        _, received = connection.call(
            "get_snapshot", NAMED["get_snapshot"], bulk_bytes_max=SNAPSHOT_BYTES_MAX, timeout_s=TIMEOUT_S
        )
    assert received is not None and bytes(received) == content


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("list_datasets", [thrift.DatasetInfo()] * (1 << 19)),
        (
            "status",
            thrift.StatusInfo(
                version="",
                started_s=0,
                store="",
                metadata="",
                metrics=dict.fromkeys(map(str, range(9000)), 1),
            ),
        ),
    ],
    ids=["list", "map"],
)
def test_a_reply_has_no_more_values_than_its_method_can_need(method: str, value: Any) -> None:
    """Each empty struct costs the sender one byte, and the receiver some hundred."""
    with (
        liar(lambda named, sequence: frame(encode_reply(named, sequence, value))) as connection,
        pytest.raises(ProtocolError, match="too many values"),
    ):
        connection.call(method, NAMED[method], timeout_s=TIMEOUT_S)


LISTENER = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("listening", flush=True)
accepted, _ = listener.accept()
sys.stdin.read()
"""


@contextmanager
def server_of(user: int, path: Path) -> Iterator[None]:
    """A process of this user listens at `path`, and says nothing."""
    command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", sys.executable, "-S", "-E"]
    with subprocess.Popen(
        [*command, "-c", LISTENER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield
        finally:
            process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="starts a process of another user")
@pytest.mark.parametrize(
    ("parent", "is_believed"),
    [("/tmp", False), ("/run", True)],
    ids=["where anybody may put a socket", "where root has put its folder"],
)
def test_root_believes_a_server_without_a_key_where_only_it_can_listen(
    parent: str, is_believed: bool
) -> None:
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        os.chown(folder, NOBODY, NOBODY)
        path = Path(folder) / "server.sock"
        with server_of(NOBODY, path), socket(AF_UNIX) as connected:
            connected.connect(str(path))
            if is_believed:  # it is asked, and does not answer
                with pytest.raises(DieselfsError, match="no answer in time"):
                    Connection(connected, UnixAddress(str(path)), None, 0.2)
            else:
                with pytest.raises(AccessDenied, match=f"belongs to user ID {NOBODY}, not to you"):
                    Connection(connected, UnixAddress(str(path)), None, TIMEOUT_S)


def test_progress_before_the_reply_reaches_the_caller() -> None:
    report = thrift.CopyReport(copied=1, copied_bytes=2, skipped=3, deleted=4, generation=5, paths=[b"\xff"])
    steps = [CopyProgress(0, 0, 9, 10), CopyProgress(8, 9, 9, 10)]
    signs = b"".join(frame(encode_progress(step)) + KEEP_ALIVE for step in steps)
    arguments = CopyRequest("a", b"p", "b", b"q")._asdict()
    seen: list[CopyProgress] = []
    with liar(lambda method, sequence: signs + frame(encode_reply(method, sequence, report))) as connection:
        reply, _ = connection.call("copy_entries", arguments, progressed=seen.append)
    assert (reply.copied, reply.paths, seen) == (1, [b"\xff"], steps)


def test_a_copy_takes_the_progress_that_nobody_has_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a rename of a large folder."""
    report = thrift.CopyReport(copied=1, copied_bytes=2, skipped=3, deleted=4, generation=5, paths=[])
    asked: dict[str, Any] = {}

    def answered(_method: str, **options: Any) -> tuple[Any, None]:
        asked.update(options)
        return report, None

    client = ServerClient(Settings(tmp_path / "home", tmp_path / "cache", f"unix:{tmp_path}/none"), start=0)
    monkeypatch.setattr(client, "_call", answered)
    assert client.copy_entries(CopyRequest("a", b"p", "b", b"q")).copied == 1
    asked["progressed"](CopyProgress(0, 0, 9, 10))
    client.close()
