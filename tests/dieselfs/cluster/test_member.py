"""Members as bytes: one right way to write each, and nothing else is read as one."""

from collections.abc import Callable
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs.cluster.member import Member, check_job_name, check_node_name
from dieselfs.errors import InvalidInput
from dieselfs.limits import GIB, MEMBER_BYTES_MAX
from dieselfs.net.address import TcpAddress

MEMBER = Member("node-1", 3, TcpAddress("10.0.0.1", 7071), 16 * GIB, b"i" * 16)
FIELDS = ["node-1", 3, "tcp://10.0.0.1:7071", 16 * GIB, b"i" * 16, bytes(32)]


def test_a_member_is_a_card_and_back() -> None:
    assert msgpack.unpackb(MEMBER.encode()) == FIELDS
    assert Member.of(MEMBER.encode()) == MEMBER
    over_ipv6 = replace(MEMBER, address=TcpAddress("fd00::1", 1))
    assert Member.of(over_ipv6.encode()) == over_ipv6


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, ""),
        (0, "a/b"),
        (0, "n" * 129),
        (0, b"node-1"),
        (1, -1),
        (1, 1 << 31),
        (1, True),
        (1, 1.0),
        (2, "unix:/run/x"),
        (2, "10.0.0.1:7071"),
        (2, "tcp://10.0.0.1"),
        (2, "tcp://10.0.0.1:70000"),
        (2, "tcp://" + "h" * 600 + ":1"),
        (3, -1),
        (3, (1 << 50) + 1),
        (4, b"short"),
        (4, None),
        (5, b"short"),
        (5, "f" * 32),
    ],
)
def test_what_is_out_of_bounds_is_no_member(place: int, value: object) -> None:
    fields: list[object] = [*FIELDS]
    fields[place] = value
    with pytest.raises(InvalidInput):
        Member.of(msgpack.packb(fields))


def test_a_member_that_nobody_could_read_is_not_written() -> None:
    with pytest.raises(InvalidInput):
        replace(MEMBER, rank=-1).encode()
    with pytest.raises(InvalidInput):
        replace(MEMBER, address=TcpAddress("h" * MEMBER_BYTES_MAX, 1)).encode()


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        MEMBER.encode()[:-1],
        MEMBER.encode() + b"\0",
        msgpack.packb({"node": "node-1"}),
        msgpack.packb(FIELDS[:4]),
        MEMBER.encode().replace(b"\x03", b"\xcc\x03", 1),  # the rank, in two bytes instead of one
        b"\x91" * 400,
    ],
)
def test_other_bytes_are_no_member(encoded: bytes) -> None:
    with pytest.raises(InvalidInput):
        Member.of(encoded)


@settings(max_examples=300)
@given(st.binary(max_size=80) | st.integers(0, len(MEMBER.encode()) - 1).map(lambda i: MEMBER.encode()[:i]))
def test_whatever_comes_is_a_member_or_refused(encoded: bytes) -> None:
    try:
        member = Member.of(encoded)
    except InvalidInput:
        return
    assert member.encode() == encoded


@pytest.mark.parametrize("check", [check_job_name, check_node_name])
def test_names(check: Callable[[str], str]) -> None:
    assert check("slurm-123_4.a") == "slurm-123_4.a"
    for name in ("", "-a", "a b", "a/b", "ä", "a\n", "n" * 129):
        with pytest.raises(InvalidInput, match="is not allowed"):
            check(name)
