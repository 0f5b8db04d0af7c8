"""The parsers that the fuzzer tries: for each a name, a function of bytes, and valid inputs.

A function may raise DieselfsError, which is what a parser declares; anything else is a finding. Inputs with checksums
are also tried with the checksums made right, so that what is behind them is reached.
"""

import os
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from io import BytesIO
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from xxhash import xxh3_64_intdigest

from dieselfs.bucket.url import BucketUrl
from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.format import (
    Preamble,
    decode_chunk,
    decode_header,
    decode_preamble,
    decode_stored,
)
from dieselfs.chunk.frames import Compression, Frames, received, unpacking
from dieselfs.chunk.ids import parse_chunk_name
from dieselfs.chunk.source import AttachedSource
from dieselfs.cluster import node_messages
from dieselfs.cluster.member import Member
from dieselfs.digests import DIGEST_BYTES, digest_of
from dieselfs.fields import FieldsFault, pack_fields
from dieselfs.names import check_path, parse_location
from dieselfs.net.address import TcpAddress, parse_etcd, parse_servers
from dieselfs.net.auth import Key
from dieselfs.net.tls import certifying_pin
from dieselfs.rpc.members import decode_members, encode_members
from dieselfs.rpc.messages import decode_call, decode_reply, encode_call, encode_reply
from dieselfs.settings.table import Place, read_config
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.share_name import ShareName
from dieselfs.snapshot.delta import apply_delta, delta_between
from dieselfs.snapshot.delta_format import COLUMN_TYPES, Delta, decode_delta, encode_delta
from dieselfs.snapshot.erofs_image import ImageOwner, Serving
from dieselfs.snapshot.format import PREAMBLE_BYTES, decode_snapshot_header
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.signature import check_snapshot_signature
from dieselfs.snapshot.stored_image import METADATA_OFFSET, checksum_of, open_image, stored_image
from dieselfs.units import parse_duration, parse_rate, parse_size
from dieselfs_client.daemon.progress_keeper import parse_handover
from dieselfs_client.mount.points.mount_table import parse_mountinfo
from dieselfs_client.mount.points.options import MountOptions, parse_options
from dieselfs_client.supervision.status import parse_status
from dieselfs_server.access.certificates import certificate_of
from dieselfs_server.access.identity import Identity
from dieselfs_server.access.users import decode_accounts
from dieselfs_server.datasets.dataset_names import DatasetNames
from dieselfs_server.metadata.redis.client import parse_redis_url
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.opening import tier_options
from dieselfs_server.store.wrapper import read_marker
from fuzz.imports import IMPORT_TARGETS
from fuzz.libraries import LIBRARY_TARGETS
from fuzz.local import LOCAL_TARGETS
from fuzz.small_snapshot import DATASET_ID, small_snapshot
from fuzz.target import Target, of_text

SOURCE = "fuzzed"
_CHUNK_ID = bytes.fromhex("65920080 0242ac110002 00002a 000007".replace(" ", ""))


@cache
def _chunk() -> bytes:
    builder = ChunkBuilder()
    builder.add_directory(b"train", 0o755, 1)
    builder.add_file(b"train/cat.txt", b"meow\n", 0o644, 2)
    builder.add_file(b"train/empty", b"", 0o600, 3)
    builder.add_symlink(b"latest", b"train/cat.txt", 0o777, -1)
    builder.add_delete(b"train/dog.txt")
    return b"".join(builder.seal().encode(_CHUNK_ID, "pets", DATASET_ID, 1 << 60))


@cache
def _attached_chunk() -> bytes:
    """The object of an attached chunk, as a store has it."""
    builder = ChunkBuilder()
    builder.add_file(b"train/cat.txt", b"meow\n", 0o644, 2, offset=512)
    source = AttachedSource(b"/data/pets.tar", 10240, "mtime_ns=1600000000000000000")
    sealed = builder.seal(bytes(512) + b"meow\n", source)
    return b"".join(sealed.encode(_CHUNK_ID, "pets", DATASET_ID, 1 << 60))


@cache
def _compressed_chunk() -> bytes:
    builder = ChunkBuilder()
    builder.add_file(b"train/cat.txt", b"meow\n" * 2000, 0o644, 2)
    builder.add_file(b"train/noise", bytes(range(256)) * 16, 0o644, 3)
    sealed = builder.seal().compressed(Compression())
    return b"".join(sealed.encode(_CHUNK_ID, "pets", DATASET_ID, 1 << 60))


