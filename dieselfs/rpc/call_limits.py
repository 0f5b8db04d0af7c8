"""How long a call may be, and how many values a reply may have, by method: most messages carry names and numbers only.
No I/O.

The beginning of a message names the method, so a long call is refused before it is received.
"""

from dieselfs.errors import ProtocolError
from dieselfs.limits import (
    CALL_BYTES_MAX,
    COPY_SELECTION_BYTES_MAX,
    INLINE_FILE_BYTES_MAX,
    PEER_CHUNKS_MAX,
    RANGES_PER_REQUEST_MAX,
)
from dieselfs.rpc.scan import VALUES_MAX

PREFIX_BYTES = 128
"""Enough for the version, the length of the name, and the longest name of a method."""

_RANGE_BYTES, _CHUNK_BYTES = 8, 8
_LONG_CALLS = {
    b"write_file": CALL_BYTES_MAX + INLINE_FILE_BYTES_MAX,
    b"copy_entries": CALL_BYTES_MAX + COPY_SELECTION_BYTES_MAX,
    b"get_ranges": CALL_BYTES_MAX + RANGES_PER_REQUEST_MAX * _RANGE_BYTES,
    b"get_extents": CALL_BYTES_MAX + PEER_CHUNKS_MAX * _CHUNK_BYTES + RANGES_PER_REQUEST_MAX * _RANGE_BYTES,
}
_NAME_AT = 8

_REPLY_VALUES_MAX = 8_192
_LISTS = frozenset(
    (
        "list_datasets",
        "list_lost_datasets",
        "list_folder",
        "list_pins",
        "list_tags",
        "list_users",
        "list_groups",
        "list_quotas",
        "list_rates",
        "usage",
    )
)


def check_length(prefix: bytes | bytearray, length_bytes: int) -> None:
    """Raise ProtocolError if a message that begins with `prefix` (PREFIX_BYTES) is longer than its method allows."""
    name_end = _NAME_AT + int.from_bytes(prefix[4:_NAME_AT], "big")
    name = bytes(prefix[_NAME_AT:name_end])
    limit_bytes = _LONG_CALLS.get(name, CALL_BYTES_MAX)
    if length_bytes > limit_bytes:
        raise ProtocolError(
            f"a call of {name[:40].decode('ascii', 'replace')!r} has {length_bytes} bytes, limit {limit_bytes}"
        )


def reply_values_max(method: str) -> int:
    """Values in a reply, with those inside others: each one costs the receiver hundreds of bytes."""
    return VALUES_MAX if method in _LISTS else _REPLY_VALUES_MAX
