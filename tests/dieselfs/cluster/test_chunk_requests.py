"""What a node asks for arrives as it was meant, and what nobody may ask for is refused."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from dieselfs.cluster.chunk_requests import PeerRequest, decode_requests, encode_requests
from dieselfs.columns import U32
from dieselfs.errors import InvalidInput
from dieselfs.limits import PEER_ANSWER_BYTES_MAX, PEER_CHUNKS_MAX, RANGES_PER_REQUEST_MAX
from dieselfs.rpc.messages import decode_call, encode_call
from dieselfs.rpc.methods import PEER_METHODS
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries

CHUNKS = 3
FILES_EACH = 4


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    files = CHUNKS * FILES_EACH
    entries = [TreeEntry(b"%02d" % n, 0o100644, 0, bytes([n]) * 100) for n in range(files)]
    return pack_entries(entries, chunk_bytes=100 * FILES_EACH)


def test_what_is_wanted_arrives(packed: PackedDataset) -> None:
    snapshot, payloads = packed.snapshot, packed.source().payloads
    extents = [snapshot.extents(snapshot.find(b"%02d" % n))[0] for n in (9, 11, 10)]
    wanted = [
        PeerRequest.whole(snapshot, 1),
        PeerRequest.of_extents(2, extents),
        PeerRequest.whole(snapshot, 0),
    ]
    message = encode_call("get_extents", 1, {"digest": snapshot.digest, **encode_requests(wanted)})
    asked = decode_requests(decode_call(message, PEER_METHODS)[2], snapshot)
    assert [(each.chunk, each.length_bytes) for each in asked] == [(1, 400), (2, 300), (0, 400)]
    assert [b"".join(each.of(memoryview(payloads[each.chunk]))) for each in asked] == [
        payloads[1],
        b"".join(bytes([n]) * 100 for n in (9, 11, 10)),
        payloads[0],
    ]


def test_extents_that_lie_one_behind_the_other_are_sent_as_one(packed: PackedDataset) -> None:
    payload = memoryview(packed.source().payloads[0])
    extents = [packed.snapshot.extents(packed.snapshot.find(b"%02d" % n))[0] for n in (1, 2, 0, 3, 1)]
    for count, bounds in ((1, [(100, 200)]), (2, [(100, 300)]), (3, [(100, 300), (0, 100)]), (5, None)):
        arguments = encode_requests([PeerRequest.of_extents(0, extents[:count])])
        (asked,) = decode_requests(SimpleNamespace(**arguments), packed.snapshot)
        expected = bounds or [(100, 300), (0, 100), (300, 400), (100, 200)]
        assert [*asked.of(payload)] == [payload[start:end] for start, end in expected]


@pytest.mark.parametrize("is_shared_plan", [True, False])
def test_whether_others_want_the_rest_arrives(packed: PackedDataset, is_shared_plan: bool) -> None:
    extents = packed.snapshot.extents(packed.snapshot.find(b"05"))
    arguments = encode_requests([PeerRequest.of_extents(1, extents, is_shared_plan)])
    message = encode_call("get_extents", 1, {"digest": packed.snapshot.digest, **arguments})
    (asked,) = decode_requests(decode_call(message, PEER_METHODS)[2], packed.snapshot)
    payload_bytes = packed.snapshot.chunk_payload_length(1)
    assert asked.wanted_bytes == (payload_bytes if is_shared_plan else asked.length_bytes)


def u32(*numbers: int) -> bytes:
    return np.array(numbers, U32).tobytes()


def asked(chunks: bytes, counts: bytes, ranges: bytes = b"") -> SimpleNamespace:
    return SimpleNamespace(chunks=chunks, counts=counts, ranges=ranges, is_shared_plan=False)


BAD: dict[str, Callable[[], SimpleNamespace]] = {
    "nothing": lambda: asked(b"", b""),
    "half a number": lambda: asked(b"\0\0", b"\0\0"),
    "half a range": lambda: asked(u32(0), u32(1), u32(0)),
    "fewer counts": lambda: asked(u32(0, 1), u32(0)),
    "fewer ranges than counted": lambda: asked(u32(0), u32(2), u32(0, 1)),
    "more ranges than counted": lambda: asked(u32(0), u32(0), u32(0, 1)),
    "no such chunk": lambda: asked(u32(CHUNKS), u32(0)),
    "no such chunk by far": lambda: asked(u32(0xFFFF_FFFF), u32(0)),
    "a range behind the payload": lambda: asked(u32(0), u32(1), u32(1, 400)),
    "a range that wraps around": lambda: asked(u32(0), u32(1), u32(0xFFFF_FFFF, 2)),
    "too many chunks": lambda: asked(u32(*[0] * (PEER_CHUNKS_MAX + 1)), u32(*[0] * (PEER_CHUNKS_MAX + 1))),
    "too many ranges": lambda: asked(
        u32(0), u32(RANGES_PER_REQUEST_MAX + 1), u32(*[0, 1] * (RANGES_PER_REQUEST_MAX + 1))
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_nobody_may_ask_for_is_refused(packed: PackedDataset, what: str) -> None:
    with pytest.raises(InvalidInput):
        decode_requests(BAD[what](), packed.snapshot)


def test_an_answer_has_a_limit() -> None:
    length_bytes = 2_000_000
    large = pack_entries([TreeEntry(b"a", 0o100644, 0, bytes(length_bytes))], chunk_bytes=length_bytes)
    count = PEER_ANSWER_BYTES_MAX // length_bytes
    decode_requests(asked(u32(*[0] * count), u32(*[0] * count)), large.snapshot)
    count += 1
    with pytest.raises(InvalidInput, match="limit"):
        decode_requests(asked(u32(*[0] * count), u32(*[0] * count)), large.snapshot)
