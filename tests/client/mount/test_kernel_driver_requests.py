"""The driver alone, at one end of a socket, with requests that no kernel would send at the other."""

import errno
import socket
import struct
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.spec import PlanSpec
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.memory.chunk_cache import ChunkCache
from dieselfs_client.mount.control.tree import SHUFFLE_INODE
from dieselfs_client.mount.drivers.kernel_driver import KernelDriver
from dieselfs_client.mount.kernel.protocol import Opcode
from dieselfs_client.mount.reading.core import CONTROL_INODE, MountCore
from tests.support.control import simple_control
from tests.support.dataset import MemoryChunkSource
from tests.support.no_read_ahead import plain_reads
from tests.support.snapshots import SAMPLE, SOURCE, snapshot_bytes

LAST_UNIQUE = 1 << 40
SNAPSHOT = Snapshot(snapshot_bytes(SAMPLE), SOURCE)
REPLY_BYTES_MAX = 2 << 20


def packet(opcode: int, body: bytes = b"", inode: int = 1, unique: int = 2) -> bytes:
    return struct.pack("=IIQQIIII", 40 + len(body), opcode, unique, inode, 0, 0, 0, 0) + body


def answers(packets: Sequence[bytes], late: AbstractSet[int] = frozenset()) -> dict[int, tuple[int, bytes]]:
    """Errno and payload of each reply, by `unique`. STATFS is asked last, so that its reply says that all is done, but
    for the requests (by `unique`) that are answered `late`.
    """
    replies: dict[int, tuple[int, bytes]] = {}

    async def main() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, trio.socket.from_stdlib_socket(ours) as kernel:
            async with trio.open_nursery() as nursery:
                source = MemoryChunkSource(SNAPSHOT, {0: bytearray(1 << 16), 1: bytearray(1 << 16)})
                chunk_cache = ChunkCache(SNAPSHOT, source, 1 << 20, nursery)
                core = MountCore(SNAPSHOT)
                reads, control = plain_reads(core, chunk_cache), simple_control(SNAPSHOT)
                nursery.start_soon(KernelDriver(theirs.fileno(), core, reads, control, 0, 0).run)
                for sent in [*packets, packet(Opcode.STATFS, unique=LAST_UNIQUE)]:
                    await kernel.send(sent)
                with trio.fail_after(10):
                    while not replies.keys() >= late | {LAST_UNIQUE}:
                        reply = await kernel.recv(REPLY_BYTES_MAX)
                        length, code, unique = struct.unpack_from("=IiQ", reply)
                        assert length == len(reply)
                        assert unique not in replies
                        replies[unique] = (-code, reply[16:])
                nursery.cancel_scope.cancel()

    trio.run(main)
    return replies


def error_of(opcode: int, body: bytes = b"", inode: int = 1) -> int | None:
    """Errno of the reply to one request; None if there is no reply."""
    reply = answers([packet(opcode, body, inode)]).get(2)
    return None if reply is None else reply[0]


READ_BODY = struct.pack("=QQIIQII", 0, 0, 4096, 0, 0, 0, 0)


@pytest.mark.parametrize(
    "opcode",
    [
        Opcode.SETATTR,
        Opcode.MKDIR,
        Opcode.UNLINK,
        Opcode.WRITE,
        Opcode.CREATE,
        Opcode.RENAME2,
        Opcode.SETXATTR,
    ],
)
def test_what_would_change_something_is_refused(opcode: Opcode) -> None:
    assert error_of(opcode, bytes(40)) == errno.EROFS


@pytest.mark.parametrize(
    "opcode", [Opcode.OPEN, Opcode.OPENDIR, Opcode.GETXATTR, Opcode.LISTXATTR, 0, 46, 52, 4096]
)
def test_what_is_not_answered_is_said_to_be_unknown(opcode: int) -> None:
    assert error_of(opcode, bytes(40)) == errno.ENOSYS


@pytest.mark.parametrize("opcode", [Opcode.FORGET, Opcode.DESTROY, Opcode.INTERRUPT])
def test_what_wants_no_reply_gets_none(opcode: Opcode) -> None:
    assert error_of(opcode, bytes(16)) is None


def test_many_inodes_are_forgotten_without_a_reply() -> None:
    assert error_of(Opcode.BATCH_FORGET, struct.pack("=II4Q", 2, 0, 5, 1, CONTROL_INODE + 99, 1)) is None


