"""Millions of entries in the SQLite metadata of a server, written into its tables, without chunks of their bytes.

Names and folders are those of ImageNet: `train/n00000042/n00000042_00001234.JPEG`, FILES_IN_FOLDER to a folder. Files
have FILE_BYTES each, FILES_IN_CHUNK to a chunk. A snapshot can be built and mounted; the files cannot be read.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from dieselfs.chunk.format import Op
from dieselfs.digests import digest_of

DATASET_ID = bytes(range(0x10, 0x20))
FILES_IN_FOLDER = 1280
FILE_BYTES = 100
FILES_IN_CHUNK = 32_768
_TIME_NS = 1_700_000_000 * 10**9
_ENTRY = f"INSERT INTO entry VALUES (?, ?, ?, ?, {int(Op.FILE)}, 420, ?, {FILE_BYTES}, ?, ?, ?, ?, ?, NULL)"


def add_entries(database: Path, name: str, count: int) -> None:
    """Fill an existing database, which no server has open, with a dataset of `count` files. Takes 3 us per file."""
    chunks = -(-count // FILES_IN_CHUNK)
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        number = connection.execute(
            "INSERT INTO dataset (dataset_id, name, generation, updated_ns, files, total_bytes, chunks, last_version) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (DATASET_ID, name, chunks, _TIME_NS, count, count * FILE_BYTES, chunks, count),
        ).lastrowid
        assert number is not None
        first = connection.execute("SELECT ifnull(max(number), 0) + 1 FROM chunk").fetchone()[0]
        connection.executemany(
            "INSERT INTO chunk VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, ?)", _chunks(number, first, count)
        )
        connection.executemany(_ENTRY, _entries(number, first, count))
        folders = -(-count // FILES_IN_FOLDER)
        counts = [min(FILES_IN_FOLDER, count - FILES_IN_FOLDER * folder) for folder in range(folders)]
        rows = [(number, b"train", b"n%08d" % folder, files) for folder, files in enumerate(counts)]
        connection.executemany(
            "INSERT INTO folder VALUES (?, ?, ?, ?)", [*rows, (number, b"", b"train", folders)]
        )


def _chunks(number: int, first: int, count: int) -> Iterator[tuple[object, ...]]:
    for chunk in range(-(-count // FILES_IN_CHUNK)):
        entries = min(FILES_IN_CHUNK, count - FILES_IN_CHUNK * chunk)
        chunk_id = (_TIME_NS // 10**9).to_bytes(4, "big") + (chunk + 1).to_bytes(12, "big")
        lengths = 100 * entries, FILE_BYTES * entries
        dead = bytes(-(-entries // 8))
        yield first + chunk, number, chunk_id, _TIME_NS, *lengths, digest_of(chunk_id), entries, dead


def _entries(number: int, first: int, count: int) -> Iterator[tuple[object, ...]]:
    for start in range(0, count, FILES_IN_FOLDER):
        name = b"n%08d" % (start // FILES_IN_FOLDER)
        folder = b"train/" + name
        for file in range(start, min(start + FILES_IN_FOLDER, count)):
            chunk, entry = divmod(file, FILES_IN_CHUNK)
            digest = file * 0x9E3779B97F4A7C15 & 0x7FFF_FFFF_FFFF_FFFF
            yield (
                number,
                folder,
                b"%b_%08d.JPEG" % (name, file),
                file + 1,
                _TIME_NS + file,
                first + chunk,
                entry,
                entry * FILE_BYTES,
                digest,
                -digest,
            )
