"""The table of calls: only methods that carry much have long calls, and each handler looks at rights."""

import struct
from collections.abc import Iterable
from types import SimpleNamespace

import pytest
from thriftpy2.thrift import TType

from dieselfs.errors import ProtocolError
from dieselfs.limits import (
    CALL_BYTES_MAX,
    CALL_COST_OF_USER_MAX_US,
    COPY_SELECTION_BYTES_MAX,
    FRAME_BYTES_MAX,
    INLINE_FILE_BYTES_MAX,
    KEY_RECORD_BYTES_MAX,
    MIB,
    NAME_BYTES_MAX,
    PATH_BYTES_MAX,
    RANGES_PER_REQUEST_MAX,
    SMALL_CALL_COST_US,
    TAG_NAME_CHARACTERS_MAX,
)
from dieselfs.rpc.messages import encode_call
from dieselfs.rpc.methods import (
    METHODS,
    ORDINARY,
    PEER_METHODS,
    PREFIX_BYTES,
    SERVER_METHODS,
    Method,
    check_length,
)
from dieselfs.rpc.records import CopyRequest, KeyRecord
from dieselfs.rpc.structs import thrift

LONGEST: dict[str, dict[str, object]] = {
    "write_file": {
        "dataset": "d" * NAME_BYTES_MAX,
        "path": b"p" * PATH_BYTES_MAX,
        "content": bytes(INLINE_FILE_BYTES_MAX),
        "mode": 0o644,
        "mtime_ns": 0,
    },
    "put_keys": {
        "dataset": "d" * NAME_BYTES_MAX,
        "content": bytes(KEY_RECORD_BYTES_MAX),
        "known": bytes(KEY_RECORD_BYTES_MAX),
    },
    "copy_entries": CopyRequest(
        "d" * NAME_BYTES_MAX,
        b"p" * PATH_BYTES_MAX,
        "d" * NAME_BYTES_MAX,
        b"p" * PATH_BYTES_MAX,
        "t" * TAG_NAME_CHARACTERS_MAX,
        selection=bytes(COPY_SELECTION_BYTES_MAX),
    )._asdict(),
    "get_ranges": {
        "dataset": "d" * NAME_BYTES_MAX,
        "chunk_id": bytes(16),
        "ranges": bytes(8 * RANGES_PER_REQUEST_MAX),
    },
    "get_extents": {
        "digest": bytes(32),
        "chunks": bytes(4 * 1024),
        "counts": bytes(4 * 1024),
        "ranges": bytes(8 * RANGES_PER_REQUEST_MAX),
        "is_shared_plan": True,
    },
}


@pytest.mark.parametrize("method", LONGEST)
def test_the_longest_call_of_each_method_passes(method: str) -> None:
    call = encode_call(method, 1, LONGEST[method])
    assert CALL_BYTES_MAX < len(call) < FRAME_BYTES_MAX
    check_length(call[:PREFIX_BYTES], len(call))
    with pytest.raises(ProtocolError, match=f"call of '{method}'"):
        check_length(call[:PREFIX_BYTES], FRAME_BYTES_MAX)


@pytest.mark.parametrize("method", sorted((SERVER_METHODS | PEER_METHODS) - LONGEST.keys()))
def test_other_calls_are_short(method: str) -> None:
    prefix = b"\x80\x01\x00\x01" + len(method).to_bytes(4, "big") + method.encode()
    check_length(prefix.ljust(PREFIX_BYTES, b"\0"), CALL_BYTES_MAX)
    with pytest.raises(ProtocolError, match="limit"):
        check_length(prefix.ljust(PREFIX_BYTES, b"\0"), CALL_BYTES_MAX + 1)


@pytest.mark.parametrize("prefix", [bytes(PREFIX_BYTES), b"\xff" * PREFIX_BYTES])
def test_a_prefix_without_a_method_allows_no_long_call(prefix: bytes) -> None:
    with pytest.raises(ProtocolError):
        check_length(prefix, CALL_BYTES_MAX + 1)


def test_a_row_has_all_columns() -> None:
    with pytest.raises(TypeError, match="audited"):
        Method(*METHODS["stat"][:-1])  # type: ignore[call-arg]  # the fault that is looked for


