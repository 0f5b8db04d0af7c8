"""Each entry of a chunk goes to the bucket of its folder, with the name that it has there."""

from dataclasses import replace

import pytest

from dieselfs.chunk.format import Op
from dieselfs_server.metadata.redis.keys import DatasetKeys
from dieselfs_server.metadata.redis.partitions import ChunkEntries, split_by_bucket
from dieselfs_server.metadata.redis.path_state import StoredExtent
from tests.support.metadata_chunks import Put, chunk_id, delete, pack

KEYS = DatasetKeys(b"dieselfs:", "pets", bytes(8))


def test_every_entry_has_one_place() -> None:
    paths = [b"", b"a", b"d/a", b"d/b", b"d/e/a", *(b"d%d/f" % number for number in range(600)), b"a"]
    parts = split_by_bucket(KEYS, paths)
    placed: dict[int, bytes] = {}
    for part in parts:
        for folder in part.folders:
            assert part.number == folder.folder_hash[0] == KEYS.folder_hash(folder.folder)[0]
            assert folder.key_pair.key == KEYS.bucket(part.number).folder(folder.folder_hash).key
            placed |= {
                entry: folder.path(name) for name, entry in zip(folder.names, folder.entries, strict=True)
            }
    assert [placed[entry] for entry in range(len(paths))] == paths
    assert len({part.number for part in parts}) == len(parts) <= 256


def test_what_a_chunk_says() -> None:
    puts = [
        Put(b"a", 1, size=3),
        Put(b"p", 2, size=9, place=4, length=5),
        delete(b"g", 3),
        Put(b"d", 4, Op.DIRECTORY),
    ]
    _, header = pack(puts, chunk_id(1))
    entries = ChunkEntries.of(chunk_id(1), header)
    assert entries.is_extent == [False, True, False, False]
    assert entries.is_delete == [False, False, True, False]
    assert entries.extent_key(1) == (2, 9, 4, 5)
    assert entries.extent(1) == StoredExtent(chunk_id(1), 1, 3, int(header.checksums[1]), 0o644, 5)
    with pytest.raises(ValueError, match="columns"):
        ChunkEntries.of(chunk_id(1), replace(header, versions=header.versions[:1]))
