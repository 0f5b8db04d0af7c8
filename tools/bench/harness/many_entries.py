"""Millions of entries without chunks of their bytes: in the SQLite metadata of a server, written into its tables, or as
a builder of snapshots takes them.

Names and folders are those of ImageNet: `train/n00000042/n00000042_00001234.JPEG`, FILES_IN_FOLDER to a folder. Files
have FILE_BYTES each, FILES_IN_CHUNK to a chunk. A snapshot can be built and mounted; the files cannot be read.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from dieselfs.chunk.format import Op
from dieselfs.digests import EXTENT_DIGESTS, digest_of
from dieselfs.records import ChunkRecord, DatasetRecord, EntryTable, ExtentColumns

DATASET_ID = bytes(range(0x10, 0x20))
FILES_IN_FOLDER = 1280
FILE_BYTES = 100
FILES_IN_CHUNK = 32_768
_TIME_NS = 1_700_000_000 * 10**9
_FOLDERS_AT_ONCE = 800
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
            "INSERT INTO chunk VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            ((first + chunk, number, *record) for chunk, record in enumerate(_chunks(count))),
        )
        connection.executemany(_ENTRY, _entries(number, first, count))
        folders = -(-count // FILES_IN_FOLDER)
        counts = [min(FILES_IN_FOLDER, count - FILES_IN_FOLDER * folder) for folder in range(folders)]
        rows = [(number, b"train", b"n%08d" % folder, files) for folder, files in enumerate(counts)]
        connection.executemany(
            "INSERT INTO folder VALUES (?, ?, ?, ?)", [*rows, (number, b"", b"train", folders)]
        )


def _chunks(count: int) -> Iterator[ChunkRecord]:
    for chunk in range(-(-count // FILES_IN_CHUNK)):
        entries = min(FILES_IN_CHUNK, count - FILES_IN_CHUNK * chunk)
        chunk_id = (_TIME_NS // 10**9).to_bytes(4, "big") + (chunk + 1).to_bytes(12, "big")
        lengths = 100 * entries, FILE_BYTES * entries
        dead = bytes(-(-entries // 8))
        yield ChunkRecord(chunk_id, _TIME_NS, *lengths, digest_of(chunk_id), entries, 0, dead)


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


def entry_tables(name: str, count: int) -> Iterator[EntryTable]:
    """The same entries, block by block. Takes 0.5 us per file."""
    chunks = [*_chunks(count)]
    dataset = DatasetRecord(DATASET_ID, name, len(chunks), _TIME_NS, count, count * FILE_BYTES, len(chunks))
    at_once = _FOLDERS_AT_ONCE * FILES_IN_FOLDER
    nothing, none = np.empty(0, np.int64), np.empty(0, np.uint32)
    no_extents = ExtentColumns(
        nothing, np.empty(0, np.uint64), nothing, none, none, np.empty(0, EXTENT_DIGESTS)
    )
    for start in range(0, count, at_once):
        files = np.arange(start, min(start + at_once, count))
        folders = [b"n%08d" % (file // FILES_IN_FOLDER) for file in files.tolist()]
        digests = np.stack(
            (files.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15), files.astype(np.uint64)), axis=1
        )
        yield EntryTable(
            dataset,
            chunks,
            [b"train/" + folder for folder in folders],
            [b"%b_%08d.JPEG" % each for each in zip(folders, files.tolist(), strict=True)],
            np.full(len(files), Op.FILE, np.uint8),
            np.full(len(files), 0o644, np.uint32),
            _TIME_NS + files,
            np.full(len(files), FILE_BYTES, np.uint64),
            files // FILES_IN_CHUNK,
            (files % FILES_IN_CHUNK * FILE_BYTES).astype(np.uint32),
            digests.view(EXTENT_DIGESTS).reshape(-1),
            {},
            no_extents,
        )
