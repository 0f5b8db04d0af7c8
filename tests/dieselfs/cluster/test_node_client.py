"""A reader and the daemon of its node: found, not found, gone, and wrong in every way that there is."""

import gc
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.chunk.segment import Segment
from dieselfs.cluster.job import Job
from dieselfs.cluster.member import Member
from dieselfs.cluster.node_client import (
    NodeClient,
    NodeConnection,
    NodeMembers,
    job_socket_path,
    socket_path,
)
from dieselfs.cluster.node_messages import (
    Absent,
    ChunkRequest,
    Hello,
    MembersReply,
    Message,
    Refusal,
    SegmentReply,
    Unknown,
    Welcome,
    encode,
)
from dieselfs.errors import AccessDenied, InvalidInput, NotFound, ProtocolError, Unavailable
from dieselfs.limits import NODE_AVOIDED_S
from dieselfs.net.address import TcpAddress
from dieselfs.rpc.members import encode_members
from tests.support.descriptors import descriptor_count, open_files
from tests.support.scripted_daemon import Answer, greeting, scripted_daemon

DIGEST = bytes(range(32))
CONTENT = b"payload of a chunk" * 1000
MEMBER = Member("node-0", 0, TcpAddress("127.0.0.1", 7070), 1 << 30, bytes(16))


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def path() -> Iterator[Path]:
    """Of a socket in a private folder, short enough to be bound as it is."""
    folder = Path(tempfile.mkdtemp(prefix="node-"))
    yield folder / "daemon.sock"
    shutil.rmtree(folder)


@pytest.fixture
def segment() -> Iterator[Segment]:
    segment = Segment.create(len(CONTENT))
    segment.view[:] = CONTENT
    segment.seal()
    yield segment
    segment.close()


def handing_out(segment: Segment, stated_bytes: int | None = None, copies: int = 1) -> Answer:
    length_bytes = len(segment) if stated_bytes is None else stated_bytes

    def answer(connection: socket.socket, number: int, request: Message | Unknown) -> None:
        descriptors = [segment.descriptor] * copies
        socket.send_fds(connection, [encode(number, SegmentReply(length_bytes))], descriptors)

    return greeting(answer)


def handing_members(encoded: bytes, stated: MembersReply) -> Answer:
    segment = Segment.create(len(encoded))
    segment.view[:] = encoded
    segment.seal()

    def answer(connection: socket.socket, number: int, request: Message | Unknown) -> None:
        socket.send_fds(connection, [encode(number, stated)], [segment.descriptor])

    return greeting(answer)


def saying(*packets: bytes) -> Answer:
    """These bytes, whatever is asked."""
    return lambda connection, number, request: [connection.send(packet) for packet in packets]


def replying(message: Message) -> Answer:
    return greeting(lambda connection, number, request: connection.send(encode(number, message)))


