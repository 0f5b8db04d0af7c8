"""The values in Redis, sealed with a checksum each: bytes in, records out. No I/O.

A seal is the xxh3 of `name NUL body`, seeded with the key: a value that was altered, or that stands in another's place,
is noticed when it is read. A seal also stands for its value when a change is made on condition that nothing changed
meanwhile.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgpack
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from dieselfs.chunk.format import ChunkHeader, Preamble, decode_header, decode_preamble
from dieselfs.errors import Damaged
from dieselfs.meta.records import ChunkRecord, DatasetRecord
from dieselfs.names import printable
from dieselfs_server.metadata.effects import Effects
from dieselfs_server.metadata.redis_keys import BUCKETS, TOKEN_BYTES, Drawer

SEAL_BYTES = 8
_REGISTERED = struct.Struct(f"<16s{TOKEN_BYTES}s")
_DATASET = struct.Struct("<16sqqqqq?")
_CHUNK = struct.Struct(f"<qIII16s{BUCKETS // 8}s")
_DELETED = struct.Struct("<q")
_NUMBER = struct.Struct("<q")
_PENDING = struct.Struct("<qI")


def seal(drawer: Drawer, name: bytes, body: bytes) -> bytes:
    """The value that keeps `body` under `name`."""
    return body + xxh3_64_digest(name + b"\0" + body, drawer.seed)


def unseal(drawer: Drawer, name: bytes, value: bytes) -> bytes:
    """What `seal` was given. Raises Damaged."""
    body = value[:-SEAL_BYTES]
    if xxh3_64_digest(name + b"\0" + body, drawer.seed) != value[-SEAL_BYTES:]:
        raise damage(drawer, name)
    return body


def damage(drawer: Drawer, name: bytes) -> Damaged:
    mend = (
        f"`dlcmd rebuild {drawer.owner}`"
        if drawer.owner.startswith("dl://")
        else "`dlcmd rebuild` of each dataset"
    )
    return Damaged(
        f"metadata in Redis: key {printable(drawer.key)}: the value of {printable(name)!r} is not what was "
        f"written; {mend} makes it anew from the chunks"
    )


@dataclass(frozen=True, slots=True)
class Registered:
    """What the list of datasets says about one."""

    dataset_id: bytes
    token: bytes

    def body(self) -> bytes:
        return _REGISTERED.pack(self.dataset_id, self.token)

    @classmethod
    def of(cls, body: bytes) -> "Registered":
        return cls(*_REGISTERED.unpack(body))


@dataclass(frozen=True, slots=True)
class DatasetState:
    """A dataset's record. `is_dropped`: the dataset is gone, and its keys are just being removed."""

    record: DatasetRecord
    is_dropped: bool = False

    def body(self) -> bytes:
        r = self.record
        numbers = (r.generation, r.updated_ns, r.files, r.total_bytes, r.chunks)
        return _DATASET.pack(r.dataset_id, *numbers, self.is_dropped) + r.name.encode()

    @classmethod
    def of(cls, body: bytes) -> "DatasetState":
        dataset_id, generation, updated_ns, files, total_bytes, chunks, is_dropped = _DATASET.unpack_from(
            body
        )
        name = body[_DATASET.size :].decode()
        return cls(
            DatasetRecord(dataset_id, name, generation, updated_ns, files, total_bytes, chunks), is_dropped
        )


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
        return _CHUNK.pack(
            self.updated_ns,
            self.header_length,
            self.payload_length,
            self.entries,
            self.payload_checksum.to_bytes(16, "little"),
            self.buckets,
        )

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
    """A deletion bitmap, as long as its last bit needs, and when it last changed. May be there before its chunk."""

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
    """All that is needed to finish what another server began to apply."""
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
