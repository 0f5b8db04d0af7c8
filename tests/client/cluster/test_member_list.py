"""The list of members: what is handed out, and under which version."""

from dieselfs.address import TcpAddress
from dieselfs.cluster.member import Member
from dieselfs.rpc.members import decode_members
from dieselfs_client.cluster.member_list import MemberList

ONE, OTHER = (Member(node, 3, TcpAddress("10.0.0.1", 7070), 1 << 30, bytes(16)) for node in ("a", "b"))


def members_of(known: MemberList) -> list[Member]:
    return [Member.of(encoded) for encoded in decode_members(bytes(known.encoded.view))]


def test_the_list_is_sealed_and_in_the_order_that_was_given() -> None:
    known = MemberList([OTHER, ONE])
    assert members_of(known) == [OTHER, ONE] and known.encoded.view.readonly


def test_each_version_is_larger_than_all_before() -> None:
    earlier = MemberList([ONE], clock_ns=lambda: 1_000)
    before = earlier.version
    earlier.change([ONE, OTHER])
    assert members_of(earlier) == [ONE, OTHER] and earlier.version > before > 0
    later = MemberList([ONE], clock_ns=lambda: 2_000)
    assert later.version > earlier.version, "of the next master of the node"
