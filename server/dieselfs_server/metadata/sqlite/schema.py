"""The tables of the SQLite metadata store. No I/O.

`docs/reference/metadata-keys.md` explains how the tables work together. The digest of a file's bytes is stored as two
numbers, its halves, because `group_concat` joins numbers.
"""

import re
from collections.abc import Container, Iterator

from dieselfs.chunk.format import PREAMBLE_BYTES

APPLICATION_ID = 0x44534C4D  # "DSLM"; `file` shows it; distinguishes our databases from others
SCHEMA_VERSION = 4
OLDEST_VERSION = 3
"""Databases since then are upgraded. Those of version 3 may lack the last tables and the triggers."""

_BYTES = f"{PREAMBLE_BYTES} + {{row}}header_length + {{row}}payload_length"

TABLES = (
    """
    -- One row per dataset. Each transaction that changes entries also updates the totals.
    CREATE TABLE dataset (
        number        INTEGER PRIMARY KEY AUTOINCREMENT,  -- identifies the dataset in other tables; never reused
        dataset_id    BLOB NOT NULL UNIQUE,               -- 16 bytes
        name          TEXT NOT NULL UNIQUE,               -- with a slash: a copy that a rebuild makes (store.py)
        generation    INTEGER NOT NULL DEFAULT 0,         -- chunks applied for the first time, ever
        updated_ns    INTEGER NOT NULL DEFAULT 0,         -- when the generation last rose, since 1970; 0: never
        files         INTEGER NOT NULL DEFAULT 0,         -- live entries that are files
        total_bytes   INTEGER NOT NULL DEFAULT 0,         -- their sizes together
        chunks        INTEGER NOT NULL DEFAULT 0,         -- rows in `chunk`
        last_version  INTEGER NOT NULL DEFAULT 0          -- largest version reserved or applied
    ) STRICT
    """,
    """
    -- One row per applied chunk.
    CREATE TABLE chunk (
        number            INTEGER PRIMARY KEY AUTOINCREMENT,  -- identifies the chunk in the tables below
        dataset           INTEGER NOT NULL,
        chunk_id          BLOB NOT NULL,                      -- 16 bytes
        updated_ns        INTEGER NOT NULL,                   -- when it was applied, or `deleted` last changed
        header_length     INTEGER NOT NULL,                   -- bytes
        payload_length    INTEGER NOT NULL,                   -- bytes
        payload_digest    BLOB NOT NULL,                      -- 32 bytes
        entries           INTEGER NOT NULL,
        deleted_entries   INTEGER NOT NULL DEFAULT 0,         -- bits set in `deleted`
        deleted           BLOB NOT NULL,                      -- bit i % 8 of byte i / 8: entry i is dead
        UNIQUE (dataset, chunk_id)
    ) STRICT
    """,
    """
    -- One row per live path: a folder's entries are one range. The root is folder '' and name ''.
    CREATE TABLE entry (
        dataset   INTEGER NOT NULL,
        folder    BLOB NOT NULL,
        name      BLOB NOT NULL,
        version   INTEGER NOT NULL,
        op        INTEGER NOT NULL,   -- chunk.format.Op, never DELETE
        mode      INTEGER NOT NULL,
        mtime_ns  INTEGER NOT NULL,
        size      INTEGER NOT NULL,   -- bytes; 0 unless it is a file
        chunk     INTEGER,            -- chunk.number; NULL: a file that spans chunks, see `piece`
        entry     INTEGER,            -- which entry of that chunk; NULL with `chunk`
        offset    INTEGER NOT NULL,   -- of a file's bytes in the payload; else 0
        digest_a  INTEGER NOT NULL,   -- of a file's bytes, the first 8 bytes as a signed little-endian number; else 0
        digest_b  INTEGER NOT NULL,   -- the last 8 bytes
        target    BLOB,               -- of a symbolic link; else NULL
        PRIMARY KEY (dataset, folder, name)
    ) STRICT, WITHOUT ROWID
    """,
    """
    -- One row per path whose largest version is a delete. A path is in `entry` or here, never in both.
    CREATE TABLE tombstone (
        dataset  INTEGER NOT NULL,
        folder   BLOB NOT NULL,
        name     BLOB NOT NULL,
        version  INTEGER NOT NULL,
        chunk    INTEGER NOT NULL,
        entry    INTEGER NOT NULL,
        PRIMARY KEY (dataset, folder, name)
    ) STRICT, WITHOUT ROWID
    """,
    """
    -- Extents of files that span chunks, also of incomplete files, if they belong to the path's row in `entry` or are
    -- newer than its row in `entry` or `tombstone`. Of copies of an extent, the one in the chunk with the largest ID.
    CREATE TABLE piece (
        dataset   INTEGER NOT NULL,
        folder    BLOB NOT NULL,
        name      BLOB NOT NULL,
        version   INTEGER NOT NULL,
        size      INTEGER NOT NULL,   -- of the whole file
        place     INTEGER NOT NULL,   -- of the extent in the file
        length    INTEGER NOT NULL,
        chunk     INTEGER NOT NULL,
        entry     INTEGER NOT NULL,
        offset    INTEGER NOT NULL,
        digest_a  INTEGER NOT NULL,
        digest_b  INTEGER NOT NULL,
        mode      INTEGER NOT NULL,
        mtime_ns  INTEGER NOT NULL,
        in_use    INTEGER NOT NULL DEFAULT 0,  -- 1: the live file is read from this extent
        PRIMARY KEY (dataset, folder, name, version, size, place, length)
    ) STRICT, WITHOUT ROWID
    """,
    """
    -- One row per file that spans chunks: its extents can cover it only when `gathered` has reached `size`.
    CREATE TABLE assembly (
        dataset   INTEGER NOT NULL,
        folder    BLOB NOT NULL,
        name      BLOB NOT NULL,
        version   INTEGER NOT NULL,
        size      INTEGER NOT NULL,
        gathered  INTEGER NOT NULL,   -- sum of the lengths of its rows in `piece`
        PRIMARY KEY (dataset, folder, name, version, size)
    ) STRICT, WITHOUT ROWID
    """,
    """
    -- One row per note: a small value that no chunk has, such as a lease.
    CREATE TABLE note (
        dataset  INTEGER NOT NULL,
        name     TEXT NOT NULL,
        value    BLOB NOT NULL,
        PRIMARY KEY (dataset, name)
    ) STRICT, WITHOUT ROWID
    """,
    """
    -- One row per non-empty folder, with or without an entry of its own; none for the root.
    CREATE TABLE folder (
        dataset  INTEGER NOT NULL,
        parent   BLOB NOT NULL,
        name     BLOB NOT NULL,
        members  INTEGER NOT NULL,    -- live entries and rows of this table directly in it; never 0
        PRIMARY KEY (dataset, parent, name)
    ) STRICT, WITHOUT ROWID
    """,
    """
    -- One row per dataset with chunks: the bytes of all its chunks, which the triggers count.
    CREATE TABLE stored (
        dataset  INTEGER PRIMARY KEY,
        bytes    INTEGER NOT NULL
    ) STRICT
    """,
    f"""
    CREATE TRIGGER chunk_added AFTER INSERT ON chunk BEGIN
        INSERT INTO stored VALUES (new.dataset, {_BYTES.format(row="new.")})
        ON CONFLICT (dataset) DO UPDATE SET bytes = bytes + excluded.bytes;
    END
    """,
    f"""
    CREATE TRIGGER chunk_removed AFTER DELETE ON chunk BEGIN
        UPDATE stored SET bytes = bytes - ({_BYTES.format(row="old.")}) WHERE dataset = old.dataset;
    END
    """,
    """
    -- One row per dataset with chunks; out of date if its generation is not that of the dataset.
    CREATE TABLE counted (
        dataset     INTEGER PRIMARY KEY,
        generation  INTEGER NOT NULL,
        entries     INTEGER NOT NULL,   -- rows in `entry`
        folders     INTEGER NOT NULL    -- rows in `folder`
    ) STRICT
    """,
)