def _frames() -> tuple[Frames, bytes]:
    """The table of the compressed chunk, and its stored payload."""
    data, (_, header) = _compressed_chunk(), decode_stored(_compressed_chunk(), SOURCE)
    assert header.frames is not None
    return header.frames, data[-int(header.frames.stored_ends[-1]) :]


def _parse_resealed_frames(data: bytes) -> object:
    """With ends and digest of the stored payload made right."""
    table, stored = _frames()
    ends = table.stored_ends * len(data) // len(stored)
    changed = replace(table, stored_ends=ends, digest=digest_of(data))
    try:
        found = Frames.of_fields(changed.fields(), int(table.ends[-1]), len(data))
    except FieldsFault:
        return None
    return found.digest_of_plain(data, SOURCE)


def _received_frames() -> bytes:
    table, stored = _frames()
    packed = pack_fields(table.fields())
    return len(packed).to_bytes(2, "little") + packed + stored


def _parse_received_frames(data: bytes) -> object:
    """What a server sends of a compressed chunk, behind the length of the table."""
    room = memoryview(bytearray(int(_frames()[0].ends[-1])))
    table_length, content = int.from_bytes(data[:2], "little"), data[2:]
    bulk = received(len(content), table_length, len(room), lambda: iter([room]), SOURCE)
    next(bulk)[:] = content
    return next(bulk, None)


def _packed_frames() -> bytes:
    table, content = int.from_bytes(_received_frames()[:2], "little"), _received_frames()[2:]
    return table.to_bytes(4, "little") + content


def _parse_packed_frames(data: bytes) -> object:
    """What a file of the disk tier has of a compressed chunk."""
    length = int(_frames()[0].ends[-1])
    return unpacking(lambda at, size: data[at : at + size], len(data), length, SOURCE)(1, length - 1)


def _attached_header() -> bytes:
    header_length = decode_preamble(_attached_chunk(), SOURCE).header_length
    return _attached_chunk()[-header_length:]


def _parse_attached_header(data: bytes) -> object:
    preamble = Preamble(_CHUNK_ID, len(data), 517, bytes(DIGEST_BYTES), digest_of(data), is_attached=True)
    return decode_header(preamble, data, SOURCE)


def _chunk_header() -> bytes:
    preamble = decode_preamble(_chunk(), SOURCE)
    start = preamble.payload_start - preamble.header_length
    return _chunk()[start : preamble.payload_start]


def _parse_chunk_header(data: bytes) -> object:
    preamble = Preamble(_CHUNK_ID, len(data), 5, bytes(DIGEST_BYTES), digest_of(data))
    return decode_header(preamble, data, SOURCE)


def _parse_snapshot(data: bytes) -> object:
    snapshot = Snapshot(data, SOURCE)
    snapshot.verify()
    return [snapshot.stat(node) for node in snapshot.walk()]


def _parse_resealed_snapshot(data: bytes) -> object:
    """With length, digest and checksums made right."""
    if len(data) < PREAMBLE_BYTES:
        return None
    whole = bytearray(data)
    end = min(PREAMBLE_BYTES + int.from_bytes(whole[12:16], "little"), len(whole))
    struct.pack_into("<Q", whole, 16, len(whole))
    struct.pack_into("<Q", whole, 24, xxh3_64_intdigest(whole[PREAMBLE_BYTES:end]))
    whole[32:64] = digest_of(whole[PREAMBLE_BYTES:])
    struct.pack_into("<Q", whole, PREAMBLE_BYTES - 8, xxh3_64_intdigest(whole[: PREAMBLE_BYTES - 8]))
    return _parse_snapshot(bytes(whole))


@cache
def _delta() -> bytes:
    """From a generation without anything to that of `small_snapshot`."""
    delta = delta_between(Snapshot(_emptied(), SOURCE), Snapshot(small_snapshot(), SOURCE))
    assert delta is not None
    return encode_delta(delta)


@cache
def _emptied() -> bytes:
    """`small_snapshot` without its video."""
    snapshot = Snapshot(small_snapshot(), SOURCE)
    shorter = delta_between(snapshot, snapshot)
    assert shorter is not None
    removed = np.array([snapshot.require(b"train/video")])
    return _applied(snapshot, replace(shorter, columns={**shorter.columns, "removed": removed}))


def _applied(base: Snapshot, delta: Delta) -> bytes:
    file = BytesIO()
    apply_delta(base, delta, SOURCE, file)
    return file.getvalue()