@pytest.mark.parametrize(
    "inode", [0, len(SNAPSHOT) + 1, CONTROL_INODE - 1, CONTROL_INODE + 99, (1 << 64) - 1]
)
@pytest.mark.parametrize(
    ("opcode", "body"),
    [
        (Opcode.GETATTR, bytes(16)),
        (Opcode.LOOKUP, b"name\0"),
        (Opcode.LOOKUP, b".\0"),
        (Opcode.READLINK, b""),
        (Opcode.READ, READ_BODY),
        (Opcode.READDIR, READ_BODY),
        (Opcode.READDIRPLUS, READ_BODY),
    ],
)
def test_an_inode_of_another_generation_is_stale(opcode: Opcode, body: bytes, inode: int) -> None:
    assert error_of(opcode, body, inode) == errno.ESTALE


def test_the_wrong_kind_of_inode() -> None:
    folder, link = 1, SNAPSHOT.require(b"latest") + 1
    assert error_of(Opcode.READ, READ_BODY, folder) == errno.EINVAL
    assert error_of(Opcode.READDIRPLUS, READ_BODY, link) == errno.EINVAL
    assert error_of(Opcode.READLINK, b"", folder) == errno.EINVAL


def lookup(folder: int, name: bytes, unique: int) -> bytes:
    return packet(Opcode.LOOKUP, name + b"\0", folder, unique)


def test_the_control_folder_is_found_but_not_listed() -> None:
    body = struct.pack("=QQIIQII", 0, 0, 4096, 0, 0, 0, 0)
    replies = answers([lookup(1, b".dieselfs", 2), packet(Opcode.READDIRPLUS, body, unique=3)])
    assert struct.unpack_from("=QQQQ", replies[2][1])[0] == CONTROL_INODE
    assert replies[3][0] == 0 and b".dieselfs" not in replies[3][1]


def test_a_file_of_the_control_folder_is_looked_up_each_time() -> None:
    replies = answers([lookup(CONTROL_INODE, b"info", 2), lookup(CONTROL_INODE, b"info", 3)])
    first, second = (struct.unpack_from("=QQQQ", replies[unique][1]) for unique in (2, 3))
    assert first[0] != second[0]
    assert first[2] == second[2] == 0, "the kernel keeps no name"
    assert first[3] > 0, "but all of what it was told of the inode"
    body = struct.pack("=QQIIQII", 0, 0, 4096, 0, 0, 0, 0)
    listing = answers([packet(Opcode.READDIRPLUS, body, CONTROL_INODE)])[2][1]
    assert b"shuffle" in listing
    assert struct.unpack_from("=Q", listing)[0] == 0, "nor an inode from a listing"


def test_a_shuffle_is_found_and_a_bad_one_is_refused() -> None:
    replies = answers([lookup(SHUFFLE_INODE, b"seed=1", 2), lookup(SHUFFLE_INODE, b"seed=x", 3)], late={2, 3})
    assert replies[3] == (errno.EINVAL, b"")
    code, entry = replies[2]
    assert code == 0 and struct.unpack_from("=Q", entry)[0] > CONTROL_INODE
    assert struct.unpack_from("=QQ", entry, 40)[1] == sum(
        len(path) + 1 for path in Plan(SNAPSHOT, PlanSpec()).share().paths
    )


def test_no_room_for_an_entry_is_not_the_end_of_the_folder() -> None:
    body = struct.pack("=QQIIQII", 0, 2, 100, 0, 0, 0, 0)
    assert error_of(Opcode.READDIRPLUS, body) == errno.EINVAL


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.sampled_from(list(Opcode)), st.integers(0, 1 << 32)).map(
                lambda code: code & 0xFFFF_FFFF
            ),
            st.one_of(st.integers(0, len(SNAPSHOT) + 1), st.integers(0, (1 << 64) - 1)),
            st.one_of(st.binary(max_size=80), st.just(READ_BODY)),
        ),
        max_size=12,
    ),
    st.binary(max_size=60),
)
def test_whatever_comes_every_request_is_answered_once_at_most(
    requests: list[tuple[int, int, bytes]], garbage: bytes
) -> None:
    packets = [
        packet(code, body, inode, unique) for unique, (code, inode, body) in enumerate(requests, start=2)
    ]
    replies = answers([*packets, garbage or b"\0"])
    assert replies[LAST_UNIQUE][0] == 0
    for code, payload in replies.values():
        assert code == 0 or (0 < code < 4096 and payload == b"")
