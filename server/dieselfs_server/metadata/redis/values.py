"""The values in Redis, each sealed with a checksum: bytes in, records out. No I/O.

A seal is the xxh3 of `name NUL body`, seeded with the key. Reading detects a value that was altered, or that is under
another key or name. In a conditional change, the seal stands for the value.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgpack
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from dieselfs.chunk.format import ChunkHeader, Preamble, decode_header, decode_preamble
from dieselfs.errors import Damaged
from dieselfs.names import printable
from dieselfs.records import ChunkRecord, DatasetRecord
from dieselfs_server.metadata.effects import Effects
from dieselfs_server.metadata.redis.keys import BUCKETS, TOKEN_BYTES, KeyPair

SEAL_BYTES = 8
_REGISTERED = struct.Struct(f"<16s{TOKEN_BYTES}s")
_DATASET = struct.Struct("<16sqqqqq?")
_CHUNK = struct.Struct(f"<qIII16s{BUCKETS // 8}s")
_DELETED = struct.Struct("<q")
_NUMBER = struct.Struct("<q")
_PENDING = struct.Struct("<qI")


def seal(key_pair: KeyPair, name: bytes, body: bytes) -> bytes:
    """The value for `body` under `name`."""
    return body + xxh3_64_digest(name + b"\0" + body, key_pair.seed)


def unseal(key_pair: KeyPair, name: bytes, value: bytes) -> bytes:
    """The body of a value. Raises Damaged."""
    body = value[:-SEAL_BYTES]
    if xxh3_64_digest(name + b"\0" + body, key_pair.seed) != value[-SEAL_BYTES:]:
        raise damage(key_pair, name)
    return body


def damage(key_pair: KeyPair, name: bytes) -> Damaged:
    dataset = key_pair.owner if key_pair.owner.startswith("dl://") else "dl://DATASET"
    return Damaged(
        f"metadata in Redis: key {printable(key_pair.key)}: the value of {printable(name)!r} fails its checksum; "
        f"rebuild it from the chunks: dlcmd rebuild {dataset}"
    )


@dataclass(frozen=True, slots=True)
class Registered:
    """A dataset's value in the registry."""

    dataset_id: bytes
    token: bytes

    def body(self) -> bytes:
        return _REGISTERED.pack(self.dataset_id, self.token)

    @classmethod
    def of(cls, body: bytes) -> "Registered":
        return cls(*_REGISTERED.unpack(body))


@dataclass(frozen=True, slots=True)
class DatasetState:
    """A dataset's record. `is_dropped`: the dataset no longer exists, and its keys are being removed."""

    record: DatasetRecord
    is_dropped: bool = False

    def body(self) -> bytes:
        r = self.record
        numbers = (r.generation, r.updated_ns, r.files, r.total_bytes, r.chunks)
        return _DATASET.pack(r.dataset_id, *numbers, self.is_dropped) + r.name.encode()

    @classmethod
    def of(cls, body: bytes) -> "DatasetState":
        dataset_id, *numbers, is_dropped = _DATASET.unpack_from(body)
        return cls(DatasetRecord(dataset_id, body[_DATASET.size :].decode(), *numbers), is_dropped)


@dataclass(frozen=True, slots=True)
class ChunkState:
    """A chunk's record, without its deletion bitmap. `buckets` has one bit for each bucket with a receipt."""

    updated_ns: int
    header_length: int
    payload_length: int
    entries: int
    payload_checksum: int
    buckets: bytes

    def body(self) -> bytes:
        checksum = self.payload_checksum.to_bytes(16, "little")
        numbers = (self.updated_ns, self.header_length, self.payload_length, self.entries)
        return _CHUNK.pack(*numbers, checksum, self.buckets)

    @classmethod
    def of(cls, body: bytes) -> "ChunkState":
        updated_ns, header_length, payload_length, entries, payload_checksum, buckets = _CHUNK.unpack(body)
        checksum = int.from_bytes(payload_checksum, "little")
        return cls(updated_ns, header_length, payload_length, entries, checksum, buckets)

    def record(self, chunk_id: bytes, deleted: "DeletedState | None") -> ChunkRecord:
        bits = (deleted or DeletedState()).bits.ljust((self.entries + 7) // 8, b"\0")
        return ChunkRecord(
            chunk_id,
            max(self.updated_ns, deleted.updated_ns) if deleted else self.updated_ns,
            self.header_length,
            self.payload_length,
            self.payload_checksum,
            self.entries,
            int.from_bytes(bits, "little").bit_count(),
            bits,
        )


@dataclass(frozen=True, slots=True)
class DeletedState:
    """A deletion bitmap, cut after its last bit, and its last change. May exist before its chunk's record."""

    updated_ns: int = 0
    bits: bytes = b""

    def body(self) -> bytes:
        return _DELETED.pack(self.updated_ns) + self.bits

    @classmethod
    def of(cls, body: bytes) -> "DeletedState":
        (updated_ns,) = _DELETED.unpack_from(body)
        return cls(updated_ns, body[_DELETED.size :])

    def marked(self, entries: Sequence[int], now_ns: int) -> "DeletedState":
        bits = bytearray(self.bits.ljust(max(entries) // 8 + 1, b"\0"))
        for entry in entries:
            bits[entry // 8] |= 1 << entry % 8
        return DeletedState(now_ns, bytes(bits))


def number_body(number: int) -> bytes:
    return _NUMBER.pack(number)


def number_of(body: bytes) -> int:
    (number,) = _NUMBER.unpack(body)
    return int(number)


def receipt_body(effects: Effects[bytes]) -> bytes:
    dead = {chunk_id: struct.pack(f"<{len(rows)}I", *rows) for chunk_id, rows in effects.dead.items()}
    packed: bytes = msgpack.packb([effects.files, effects.total_bytes, dead, dict(effects.members)])
    return packed


def receipt_of(body: bytes) -> Effects[bytes]:
    files, total_bytes, dead, members = msgpack.unpackb(body, strict_map_key=False)
    effects: Effects[bytes] = Effects(files=files, total_bytes=total_bytes)
    effects.members.update(members)
    for chunk_id, rows in dead.items():
        effects.dead[chunk_id] = list(struct.unpack(f"<{len(rows) // 4}I", rows))
    return effects


def pending_body(preamble: Preamble, header: ChunkHeader, now_ns: int) -> bytes:
    """All that another server needs to finish the application of a chunk."""
    encoded = header.encode()
    return _PENDING.pack(now_ns, len(encoded)) + preamble.encode() + encoded


def pending_of(body: bytes, source: str) -> tuple[Preamble, ChunkHeader, int]:
    """`(preamble, header, now_ns)`. Raises Damaged."""
    now_ns, length = _PENDING.unpack_from(body)
    start = len(body) - length
    preamble = decode_preamble(body[_PENDING.size : start], source)
    encoded = body[start:]  # the same header as in the chunk, but perhaps not the same bytes
    own = replace(preamble, header_length=length, header_checksum=xxh3_64_intdigest(encoded))
    return preamble, decode_header(own, encoded, source), now_ns