def _parse_delta(data: bytes) -> object:
    return _parse_snapshot(_applied(Snapshot(_emptied(), SOURCE), decode_delta(data, SOURCE)))


def _joined_columns() -> bytes:
    columns = decode_delta(_delta(), SOURCE).columns
    return b"".join(columns[name].tobytes() for name in COLUMN_TYPES)


def _parse_delta_columns(data: bytes) -> object:
    """Columns of any content, cut from the data in turn."""
    base = Snapshot(_emptied(), SOURCE)
    delta = decode_delta(_delta(), SOURCE)
    columns, position = dict(delta.columns), 0
    for name, dtype in COLUMN_TYPES.items():
        length = min(columns[name].nbytes, len(data) - position) // dtype.itemsize * dtype.itemsize
        columns[name] = np.frombuffer(data[position : position + length], dtype)
        position += length
    return _parse_snapshot(_applied(base, replace(delta, columns=columns)))


def _parse_signature(data: bytes) -> None:
    header = decode_snapshot_header(data, len(data), SOURCE)
    check_snapshot_signature(header, SOURCE)


def _record(name: str, read: Callable[[MemoryStore], object]) -> Callable[[bytes], object]:
    """A parser of the record `name` of an object store."""

    def parse(data: bytes) -> object:
        store = MemoryStore()
        store.put_record(name, data)
        return read(store)

    return parse


@cache
def _name_record() -> tuple[str, bytes]:
    store = MemoryStore()
    DatasetNames(store).claim("pets", DATASET_ID)
    (name,) = store.list_records("dataset-")
    return name, store.get_record(name) or b""


def _parse_config(data: bytes) -> object:
    with NamedTemporaryFile(suffix=".toml") as file:
        file.write(data)
        file.flush()
        return read_config(Path(file.name), Place.CONFIG)


@cache
def _image() -> bytes:
    """The stored image of `small_snapshot`."""
    snapshot = Snapshot(small_snapshot(), SOURCE)
    is_guarded = np.zeros(len(snapshot), np.bool_)
    image, descriptor = stored_image(snapshot, ImageOwner(0, 0), Serving(b".dieselfs", is_guarded))
    image.fill(0, len(image.metadata))
    try:
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)


def _parse_image(data: bytes) -> object:
    descriptor = os.memfd_create("fuzz")
    try:
        os.write(descriptor, data)
        return open_image(descriptor)
    finally:
        os.close(descriptor)


def _parse_resealed_image(data: bytes) -> object:
    """With the checksum made right."""
    if len(data) < METADATA_OFFSET:
        return _parse_image(data)
    return _parse_image(data[:8] + checksum_of(memoryview(data)) + data[24:])


_MEMBER = Member("n1", 0, TcpAddress("10.0.0.1", 7070), 1 << 30, bytes(16)).encode()
_IDENTITY = Identity(bytes(32), bytes(32))
_SERVER_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
_MOUNTINFO = (
    b"36 35 0:32 / /mnt/pets\\040x ro,nosuid shared:1 - fuse.dieselfs dl://pets ro,user_id=0\n"
    b"37 35 8:1 / / rw - ext4 /dev/root rw\n"
)

