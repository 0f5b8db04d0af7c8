"""What a new chunk may cost the servers. No I/O.

The metadata has a row for each folder above an entry, whether or not the folder has an entry of its own. So a short
path with many parts costs as much as many files. And an extent that many files share is stored once, but a copy, a
download or a purge of these files moves it once for each. Chunks that were stored earlier are read whatever they cost.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from dieselfs.chunk.format import ChunkHeader, Op, Preamble
from dieselfs.errors import InvalidInput
from dieselfs.limits import (
    ATTACHED_HEADER_BYTES_MAX,
    CHUNK_EXTENTS_PER_PAYLOAD_MAX,
    CHUNK_FOLDER_BYTES_MAX,
    CHUNK_FOLDERS_BASE,
    CHUNK_FOLDERS_MAX,
    CHUNK_FOLDERS_PER_ENTRY_MAX,
    NEW_PATH_DEPTH_MAX,
    PATH_BYTES_MAX,
    PATH_DEPTH_MAX,
)
from dieselfs.names import printable


def depth_fault(path: bytes) -> str | None:
    """Why no entry may be made at `path`, or None."""
    depth = path.count(b"/") + 1
    return f"path of {depth} parts, limit {NEW_PATH_DEPTH_MAX}" if depth > NEW_PATH_DEPTH_MAX else None


@dataclass(eq=False)
class FoldersAbove:
    """The distinct folders above the entries of a chunk, without the root. A deletion may remove those above it."""

    paths: set[bytes] = field(default_factory=set)
    path_bytes: int = 0

    def add(self, path: bytes) -> None:
        folder, known = path.rpartition(b"/")[0], self.paths
        while folder and folder not in known:
            known.add(folder)
            self.path_bytes += len(folder)
            folder = folder.rpartition(b"/")[0]

    def are_within(self, entries: int, spare: int = 0, spare_bytes: int = 0) -> bool:
        """Whether a chunk with this number of entries may have them, and `spare` more with `spare_bytes` of paths."""
        return (
            len(self.paths) + spare
            <= min(CHUNK_FOLDERS_PER_ENTRY_MAX * entries + CHUNK_FOLDERS_BASE, CHUNK_FOLDERS_MAX)
            and self.path_bytes + spare_bytes <= CHUNK_FOLDER_BYTES_MAX
        )

    def have_room(self, entries: int) -> bool:
        """Whether a chunk with this number of entries can take another path, whatever its length and depth."""
        return self.are_within(entries, PATH_DEPTH_MAX, PATH_DEPTH_MAX * PATH_BYTES_MAX)


def folders_above(paths: Iterable[bytes], entries: int) -> FoldersAbove:
    """The folders above `paths`. Stops soon after the limit of a chunk with this number of entries."""
    found = FoldersAbove()
    for path in paths:
        found.add(path)
        if not found.are_within(entries):
            break
    return found


def check_cost(preamble: Preamble, header: ChunkHeader, source: str) -> None:
    """Raise InvalidInput for a new chunk that costs too much. `source` names it."""
    paths = header.paths
    for path, op in zip(paths, header.ops.tolist(), strict=True):
        if op != Op.DELETE and (fault := depth_fault(path)) is not None:
            raise InvalidInput(f"{source}: {printable(path[:200])}: {fault}")
    folders = folders_above(paths, len(paths))
    if not folders.are_within(len(paths)):
        raise InvalidInput(
            f"{source}: its {len(paths):,} entries have too many folders above them, "
            f"more than {CHUNK_FOLDERS_BASE:,} and {CHUNK_FOLDERS_PER_ENTRY_MAX} for each entry, more than "
            f"{CHUNK_FOLDERS_MAX:,}, or more than {CHUNK_FOLDER_BYTES_MAX:,} bytes of their paths; write smaller chunks"
        )
    extents_bytes = int(header.lengths[header.ops == Op.FILE].sum(dtype="u8"))
    if extents_bytes > CHUNK_EXTENTS_PER_PAYLOAD_MAX * preamble.payload_length:
        raise InvalidInput(
            f"{source}: its files share bytes: {extents_bytes:,} bytes in a payload of {preamble.payload_length:,}, "
            f"limit {CHUNK_EXTENTS_PER_PAYLOAD_MAX} times as many; write the bytes for each file"
        )


def check_attached(preamble: Preamble, source: str) -> None:
    """Raise InvalidInput for an attached chunk whose header is too long to be decoded for a user."""
    if preamble.is_attached and preamble.header_length > ATTACHED_HEADER_BYTES_MAX:
        raise InvalidInput(
            f"{source}: header of {preamble.header_length:,} bytes, limit {ATTACHED_HEADER_BYTES_MAX:,} for an "
            "attached chunk; attach it in smaller chunks"
        )
