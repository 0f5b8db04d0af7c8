"""Chunks with any header, also an invalid one, and a preamble with correct digests."""

from typing import Any

import msgpack
import numpy as np

from dieselfs.chunk.builder import ChunkBuilder, SealedChunk
from dieselfs.chunk.format import COLUMN_TYPES, Op, Preamble
from dieselfs.chunk.frames import Compression
from dieselfs.chunk.source import AttachedSource
from dieselfs.digests import NO_DIGEST, digest_of, extent_digest_of

CHUNK_ID = bytes.fromhex("65920080 0242ac110002 00002a 000007".replace(" ", ""))
DATASET_ID = bytes(range(0xA0, 0xB0))
FIRST_VERSION = 1_700_000_000_000_000_000


def sample_builder() -> ChunkBuilder:
    """Two files (one of them empty), a folder, a link and a delete."""
    builder = ChunkBuilder()
    builder.add_directory(b"train", 0o755, 1_600_000_000_000_000_000)
    builder.add_file(b"train/cat.txt", b"meow\n", 0o644, 1_600_000_000_000_000_001)
    builder.add_file(b"train/empty", b"", 0o600, 1_600_000_000_000_000_002)
    builder.add_symlink(b"latest", b"train/cat.txt", 0o777, -1)
    builder.add_delete(b"train/dog.txt")
    return builder


def sample_chunk() -> bytes:
    return b"".join(sample_builder().seal().encode(CHUNK_ID, "pets", DATASET_ID, FIRST_VERSION))


SOURCE = AttachedSource(b"/data/pets.tar", 10_240, "mtime_ns=1600000000000000000", 512)
SOURCE_PAYLOAD = b"meow\n" + bytes(507) + b"woof\n"


def attached_chunk() -> bytes:
    """Two members of a tar file, with the bytes of the format between them, and a folder; the object in the store."""
    builder = ChunkBuilder()
    builder.add_directory(b"train", 0o755, 1_600_000_000_000_000_000)
    builder.add_file(b"train/cat.txt", b"meow\n", 0o644, 1_600_000_000_000_000_001, offset=0)
    builder.add_file(b"train/dog.txt", b"woof\n", 0o644, 1_600_000_000_000_000_002, offset=512)
    sealed = builder.seal(SOURCE_PAYLOAD, SOURCE)
    return b"".join(sealed.encode(CHUNK_ID, "pets", DATASET_ID, FIRST_VERSION))


MEOWS = b"meow\n" * 40


def compressed_sealed() -> SealedChunk:
    """A file that shrinks to one frame."""
    builder = ChunkBuilder()
    builder.add_file(b"train/cats.txt", MEOWS, 0o644, 1_600_000_000_000_000_001)
    return builder.seal().compressed(Compression())


def compressed_chunk() -> bytes:
    """The object in the store."""
    return b"".join(compressed_sealed().encode(CHUNK_ID, "pets", DATASET_ID, FIRST_VERSION))


def sample_fields(payload: bytes = b"meow\n") -> dict[str, Any]:
    """The fields of a header with a folder `d`, a file `d/f` that is the payload, and a link `l` to `d`."""
    paths = [b"d", b"d/f", b"l"]
    columns: dict[str, list[Any]] = {
        "ops": [Op.DIRECTORY, Op.FILE, Op.SYMLINK],
        "modes": [0o755, 0o644, 0o777],
        "mtimes_ns": [1, 2, 3],
        "sizes": [0, len(payload), 0],
        "places": [0, 0, 0],
        "offsets": [0, 0, 0],
        "lengths": [0, len(payload), 1],
        "digests": [NO_DIGEST, extent_digest_of(payload), extent_digest_of(b"d")],
        "versions": [7, 8, 9],
    }
    return {
        "dataset": "pets",
        "dataset_id": DATASET_ID,
        "count": len(paths),
        "paths": b"".join(paths),
        "targets": b"d",
        "path_ends": column("<u4", np.cumsum([len(path) for path in paths]).tolist()),
        **{name: column(COLUMN_TYPES[name].str, values) for name, values in columns.items()},
    }


def column(dtype: str, values: list[Any]) -> bytes:
    return np.array(values, dtype).tobytes()


def with_number(fields: dict[str, Any], name: str, entry: int, value: int | bytes) -> dict[str, Any]:
    """The fields with one number of one column changed."""
    values = np.frombuffer(fields[name], "<u4" if name == "path_ends" else COLUMN_TYPES[name]).copy()
    values[entry] = value
    return {**fields, name: values.tobytes()}


def chunk_object(
    fields: dict[str, Any] | bytes, payload: bytes = b"meow\n", chunk_id: bytes = CHUNK_ID
) -> bytes:
    """A chunk with this header (packed, or as fields) and this payload; all digests are correct."""
    header = fields if isinstance(fields, bytes) else msgpack.packb(fields)
    preamble = Preamble(chunk_id, len(header), len(payload), digest_of(payload), digest_of(header))
    return preamble.encode() + header + payload
