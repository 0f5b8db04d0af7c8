"""The roll on the wire: what was sent comes back, and lengths are not believed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs.errors import ProtocolError
from dieselfs.rpc.members import MEMBERSHIP_LIST_BYTES_MAX, decode_members, encode_members


@settings(max_examples=100)
@given(st.lists(st.binary(max_size=300), max_size=20))
def test_members_come_back_as_they_were(members: list[bytes]) -> None:
    assert decode_members(bytearray(encode_members(members))) == tuple(members)


@pytest.mark.parametrize("encoded", [b"\1", b"\5\0abcd", b"\1\0a\2\0b", bytes(MEMBERSHIP_LIST_BYTES_MAX + 1)])
def test_what_is_cut_short_or_too_long_is_refused(encoded: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_members(encoded)
