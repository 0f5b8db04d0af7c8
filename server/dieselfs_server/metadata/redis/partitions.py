"""The entries of a chunk as Redis stores them, and the bucket of each. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dieselfs.chunk.format import ChunkHeader, Op
from dieselfs_server.metadata.redis.keys import BucketKeys, DatasetKeys, KeyPair
from dieselfs_server.metadata.redis.path_state import StoredExtent, bodies_of


@dataclass(frozen=True, eq=False)
class ChunkEntries:
    """The entries of a chunk; `bodies` are the unsealed values of whole entries."""

    chunk_id: bytes
    header: ChunkHeader
    bodies: Sequence[bytes]
    is_extent: Sequence[bool]
    is_delete: Sequence[bool]

    @classmethod
    def of(cls, chunk_id: bytes, header: ChunkHeader) -> "ChunkEntries":
        """Raises ValueError if the columns of the header differ in length."""
        bodies = bodies_of(chunk_id, header)
        is_extent = (header.ops == Op.FILE) & (header.lengths != header.sizes)
        return cls(chunk_id, header, bodies, is_extent.tolist(), (header.ops == Op.DELETE).tolist())

    def extent(self, entry: int) -> StoredExtent:
        header = self.header
        columns = (header.offsets, header.checksums, header.modes, header.mtimes_ns)
        return StoredExtent(self.chunk_id, entry, *(int(column[entry]) for column in columns))

    def extent_key(self, entry: int) -> tuple[int, int, int, int]:
        """`(version, size, place, length)`."""
        columns = (self.header.versions, self.header.sizes, self.header.places, self.header.lengths)
        version, size, place, length = (int(column[entry]) for column in columns)
        return version, size, place, length


@dataclass(eq=False)
class FolderEntries:
    """Entries of a chunk in one folder: their names and, in the same order, their numbers in the chunk."""

    folder: bytes
    folder_hash: bytes
    key_pair: KeyPair
    names: list[bytes] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)

    def path(self, name: bytes) -> bytes:
        return self.folder + b"/" + name if self.folder else name


@dataclass(eq=False)
class BucketEntries:
    """The entries of a chunk in one bucket."""

    number: int
    keys: BucketKeys
    folders: list[FolderEntries] = field(default_factory=list)


def split_by_bucket(keys: DatasetKeys, paths: Sequence[bytes]) -> list[BucketEntries]:
    """Group the entries by bucket and folder; the entries of a bucket are applied together."""
    parts: dict[int, BucketEntries] = {}
    folders: dict[bytes, FolderEntries] = {}
    for entry, path in enumerate(paths):
        folder, _, name = path.rpartition(b"/")
        group = folders.get(folder)
        if group is None:
            folder_hash = keys.folder_hash(folder)
            part = parts.get(folder_hash[0])
            if part is None:
                part = parts[folder_hash[0]] = BucketEntries(folder_hash[0], keys.bucket(folder_hash[0]))
            group = folders[folder] = FolderEntries(folder, folder_hash, part.keys.folder(folder_hash))
            part.folders.append(group)
        group.names.append(name)
        group.entries.append(entry)
    return list(parts.values())
