"""What a chunk does to a bucket, decided from what was read. Which entry counts, the conformance suite holds."""

from dataclasses import replace

import pytest

from dieselfs.chunk.format import Op
from dieselfs_server.metadata.redis.resolve import (
    BucketEntries,
    ChunkEntries,
    Needs,
    Resolved,
    Seen,
    resolve,
    split_by_bucket,
)
from dieselfs_server.metadata.redis.values import DatasetKeys, PathState, StoredExtent, receipt_of, unseal
from tests.support.metadata_chunks import Put, chunk_id, delete, pack

KEYS = DatasetKeys(b"dieselfs:", "pets", bytes(8))


def of_chunk(number: int, *puts: Put) -> tuple[BucketEntries, ChunkEntries]:
    _, header = pack(puts, chunk_id(number))
    (part,) = split_by_bucket(KEYS, header.paths)
    return part, ChunkEntries.of(chunk_id(number), header)


def take_over(seen: Seen, part: BucketEntries, resolved: Resolved) -> None:
    """As if Redis had done what was decided."""
    for change in resolved.changes:
        for name, value in zip(change.names, change.values, strict=True):
            if change.key_pair not in (part.keys.receipts, part.keys.folders, part.keys.extents):
                seen.path_states[change.key_pair.key, name] = value


def test_new_paths_need_no_reading() -> None:
    part, chunk = of_chunk(1, Put(b"d/a", 1, size=3), delete(b"d/b", 2))
    resolved = resolve(part, chunk, Seen())
    assert isinstance(resolved, Resolved)
    assert (resolved.effects.files, resolved.effects.total_bytes, resolved.effects.members) == (
        1,
        3,
        {b"d": 1},
    )
    receipt, _, path_states = resolved.changes
    assert receipt_of(unseal(receipt.key_pair, chunk_id(1), receipt.values[0])).members == {b"d": 1}
    assert (path_states.names, path_states.in_hash, path_states.expected) == ([b"a", b"b"], [1], {})


def test_the_same_chunk_again_does_nothing() -> None:
    part, chunk = of_chunk(1, Put(b"d/a", 1, size=3), delete(b"d/b", 2))
    seen = Seen()
    first = resolve(part, chunk, seen)
    assert isinstance(first, Resolved)
    take_over(seen, part, first)
    again = resolve(part, chunk, seen)
    assert isinstance(again, Resolved)
    assert (
        again.effects.files,
        again.effects.total_bytes,
        dict(again.effects.members),
        dict(again.effects.dead),
    ) == (
        0,
        0,
        {},
        {},
    )
    assert [change.key_pair for change in again.changes] == [part.keys.receipts, part.keys.folders]


def test_what_is_replaced_is_dead() -> None:
    seen = Seen()
    part, chunk = of_chunk(1, Put(b"d/a", 1, size=3), Put(b"d/b", 9, size=4))
    first = resolve(part, chunk, seen)
    assert isinstance(first, Resolved)
    take_over(seen, part, first)
    newer, chunk = of_chunk(2, delete(b"d/a", 5), Put(b"d/b", 5, size=1))
    second = resolve(newer, chunk, seen)
    assert isinstance(second, Resolved)
    assert second.effects.dead == {chunk_id(1): [0], chunk_id(2): [1]}
    assert (second.effects.files, second.effects.total_bytes, second.effects.members) == (-1, -3, {b"d": -1})


def test_a_extent_is_kept_until_the_file_is_whole() -> None:
    part, chunk = of_chunk(1, Put(b"d/a", 1, size=5, length=2))
    seen = Seen()
    needs = resolve(part, chunk, seen)
    assert isinstance(needs, Needs) and needs
    needs.note(seen, [[None], []], [])
    needs = resolve(part, chunk, seen)
    assert isinstance(needs, Needs) and len(needs.extents) == 1
    needs.note(seen, [[None]], [])
    resolved = resolve(part, chunk, seen)
    assert isinstance(resolved, Resolved)
    assert (resolved.effects.files, dict(resolved.effects.members)) == (0, {})
    (path_states,) = [change for change in resolved.changes if change.key_pair is part.folders[0].key_pair]
    path_state = PathState.of(unseal(path_states.key_pair, b"a", path_states.values[0]))
    assert (path_state.is_live, path_state.gathered, path_states.in_hash) == (False, ((1, 5, 2),), [0])


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
    assert entries.extent(1) == StoredExtent(chunk_id(1), 1, 3, header.digests[1].tobytes(), 0o644, 5)
    with pytest.raises(ValueError, match="columns"):
        ChunkEntries.of(chunk_id(1), replace(header, versions=header.versions[:1]))
