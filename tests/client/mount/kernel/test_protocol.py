"""Replies are taken apart here with the layouts of `<linux/fuse.h>`, written out once more."""

import errno
import stat
import struct
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.errors import ProtocolError
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.mount.kernel import protocol
from dieselfs_client.mount.reading.core import ROOT_INODE, Attributes, MountCore
from tests.support.snapshots import SAMPLE, SOURCE, file_of, snapshot_bytes

ATTR = struct.Struct("=QQQqqqIIIIIIIIII")
ENTRY = struct.Struct("=QQQQII")
DIRENT = struct.Struct("=QQII")
FILE = Attributes(7, stat.S_IFREG | 0o640, 1000, 1_600_000_000_123_456_789)


class PlusEntry(NamedTuple):
    node: int
    attr: tuple[int, ...]
    inode: int
    next_position: int
    kind: int
    name: bytes


def parse_plus(reply: bytes) -> list[PlusEntry]:
    entries, at = [], 0
    while at < len(reply):
        node, generation, entry_valid_s, attr_valid_s, *_ = ENTRY.unpack_from(reply, at)
        assert (generation, entry_valid_s, attr_valid_s) == (0, protocol.FOREVER_S, protocol.FOREVER_S)
        attr = ATTR.unpack_from(reply, at + ENTRY.size)
        inode, position, name_length, kind = DIRENT.unpack_from(reply, at + 128)
        name = reply[at + 152 : at + 152 + name_length]
        entries.append(PlusEntry(node, attr, inode, position, kind, name))
        at += 152 + (name_length + 7) // 8 * 8
    assert at == len(reply)
    return entries


def request_packet(opcode: int, body: bytes = b"", unique: int = 2, inode: int = 1) -> memoryview:
    return memoryview(struct.pack("=IIQQIIII", 40 + len(body), opcode, unique, inode, 0, 0, 0, 0) + body)


def test_a_request_is_taken_apart() -> None:
    request = protocol.decode_request(request_packet(1, b"cat.txt\0", unique=77, inode=5))
    assert (request.opcode, request.unique, request.inode) == (protocol.Opcode.LOOKUP, 77, 5)
    assert protocol.decode_name(request.body) == b"cat.txt"


@pytest.mark.parametrize("cut", [0, 1, 39])
def test_half_a_request_is_refused(cut: int) -> None:
    with pytest.raises(ProtocolError):
        protocol.decode_request(request_packet(1)[:cut])


@given(st.binary(max_size=200))
def test_no_bytes_can_make_a_decoder_fail_otherwise(data: bytes) -> None:
    packet = memoryview(data)
    for decode in (
        protocol.decode_request,
        protocol.decode_init,
        protocol.decode_read,
        protocol.decode_write,
        protocol.decode_setattr,
        protocol.decode_number,
        protocol.decode_batch_forget,
        protocol.decode_name,
    ):
        with suppress(ProtocolError):
            decode(packet)


def test_what_is_forgotten() -> None:
    assert protocol.decode_number(memoryview(struct.pack("=Q", 3))) == 3
    batch = struct.pack("=II4Q", 2, 0, 5, 1, 6, 7)
    assert protocol.decode_batch_forget(memoryview(batch)) == [(5, 1), (6, 7)]
    with pytest.raises(ProtocolError, match="announces 2 inodes"):
        protocol.decode_batch_forget(memoryview(batch[:-8]))


def test_a_request_that_lies_about_its_length_is_refused() -> None:
    packet = bytearray(request_packet(1, b"a\0"))
    packet[0] += 1
    with pytest.raises(ProtocolError, match="announces"):
        protocol.decode_request(memoryview(packet))


def test_read_and_interrupt() -> None:
    body = struct.pack("=QQIIQII", 0, 1 << 40, 4096, 0, 0, 0, 0)
    assert protocol.decode_read(memoryview(body)) == (1 << 40, 4096, False)
    direct = struct.pack("=QQIIQII", 0, 1 << 40, 4096, 2, 99, 0, 0)
    assert protocol.decode_read(memoryview(direct)).is_direct
    assert protocol.decode_number(memoryview(struct.pack("=Q", 12))) == 12