TARGETS = (
    Target("chunk", lambda data: decode_chunk(data, SOURCE), [_chunk()]),
    Target("chunk-header", _parse_chunk_header, [_chunk_header()]),
    Target("attached-chunk", lambda data: decode_stored(data, SOURCE), [_attached_chunk(), _chunk()]),
    Target("attached-chunk-header", _parse_attached_header, [_attached_header()]),
    Target("compressed-chunk", lambda data: decode_stored(data, SOURCE), [_compressed_chunk()]),
    Target("compressed-frames", _parse_resealed_frames, [_frames()[1]]),
    Target("received-frames", _parse_received_frames, [_received_frames()]),
    Target("packed-frames", _parse_packed_frames, [_packed_frames()]),
    Target("chunk-name", of_text(parse_chunk_name), [b"OO7-V-81f03--V--9V--0k"]),
    Target("snapshot", _parse_snapshot, [small_snapshot()]),
    Target("snapshot-resealed", _parse_resealed_snapshot, [small_snapshot()]),
    Target("snapshot-delta", _parse_delta, [_delta()]),
    Target("snapshot-delta-columns", _parse_delta_columns, [_joined_columns()]),
    Target("snapshot-signature", _parse_signature, [small_snapshot()]),
    Target(
        "call",
        decode_call,
        [
            encode_call("get_dataset", 1, {"name": "pets"}),
            encode_call("put_chunk", 2, {"dataset": "pets", "chunk_id": _CHUNK_ID, "bulk_length": 9}),
        ],
    ),
    Target(
        "reply",
        lambda data: decode_reply("reserve_versions", 3, data),
        [encode_reply("reserve_versions", 3, 7)],
    ),
    Target("member", Member.of, [_MEMBER]),
    Target("members", decode_members, [encode_members([_MEMBER, _MEMBER])]),
    Target(
        "node-message",
        node_messages.decode,
        [node_messages.encode(1, each) for each in (node_messages.ChunkRequest(2, 3), node_messages.Hello())],
    ),
    Target("cursor", of_text(Cursor.parse), [b"order1.0123456789abcdef01234567.s1.e0.g100.p4096.aaaaaaaa"]),
    Target("plan", ShareName.parse, [b"seed=1,epoch=0,rank=0,world=2", b"seed=3"]),
    Target("location", of_text(parse_location), [b"dl://pets@v1/train/cat.txt", b"dl://pets"]),
    Target("path", check_path, [b"train/cat.txt"]),
    Target(
        "servers",
        of_text(parse_servers),
        [b"tcp://a:7070,tcp://[::1]:1", b"unix:/run/x", b"etcd://a:2379,b:1"],
    ),
    Target("etcd-address", of_text(parse_etcd), [b"a:2379,b:2379"]),
    Target(
        "bucket-url",
        of_text(lambda text: BucketUrl.parse(f"s3:{text}")),
        [b"//bucket/a/prefix?endpoint=https://h:7480&region=eu-1&ca=/ca.pem", b"//[::1]/x"],
    ),
    Target(
        "tier-options",
        of_text(tier_options),
        [b"tiered:fast=posix:///a,slow=s3://b/c?endpoint=http://d,size=1GiB"],
    ),
    Target(
        "redis-url",
        of_text(lambda text: parse_redis_url(f"rediss:{text}")),
        [b"//user@host:1/2?prefix=a", b"//[::1]:1,b"],
    ),
    Target("size", of_text(parse_size), [b"1.5G", b"10MiB"]),
    Target("rate", of_text(parse_rate), [b"10MiB/s"]),
    Target("duration", of_text(parse_duration), [b"1h30m", b"500ms"]),
    Target(
        "mount-options",
        of_text(lambda text: parse_options(text, MountOptions())),
        [b"ro,memory=1G,job=x,uid=1000,noexec", b"server=tcp://a:1,generation=7,timeout=30s"],
    ),
    Target("mountinfo", lambda data: list(parse_mountinfo(data)), [_MOUNTINFO]),
    Target(
        "key-file",
        of_text(lambda text: Key.parse(text, SOURCE)),
        [Key("ann", "k1", bytes(32)).text().encode()],
    ),
    Target("config", _parse_config, [b'server = "tcp://a:7070"\njob_memory = "1G"\n']),
    Target(
        "users",
        decode_accounts,
        [
            b'{"format": 1, "users": {"ann": {"keys": {}, "grants": {"pets": "read"}}}}',
            b'{"format": 2, "users": {"ann": {"keys": {"1": {"verifier": "00", "server_key": "00", "created_s": 1, '
            b'"expires_s": 2}}, "grants": {}}}, "groups": {"g": {"members": ["ann"], "grants": {"pets": "read"}}}, '
            b'"quotas": {"ann": {"files": 9, "stored_bytes": 1}}, "owners": {"pets": "ann"}}',
        ],
    ),
    Target("identity", Identity.decode, [_IDENTITY.encode(), _IDENTITY.encode_public(_IDENTITY)]),
    Target(
        "certificate",
        certifying_pin,
        [certificate_of(_SERVER_KEY, _IDENTITY, 0.0).public_bytes(Encoding.DER)],
    ),
    Target(
        "dataset-name",
        _record(_name_record()[0], lambda store: DatasetNames(store).find("pets")),
        [_name_record()[1]],
    ),
    Target("marker", _record("store", read_marker), [b'{"format": 1, "id": "00"}']),
    Target("image", _parse_image, [_image()]),
    Target("image-resealed", _parse_resealed_image, [_image()]),
    Target("handover", parse_handover, [b'{"readings": [], "pinned": [1, 2], "files": []}']),
    Target("supervisor-status", parse_status, [b'{"pid": 1, "mountpoint": "/mnt"}']),
    *LOCAL_TARGETS,
    *IMPORT_TARGETS,
    *LIBRARY_TARGETS,
)
