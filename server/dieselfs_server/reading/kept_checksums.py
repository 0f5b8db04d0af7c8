"""Checksums of blocks that outlive the server: then the first small read of a chunk does not read all of it.

A cache on the disk of this server, which its workers share: a table of SQLite with the last KEPT_MAX chunks, 2 KiB for
one of 4 MiB. What it lacks is worked out again.
"""

import logging
import sqlite3
from pathlib import Path
from threading import Lock

from dieselfs.cache.policy import LARGE_EXTENT_BYTES
from dieselfs.chunk.blocks import block_checksums
from dieselfs.chunk.format import ChunkHeader, Preamble

KEPT_MAX = 262_144
"""Chunks: 1 TiB of large files, for 0.6 GB of disk."""
BUSY_S = 1.0
"""How long a worker waits for another one that writes."""
MEMORY = Path(":memory:")

log = logging.getLogger(__name__)


class KeptChecksums:
    """Blocks; thread-safe. Raises nothing: after an error nothing is kept, and nothing is found."""

    def __init__(self, path: Path = MEMORY, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._lock = Lock()
        self._table: sqlite3.Connection | None = None
        try:
            self._table = _opened(path)
        except (OSError, sqlite3.Error) as error:
            log.warning("%s: %s: checksums of blocks are not kept", path, error)

    def get(self, dataset_id: bytes, chunk_id: bytes) -> bytes | None:
        """As `put` was given; None if there are none."""
        key = dataset_id + chunk_id
        found = self._run([("select content from checksums where key = ?", (key,))])
        return found[0][0] if found else None

    def put(self, dataset_id: bytes, chunk_id: bytes, checksums: bytes) -> None:
        """Keep the checksums (u64) of all blocks of a payload."""
        key, oldest = dataset_id + chunk_id, "(select max(number) from checksums) - ?"
        self._run(
            [
                ("insert or ignore into checksums (key, content) values (?, ?)", (key, checksums)),
                (f"delete from checksums where number <= {oldest}", (self._kept_max,)),
            ]
        )

    def note_stored(
        self, dataset_id: bytes, preamble: Preamble, header: ChunkHeader, chunk: bytes | bytearray
    ) -> None:
        """Keep those of a chunk that was verified and stored, if it has large extents."""
        is_plain = preamble.stored_length == preamble.object_length
        if is_plain and int(header.lengths.max(initial=0)) >= LARGE_EXTENT_BYTES:
            payload = memoryview(chunk)[preamble.payload_start :]
            self.put(dataset_id, preamble.chunk_id, block_checksums(payload).astype("<u8").tobytes())

    def close(self) -> None:
        with self._lock:
            table, self._table = self._table, None
            if table is not None:
                table.close()

    def _run(self, statements: list[tuple[str, tuple[object, ...]]]) -> list[tuple[bytes]]:
        """The rows of the last one, of one transaction."""
        with self._lock:
            if self._table is None:
                return []
            try:
                with self._table as table:
                    return [table.execute(*statement).fetchall() for statement in statements][-1]
            except sqlite3.Error as error:
                log.warning("checksums of blocks: %s", error)
                return []


def _opened(path: Path) -> sqlite3.Connection:
    """Raises OSError, sqlite3.Error."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    table = sqlite3.connect(path, timeout=BUSY_S, check_same_thread=False)
    # No write waits for the disk. A power cut loses the last ones.
    for setting in ("pragma journal_mode = wal", "pragma synchronous = normal"):
        table.execute(setting)
    columns = "number integer primary key, key blob unique, content blob"
    table.execute(f"create table if not exists checksums ({columns})")
    return table