def test_write_and_truncation() -> None:
    body = struct.pack("=QQIIQII", 9, 4096, 5, 0, 7, 1, 0) + b"bytes"
    offset, content = protocol.decode_write(memoryview(body))
    assert (offset, bytes(content)) == (4096, b"bytes")
    assert struct.unpack("=II", protocol.encode_written(5)) == (5, 0)
    with pytest.raises(ProtocolError, match="announces 5"):
        protocol.decode_write(memoryview(body[:-1]))
    for valid, size, found in (
        (1 << 3, 0, 0),
        (1 << 3 | 1 << 6, 7, 7),
        (1 << 3 | 1, 0, None),
        (1 << 5, 0, None),
    ):
        attributes = struct.pack("=IIQQ", valid, 0, 9, size)
        assert protocol.decode_setattr(memoryview(attributes)) == found


def test_headers_of_replies() -> None:
    assert protocol.encode_header(9, 100) == struct.pack("=IiQ", 116, 0, 9)
    assert protocol.encode_header(9, 0, errno.EIO) == struct.pack("=IiQ", 16, -5, 9)


def test_init_takes_what_it_knows_of_the_kernels_offer() -> None:
    offer = protocol.InitRequest(7, 45, 131072, 0xFFFF_FFFF)
    reply = protocol.encode_init(offer)
    assert len(reply) == 64
    major, minor, read_ahead, flags, background, congestion, write, _, pages, *_ = struct.unpack(
        "=IIIIHHIIHHI28x", reply
    )
    assert (major, minor, read_ahead, write, pages) == (7, protocol.MINOR, 1 << 20, 4096, 256)
    assert flags == protocol.WANTED
    assert 0 < congestion < background


def test_init_wants_nothing_that_is_not_offered() -> None:
    flags = struct.unpack_from(
        "=I", protocol.encode_init(protocol.InitRequest(7, 31, 0, protocol.NEEDED)), 12
    )[0]
    assert flags == protocol.NEEDED


@pytest.mark.parametrize("offer", [(7, 28, 0, 0xFFFF_FFFF), (8, 0, 0, 0xFFFF_FFFF), (7, 45, 0, 0)])
def test_an_old_kernel_is_refused_with_a_reason(offer: tuple[int, int, int, int]) -> None:
    with pytest.raises(ProtocolError, match=r"Linux 5\.1"):
        protocol.encode_init(protocol.InitRequest(*offer))


def test_attributes() -> None:
    reply = protocol.Encoder(1000, 100).attributes(FILE)
    assert struct.unpack_from("=QII", reply) == (protocol.FOREVER_S, 0, 0)
    second, ns = 1_600_000_000, 123_456_789
    assert ATTR.unpack_from(reply, 16) == (
        *(7, 1000, 2, second, second, second, ns, ns, ns),
        *(stat.S_IFREG | 0o640, 1, 1000, 100, 0, 4096, 0),
    )


def test_times_before_1970_are_whole() -> None:
    attr = ATTR.unpack_from(protocol.Encoder(0, 0).attributes(FILE._replace(mtime_ns=-1)), 16)
    assert (attr[4], attr[7]) == (-1, 999_999_999)


def test_an_entry_is_a_node_and_its_attributes() -> None:
    encoder = protocol.Encoder(1000, 100)
    reply = encoder.entry(FILE)
    assert ENTRY.unpack_from(reply) == (7, 0, protocol.FOREVER_S, protocol.FOREVER_S, 0, 0)
    assert reply[ENTRY.size :] == encoder.attributes(FILE)[16:]
    reply = encoder.entry(FILE, name_valid_s=0)
    assert ENTRY.unpack_from(reply) == (7, 0, 0, protocol.FOREVER_S, 0, 0)