FILLED = {
    "stored": f"INSERT INTO stored SELECT dataset, sum({_BYTES.format(row='')}) FROM chunk GROUP BY dataset",
    "counted": """
    INSERT INTO counted SELECT number, generation, (SELECT count(*) FROM entry WHERE dataset = number),
        (SELECT count(*) FROM folder WHERE dataset = number) FROM dataset WHERE chunks > 0
    """,
}
"""What an upgrade puts into tables that it makes."""

_NAME = re.compile(r"CREATE (?:TABLE|TRIGGER) (\w+)")


def missing(present: Container[str]) -> Iterator[str]:
    """The statements that make the tables and triggers that are not `present`, with what is in them."""
    for statement in TABLES:
        if (found := _NAME.search(statement)) is not None and found[1] not in present:
            yield statement
            if found[1] in FILLED:
                yield FILLED[found[1]]


COMMON = 0
"""In place of the number of a dataset: of notes that belong to none."""

DATASET_TABLES = {
    "entry": "dataset, folder, name",
    "tombstone": "dataset, folder, name",
    "piece": "dataset, folder, name, version, size, place, length",
    "assembly": "dataset, folder, name, version, size",
    "folder": "dataset, parent, name",
    "chunk": "number",
    "note": "dataset, name",
    "stored": "dataset",
    "counted": "dataset",
}
"""Tables with a column `dataset`, and their primary keys."""

STAGED = """
-- The entries of the chunk that is being applied; belongs to the connection, empty between transactions.
CREATE TEMPORARY TABLE staged (
    folder    BLOB NOT NULL,
    name      BLOB NOT NULL,
    entry     INTEGER NOT NULL,
    version   INTEGER NOT NULL,
    op        INTEGER NOT NULL,
    mode      INTEGER NOT NULL,
    mtime_ns  INTEGER NOT NULL,
    size      INTEGER NOT NULL,
    offset    INTEGER NOT NULL,
    digest_a  INTEGER NOT NULL,
    digest_b  INTEGER NOT NULL,
    target    BLOB,
    PRIMARY KEY (folder, name)
) WITHOUT ROWID
"""


CHANGED = """
-- The folders of one depth whose members change; as `staged`.
CREATE TEMPORARY TABLE changed (
    parent    BLOB NOT NULL,
    name      BLOB NOT NULL,
    change    INTEGER NOT NULL,   -- of their number, never 0
    PRIMARY KEY (parent, name)
) WITHOUT ROWID
"""
