"""The entries of a chunk as Redis stores them, and which of them lie in which bucket. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dieselfs.chunk.format import ChunkHeader, Op
from dieselfs_server.metadata.redis_keys import BucketKeys, DatasetKeys, Drawer
from dieselfs_server.metadata.redis_standing import StoredPiece, bodies_of


@dataclass(frozen=True, eq=False)
class ChunkEntries:
    """The entries of a chunk, as they are stored."""

    chunk_id: bytes
    header: ChunkHeader
    bodies: Sequence[bytes]
    is_piece: Sequence[bool]
    is_delete: Sequence[bool]

    @classmethod
    def of(cls, chunk_id: bytes, header: ChunkHeader) -> "ChunkEntries":
        """Raises ValueError for a header that no decoder gives."""
        bodies = bodies_of(chunk_id, header)
        is_piece = (header.ops == Op.FILE) & (header.lengths != header.sizes)
        return cls(chunk_id, header, bodies, is_piece.tolist(), (header.ops == Op.DELETE).tolist())

    def piece(self, entry: int) -> StoredPiece:
        header = self.header
        columns = (header.offsets, header.checksums, header.modes, header.mtimes_ns)
        return StoredPiece(self.chunk_id, entry, *(int(column[entry]) for column in columns))

    def piece_key(self, entry: int) -> tuple[int, int, int, int]:
        """`(version, size, place, length)`."""
        columns = (self.header.versions, self.header.sizes, self.header.places, self.header.lengths)
        version, size, place, length = (int(column[entry]) for column in columns)
        return version, size, place, length


@dataclass(eq=False)
class FolderPart:
    """Entries of a chunk in one folder: `names` and, in the same order, which `entries` they are."""

    folder: bytes
    folder_hash: bytes
    drawer: Drawer
    names: list[bytes] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)

    def path(self, name: bytes) -> bytes:
        return self.folder + b"/" + name if self.folder else name


@dataclass(eq=False)
class Part:
    """What of a chunk lies in one bucket."""

    number: int
    keys: BucketKeys
    folders: list[FolderPart] = field(default_factory=list)


def split_by_bucket(keys: DatasetKeys, paths: Sequence[bytes]) -> list[Part]:
    """Each entry's place; a bucket's entries are applied together."""
    parts: dict[int, Part] = {}
    folders: dict[bytes, FolderPart] = {}
    for entry, path in enumerate(paths):
        folder, _, name = path.rpartition(b"/")
        there = folders.get(folder)
        if there is None:
            folder_hash = keys.folder_hash(folder)
            part = parts.get(folder_hash[0])
            if part is None:
                part = parts[folder_hash[0]] = Part(folder_hash[0], keys.bucket(folder_hash[0]))
            there = folders[folder] = FolderPart(folder, folder_hash, part.keys.folder(folder_hash))
            part.folders.append(there)
        there.names.append(name)
        there.entries.append(entry)
    return list(parts.values())