def test_a_name_that_does_not_exist_is_remembered() -> None:
    assert len(protocol.NO_SUCH_ENTRY) == 128
    assert ENTRY.unpack_from(protocol.NO_SUCH_ENTRY)[:3] == (0, 0, protocol.FOREVER_S)


def test_a_listing_says_of_each_entry_what_a_lookup_would() -> None:
    core = MountCore(Snapshot(snapshot_bytes(SAMPLE), SOURCE))
    encoder = protocol.Encoder(1000, 100)
    for folder in (ROOT_INODE, core.lookup(ROOT_INODE, b"train")):
        siblings = core.siblings(core.child_nodes(folder))
        entries = parse_plus(encoder.listing_plus(siblings, 2))
        assert [entry.name for entry in entries] == siblings.names
        for position, entry in enumerate(entries, start=2):
            inode = core.lookup(folder, entry.name)
            attributes = core.attributes(inode)
            assert (entry.node, entry.inode, entry.next_position) == (inode, inode, position + 1)
            assert entry.kind == stat.S_IFMT(attributes.mode) >> 12
            assert entry.attr == ATTR.unpack_from(encoder.attributes(attributes), 16)


def test_a_listing_without_attributes() -> None:
    core = MountCore(Snapshot(snapshot_bytes(SAMPLE), SOURCE))
    reply = protocol.encode_listing(core.siblings(core.child_nodes(ROOT_INODE)), 2)
    names, at = [], 0
    while at < len(reply):
        inode, position, length, kind = DIRENT.unpack_from(reply, at)
        name = reply[at + 24 : at + 24 + length]
        names.append((core.lookup(ROOT_INODE, name) == inode, position, kind, name))
        at += 24 + (length + 7) // 8 * 8
    assert names == [(True, 3, 10, b"latest"), (True, 4, 4, b"test"), (True, 5, 4, b"train")]


@given(st.lists(st.integers(1, 255), min_size=1, max_size=40), st.integers(0, 5000))
def test_as_many_entries_as_fit(lengths: list[int], room_bytes: int) -> None:
    tree = {b"%03d" % i + b"n" * (n - 3): file_of() for i, n in enumerate(lengths) if n >= 3}
    core = MountCore(Snapshot(snapshot_bytes(tree), SOURCE))
    nodes = core.child_nodes(ROOT_INODE)
    count = protocol.count_that_fit(core.name_lengths(nodes), protocol.DIRENT_PLUS_BYTES, room_bytes)
    encoder = protocol.Encoder(0, 0)
    assert len(encoder.listing_plus(core.siblings(nodes[:count]), 2)) <= room_bytes
    if count < len(nodes):
        assert len(encoder.listing_plus(core.siblings(nodes[: count + 1]), 2)) > room_bytes


def test_names_of_any_length_are_filled_up_with_zeros() -> None:
    tree = {b"n" * length: file_of() for length in range(1, 256)}
    core = MountCore(Snapshot(snapshot_bytes(tree), SOURCE))
    siblings = core.siblings(core.child_nodes(ROOT_INODE))
    entries = parse_plus(protocol.Encoder(0, 0).listing_plus(siblings, 0))
    assert [len(entry.name) for entry in entries] == list(range(1, 256))


def test_statfs() -> None:
    reply = protocol.encode_statfs(1025, 8)
    assert len(reply) == 80
    blocks, free, available, files, files_free, block, name, fragment = struct.unpack("=QQQQQIII28x", reply)
    assert (blocks * fragment, free, available, files, files_free) == (1536, 0, 0, 8, 0)
    assert (block, name, fragment) == (4096, 255, 512)


def test_record_layouts_are_those_of_the_kernel() -> None:
    assert np.dtype("u8").byteorder == "="
    assert ENTRY.size + ATTR.size + DIRENT.size == protocol.DIRENT_PLUS_BYTES