def segments() -> int:
    """Descriptors of segments that this process has."""
    gc.collect()
    links = (os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    return sum("memfd:dieselfs-chunk" in link for link in links)


# -- where -----------------------------------------------------------------------------------------------


def test_the_socket_follows_from_the_snapshot_and_the_job() -> None:
    folder = Path("/run")
    own = socket_path(folder, "imagenet", DIGEST)
    assert own == socket_path(folder, "imagenet", DIGEST)
    assert own.name.startswith("imagenet-") and own.suffix == ".sock"
    others = {socket_path(folder, "imagenet", bytes(32)), socket_path(folder, "imagenet", DIGEST, "job")}
    assert len(others | {own}) == 3
    assert len(socket_path(folder, "x" * 255, DIGEST, "y" * 200).name) < 100


def test_each_job_and_each_node_has_a_socket_of_its_own() -> None:
    folder = Path("/run")
    job = Job("train", 3, 8, "node-0")
    own = job_socket_path(folder, "imagenet", DIGEST, job, b"f" * 16)
    assert own == job_socket_path(folder, "imagenet", DIGEST, replace(job, rank=5), b"f" * 16)
    others = {
        socket_path(folder, "imagenet", DIGEST),
        job_socket_path(folder, "imagenet", bytes(32), job, b"f" * 16),
        job_socket_path(folder, "imagenet", DIGEST, job, b"g" * 16),
        job_socket_path(folder, "imagenet", DIGEST, replace(job, name="other"), b"f" * 16),
        job_socket_path(folder, "imagenet", DIGEST, replace(job, node="node-1"), b"f" * 16),
    }
    assert len(others | {own}) == 6


def test_a_socket_in_a_folder_that_others_can_enter_is_not_used(path: Path, segment: Segment) -> None:
    with scripted_daemon(path, handing_out(segment)) as daemon:
        path.parent.chmod(0o755)
        with pytest.raises(AccessDenied):
            NodeConnection(path, DIGEST)
        path.parent.chmod(0o700)
        assert daemon.conversations == 0


# -- a conversation --------------------------------------------------------------------------------------


def test_a_chunk_is_mapped_and_its_descriptor_closed(path: Path, segment: Segment) -> None:
    with scripted_daemon(path, handing_out(segment)):
        client = NodeClient(path, DIGEST)
        memory = client.memory(0, len(CONTENT), 1)
        assert memory is not None and memory[0 : len(memory)] == CONTENT
        before = descriptor_count()
        assert client.memory(1, len(CONTENT), 1) is not None
        assert descriptor_count() == before
        client.close()


def test_the_digest_and_the_chunk_are_what_was_asked_for(path: Path) -> None:
    heard: list[Message | Unknown] = []
    remembering = greeting(lambda connection, number, request: connection.send(encode(number, Absent())))

    def answer(connection: socket.socket, number: int, request: Message | Unknown) -> None:
        heard.append(request)
        remembering(connection, number, request)

    with scripted_daemon(path, answer):
        connection = NodeConnection(path, DIGEST)
        assert connection.memory(5, len(CONTENT), 10) is None
        assert connection.memory(6, len(CONTENT), 20) is None
        connection.close()
    assert heard == [Hello(digest=DIGEST), ChunkRequest(5, 10), ChunkRequest(6, 20)]


def test_a_refusal_is_raised_and_the_conversation_goes_on(path: Path) -> None:
    with scripted_daemon(path, replying(Refusal.because(NotFound("chunk 3 is lost")))):
        connection = NodeConnection(path, DIGEST)
        for _ in range(2):
            with pytest.raises(NotFound, match="chunk 3 is lost"):
                connection.memory(3, len(CONTENT), 1)
        assert connection.is_open
        connection.close()


def test_a_daemon_with_another_snapshot_is_one_clear_error(path: Path) -> None:
    with (
        scripted_daemon(path, saying(encode(1, Refusal.because(InvalidInput("another snapshot"))))),
        pytest.raises(InvalidInput, match="another snapshot"),
    ):
        NodeConnection(path, DIGEST)


@pytest.mark.parametrize(
    "packet",
    [b"x", bytes(3000), encode(9, Welcome()), encode(1, Absent()), bytes([0x90]) + bytes(7)],
    ids=["too short", "too long", "another request", "another answer", "unknown kind"],
)
def test_what_is_no_welcome_ends_it(path: Path, packet: bytes) -> None:
    before = open_files()
    with scripted_daemon(path, saying(packet)), pytest.raises(ProtocolError):
        NodeConnection(path, DIGEST)
    assert open_files() <= before


@pytest.mark.parametrize(
    "wrong",
    [
        "two descriptors",
        "no descriptor",
        "a welcome",
        "not sealed",
        "another length",
        "a lie about the length",
    ],
)
def test_an_answer_that_makes_no_sense_is_no_chunk_and_leaves_no_descriptor(
    path: Path, segment: Segment, wrong: str
) -> None:
    before = segments()
    half_made, shorter = Segment.create(len(CONTENT)), Segment.create(100)
    shorter.seal()
    answers = {
        "two descriptors": handing_out(segment, copies=2),
        "no descriptor": replying(SegmentReply(len(CONTENT))),
        "a welcome": replying(Welcome()),
        "not sealed": handing_out(half_made),
        "another length": handing_out(segment, stated_bytes=len(CONTENT) - 1),
        "a lie about the length": handing_out(shorter, stated_bytes=len(CONTENT)),
    }
    with scripted_daemon(path, answers[wrong]) as daemon:
        client = NodeClient(path, DIGEST)
        assert client.memory(0, len(CONTENT), 1) is None
        client.close()
        daemon.drop()
    half_made.close()
    shorter.close()
    assert segments() == before


@pytest.mark.parametrize(
    "wrong", ["no descriptor", "another version", "a chunk", "no members", "too long", "half a member"]
)
def test_members_that_make_no_sense_are_none_and_leave_no_descriptor(
    path: Path, segment: Segment, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = segments()
    encoded = encode_members([MEMBER.encode()])
    stated = MembersReply(7, len(encoded))
    answers = {
        "no descriptor": replying(stated),
        "another version": replying(MembersReply(6, 0)),
        "a chunk": handing_out(segment),
        "no members": handing_members(b"x" * 100, MembersReply(7, 100)),
        "too long": handing_members(bytes(len(CONTENT)), MembersReply(7, len(CONTENT))),
        "half a member": handing_members(encoded[:-1], MembersReply(7, len(encoded) - 1)),
    }
    monkeypatch.setattr("dieselfs.cluster.node_client.MEMBERSHIP_LIST_BYTES_MAX", 1000)
    with scripted_daemon(path, answers[wrong]) as daemon:
        client = NodeClient(path, DIGEST)
        assert client.members(5) is None
        daemon.drop()
        daemon.answer = handing_members(encoded, stated)
        late = NodeClient(path, DIGEST)
        assert late.members(5) == NodeMembers(7, (MEMBER,))
        for each in (client, late):
            each.close()
        daemon.answer = replying(Absent())
    del answers
    assert segments() == before


# -- no daemon is no error -------------------------------------------------------------------------------


def test_without_a_daemon_it_is_looked_for_now_and_then(path: Path, segment: Segment) -> None:
    clock = Clock()
    client = NodeClient(path, DIGEST, clock)
    assert client.memory(0, len(CONTENT), 1) is None
    with scripted_daemon(path, handing_out(segment)) as daemon:
        assert client.memory(0, len(CONTENT), 1) is None  # it has just been looked for
        assert daemon.conversations == 0
        clock.now_s += NODE_AVOIDED_S
        assert client.memory(0, len(CONTENT), 1) is not None
        client.close()
        assert client.memory(0, len(CONTENT), 1) is None


def test_a_daemon_that_was_restarted_is_used_at_once(path: Path, segment: Segment) -> None:
    client = NodeClient(path, DIGEST, Clock())
    with scripted_daemon(path, handing_out(segment)) as daemon:
        assert client.memory(0, len(CONTENT), 1) is not None
        daemon.drop()
        assert client.memory(0, len(CONTENT), 1) is not None
        assert daemon.conversations == 2
    assert client.memory(0, len(CONTENT), 1) is None
    client.close()


def test_a_silent_daemon_is_given_up(path: Path, segment: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NODE_HELLO_TIMEOUT_S", "NODE_CHUNK_TIMEOUT_S"):
        monkeypatch.setattr(f"dieselfs.cluster.node_client.{name}", 0.05)
    with scripted_daemon(path, lambda *_: None) as daemon:
        with pytest.raises(Unavailable, match="no answer in time"):
            NodeConnection(path, DIGEST)
        daemon.answer = greeting(lambda *_: None)
        clock = Clock()
        client = NodeClient(path, DIGEST, clock)
        assert client.memory(0, len(CONTENT), 1) is None
        conversations = daemon.conversations
        daemon.answer = handing_out(segment)
        assert client.memory(0, len(CONTENT), 1) is None
        assert daemon.conversations == conversations
        client.close()


def test_a_refused_chunk_does_not_cost_the_daemon(path: Path, segment: Segment) -> None:
    client = NodeClient(path, DIGEST, Clock())
    with scripted_daemon(path, replying(Refusal.because(Unavailable("the server is away")))) as daemon:
        assert client.memory(0, len(CONTENT), 1) is None
        daemon.answer = handing_out(segment)
        assert client.memory(0, len(CONTENT), 1) is not None
        assert daemon.conversations == 1
        client.close()


def test_each_thread_has_a_conversation_of_its_own(path: Path, segment: Segment) -> None:
    both_ask = threading.Barrier(2)

    def answer(connection: socket.socket, number: int, request: Message | Unknown) -> None:
        both_ask.wait()  # neither waits for the other's answer
        socket.send_fds(connection, [encode(number, SegmentReply(len(segment)))], [segment.descriptor])

    with scripted_daemon(path, greeting(answer)):
        client = NodeClient(path, DIGEST)
        found: list[object] = []
        threads = [
            threading.Thread(target=lambda: found.append(client.memory(0, len(CONTENT), 1))) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.close()
    assert len(found) == 2 and None not in found


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_child_has_a_conversation_of_its_own(path: Path, segment: Segment) -> None:
    client = NodeClient(path, DIGEST)
    with scripted_daemon(path, handing_out(segment)) as daemon:
        assert client.memory(0, len(CONTENT), 1) is not None
        child = os.fork()
        if child == 0:
            status = 1
            try:
                memory = client.memory(1, len(CONTENT), 1)
                status = 0 if memory is not None and memory[0 : len(memory)] == CONTENT else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert daemon.conversations == 2
        assert client.memory(2, len(CONTENT), 1) is not None
        assert daemon.conversations == 2
        client.close()