@pytest.mark.parametrize(
    "wrong",
    [
        METHODS["stat"]._replace(reply=KeyRecord),
        METHODS["stat"]._replace(audited=("user",)),
        METHODS["stat"]._replace(sizes=METHODS["put_chunk"].sizes),
        METHODS["purge"]._replace(work=METHODS["stat"].work),
        METHODS["stat"]._replace(cost=METHODS["get_ranges"].cost),
    ],
)
def test_a_row_that_differs_from_the_idl_is_found(wrong: Method) -> None:
    with pytest.raises(AssertionError, match=wrong.name):
        check_methods([wrong])


def test_the_table_is_that_of_the_idl() -> None:
    assert frozenset(thrift.services["ChunkServer"]) == SERVER_METHODS
    assert frozenset(thrift.services["Peer"]) == PEER_METHODS
    check_methods(METHODS.values())


LEAST: dict[int, object] = {
    TType.BOOL: False,
    TType.I32: 0,
    TType.I64: 0,
    TType.STRING: "",
    TType.BINARY: b"",
    TType.LIST: [],
}


def cost_of_least(row: Method) -> int:
    """What a call costs whose arguments are zero or empty; -1 if it has not those of the cost."""
    specs = getattr(thrift, f"{row.name}_args").thrift_spec.values()
    try:
        return row.cost_of(SimpleNamespace(**{name: LEAST[kind] for kind, name, *_ in specs}))
    except AttributeError:
        return -1


def check_methods(rows: Iterable[Method]) -> None:
    """Compare rows of the table of calls with the IDL."""
    for row in rows:
        arguments = {name for _, name, *_ in getattr(thrift, f"{row.name}_args").thrift_spec.values()}
        assert arguments >= {*(row.audited or ())}, f"{row.name}: no such argument to audit"
        assert ("bulk_length" in arguments) == (row.sizes.bulk_bytes > 0), f"{row.name}: bulk bytes"
        assert row.work.has_progress or "with_progress" not in arguments, f"{row.name}: progress"
        assert cost_of_least(row) >= 0, f"{row.name}: cost"
        if row.reply is not None and issubclass(row.reply, tuple):
            _, _, of, *_ = getattr(thrift, f"{row.name}_result").thrift_spec[0]
            struct_kind = of[1] if isinstance(of, tuple) else of
            fields = {name for _, name, *_ in struct_kind.thrift_spec.values()}
            assert {*row.reply.__annotations__} == fields, (
                f"{row.name}: {row.reply} has other fields than the IDL"
            )


def test_what_a_call_costs_follows_from_its_arguments() -> None:
    def cost(method: str, **arguments: object) -> int:
        return METHODS[method].cost_of(SimpleNamespace(**arguments))

    assert all(METHODS[name].cost_of(SimpleNamespace()) > 0 for name in ("stat", "list_users", "get_payload"))
    one, many = (cost("get_ranges", ranges=struct.pack("<2I", 0, 10) * count) for count in (1, 65_536))
    assert one < SMALL_CALL_COST_US and many > CALL_COST_OF_USER_MAX_US
    assert cost("get_ranges", ranges=struct.pack("<2I", 0, 64 * MIB)) > 60 * one
    assert cost("get_ranges", ranges=b"odd") > 0  # the handler refuses it
    assert (
        cost("list_folder", limit=1_024)
        > cost("list_folder", limit=1 << 40) - 1
        > cost("list_folder", limit=1)
    )
    assert cost("list_folder", limit=-1) == cost("list_folder", limit=0)
    assert cost("put_chunk", bulk_length=64 * MIB) > 10 * cost("put_chunk", bulk_length=4 * MIB)
    small = cost("write_file", content=b"x"), cost("stat"), cost("read_file")
    assert max(small) <= SMALL_CALL_COST_US < cost("write_file", content=bytes(MIB + MIB))


def test_a_call_that_a_reader_waits_for_may_be_repeated() -> None:
    assert all(row.is_repeatable for row in METHODS.values() if row.urgency != ORDINARY)
