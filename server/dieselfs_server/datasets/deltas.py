"""The deltas to the snapshots in a folder. This module reads and writes files.

Those that were sent stay in memory. The delta from each generation to the next, a step, is in a file, which outlives
both snapshots. So a client that lacks some generations gets a delta along the steps, in the time of the changes, from
any process of the server.
"""

from contextlib import suppress
from pathlib import Path

from dieselfs.digests import DIGEST_BYTES, digest_of
from dieselfs.errors import Damaged
from dieselfs.snapshot.delta import delta_along, delta_between
from dieselfs.snapshot.delta_format import Delta, decode_delta, encode_delta
from dieselfs.snapshot.files import put_file
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.splicing import Columns

DELTAS_KEPT = 4
"""Over all datasets; many clients ask for the same ones. Each has at most half the bytes of its snapshot."""
STEPS_KEPT = 64
"""Per dataset."""
COMPARED_NODES_MAX = 20_000_000
"""Larger snapshots are not compared: that takes 97 bytes of memory for each node."""


def write_sealed(path: Path, content: bytes) -> None:
    """Write a file with the BLAKE3 of its content before it. Raises OSError."""
    put_file(path, digest_of(content) + content)


def read_sealed(path: Path) -> bytes:
    """The content of such a file. Raises OSError; Damaged if it was written before a power cut."""
    content = path.read_bytes()
    if digest_of(content[DIGEST_BYTES:]) != content[:DIGEST_BYTES]:
        raise Damaged(f"{path}: offset 0: the digest does not match")
    return content[DIGEST_BYTES:]


class Deltas:
    """For one thread at a time of each dataset."""

    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, bytes], bytes] = {}  # by the digests of base and snapshot

    def clear(self) -> None:
        """Snapshots are signed again: deltas have their signatures."""
        self._kept.clear()

    def between(self, base: Snapshot, snapshot: Snapshot, steps: Path) -> bytes:
        """The encoded delta; empty if it is not worth it. `steps`: the folder with those to the snapshot."""
        if (kept := self._kept.get((base.digest, snapshot.digest))) is not None:
            return kept
        found = _along(base, snapshot, steps)
        if found is None and max(len(base), len(snapshot)) <= COMPARED_NODES_MAX:
            found = delta_between(base, snapshot)
        return self._keep((base.digest, snapshot.digest), snapshot, found)

    def add_step(self, path: Path, snapshot: Snapshot, delta: Delta) -> None:
        """Keep the delta to the snapshot in the file `path`, in memory and in a file beside it."""
        if encoded := self._keep((delta.base_digest, snapshot.digest), snapshot, delta):
            with suppress(OSError):
                write_sealed(path.with_suffix(".delta"), encoded)

    def _keep(self, key: tuple[bytes, bytes], snapshot: Snapshot, delta: Delta | None) -> bytes:
        encoded = b"" if delta is None else encode_delta(delta)
        if 2 * len(encoded) > len(snapshot.content):
            encoded = b""
        self._kept[key] = encoded
        if len(self._kept) > DELTAS_KEPT:
            self._kept.pop(next(iter(self._kept)), None)
        return encoded


def _along(base: Snapshot, snapshot: Snapshot, folder: Path) -> Delta | None:
    """None if a step is missing."""
    steps: list[Columns] = []
    digest = snapshot.digest
    for path in sorted(folder.glob(f"{snapshot.header.dataset_id.hex()}-*.delta"), reverse=True):
        with suppress(OSError, Damaged):
            step = decode_delta(read_sealed(path), str(path))
            if step.digest == digest:
                steps.insert(0, step.columns)
                digest = step.base_digest
            if digest == base.digest:
                return delta_along(base, steps, snapshot)
    return None
